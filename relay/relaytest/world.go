package relaytest

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/relay"
)

// world is one case: a broker behind a proxy, and how much is done.
type world struct {
	size
	t      *testing.T
	broker Broker
	server Server
	proxy  *proxy
	ctx    context.Context //nolint:containedctx // that of the case
}

func newWorld(t *testing.T, b Broker) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience())
	t.Cleanup(cancel)
	p := newProxy(t)
	w := &world{size: sizes(), t: t, broker: b, proxy: p, ctx: ctx, server: b.Start(t, p.addr())}
	p.lead(w.server.Addr())
	return w
}

// url leads through the proxy.
func (w *world) url() string { return w.server.URL(w.proxy.addr()) }

// publisher is a new one, closed with the case.
func (w *world) publisher(url string) Publisher {
	w.t.Helper()
	p, err := w.broker.Publisher(url)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = p.Close() }) // a case may have closed it
	return p
}

// receiving is a subscriber that receives into a sink.
type receiving struct {
	Subscriber
	stop func() // ends Receive, waits for it, and closes the subscriber
}

// receive starts a subscriber. It ends with the case, or by stop.
func (w *world) receive(url string, in relay.Sink) *receiving {
	w.t.Helper()
	s, err := w.broker.Subscriber(url)
	require.NoError(w.t, err)
	ctx, cancel := context.WithCancel(w.ctx)
	ended := make(chan error, 1)
	go func() { ended <- s.Receive(ctx, in) }()
	stopped := false
	r := &receiving{Subscriber: s}
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-ended:
			require.NoError(w.t, err, "Receive returns nil when its context has ended")
		case <-time.After(patience()):
			require.Fail(w.t, "Receive has not returned after its context had ended")
		}
		require.NoError(w.t, s.Close())
	}
	w.t.Cleanup(r.stop)
	return r
}

// message is number n of an entity, in binary mode.
func message(key, n int) relay.Message {
	id := fmt.Sprintf("%08d-0000-7000-8000-%012d", key, n)
	body, _ := json.Marshal(map[string]int{"key": key, "n": n}) // numbers can be encoded
	m := relay.Message{
		ID: id, Type: "relay.tested", TenantID: 7, AggregateType: "THING", AggregateID: fmt.Sprintf("%d.ü */>", key),
		ContentType: "application/json", Body: body,
	}
	m.Attributes = map[string]string{
		"specversion": "1.0", "id": id, "source": "/bluecone/relaytest", "type": m.Type, "subject": m.AggregateType + "/" + m.AggregateID,
		"partitionkey": m.Key(), "sequence": strconv.Itoa(n), "tenantid": "7", "schemaversion": "1",
	}
	return m
}

// round is number n of every entity.
func (w *world) round(n int) (ms []relay.Message) {
	for key := range w.keys {
		ms = append(ms, message(key, n))
	}
	return ms
}

// publish publishes until the broker has confirmed all, as a relay does: again with the same ids, and the next of an entity
// only after the one before. Any error but that the broker is away is the adapter's.
func (w *world) publish(p relay.Publisher, ms []relay.Message) {
	w.t.Helper()
	for len(ms) > 0 {
		errs := p.Publish(w.ctx, ms)
		require.Len(w.t, errs, len(ms), "one answer for each message")
		var left []relay.Message
		for i, err := range errs {
			if err != nil {
				require.False(w.t, bus.IsPermanent(err), "nothing is wrong with message %s: %v", ms[i].ID, err)
				left = append(left, ms[i])
			}
		}
		if ms = left; len(ms) > 0 {
			w.pause()
		}
	}
}

// publishRounds publishes some rounds, one after the other.
func (w *world) publishRounds(p relay.Publisher, from, to int) {
	w.t.Helper()
	for n := from; n < to; n++ {
		w.publish(p, w.round(n))
	}
}

// pause waits a little between two tries, as a relay's circuit does.
func (w *world) pause() {
	select {
	case <-w.ctx.Done():
		require.NoError(w.t, w.ctx.Err(), "it has taken too long")
	case <-time.After(50 * time.Millisecond):
	}
}

// eventually waits until fn holds.
func (w *world) eventually(what string, fn func() bool) {
	w.t.Helper()
	for !fn() {
		select {
		case <-w.ctx.Done():
			require.Fail(w.t, "it has taken too long: "+what)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
