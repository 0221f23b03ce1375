package relay_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
	"github.com/bluecone-go/bluecone/relay"
)

// connected is a publisher that says where it is, and whether it is well.
type connected struct {
	*broker
	looks chan error
}

func (connected) Broker() string { return "nats://mq:4222/ORDERS" }
func (connected) Close() error   { return nil }
func (c connected) Connect(ctx context.Context) error {
	select {
	case err := <-c.looks:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Operators see what a running relay knows of its broker: that it was looked for where nothing was published, the last error of what was,
// and nothing of a relay that has ended.
func TestARelayTellsWhatItKnowsOfItsBroker(t *testing.T) {
	t.Parallel()
	held := make(chan struct{})
	var once sync.Once
	b := &broker{answer: func(relay.Message) error {
		once.Do(func() { <-held })
		return bus.Unavailable(fmt.Errorf("%w: wrong password", relay.ErrRefused))
	}}
	at := connected{b, make(chan error, 1)}
	at.looks <- errors.New("nobody listens")
	h := newShopAt(t, relay.Config{Consumer: bus.ConsumerConfig{Concurrency: 2, Batch: 100}}, at)
	o, err := ops.New(h.db, h.Outbox, ops.Config{})
	require.NoError(t, err)
	p, err := outbox.NewPublisher(h.Outbox, h.Bus, outbox.PublisherConfig{})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = p.Run(ctx) })
	is := until(t, o, func(l ops.BrokerLink) bool { return l.State == ops.LinkAway })
	require.Equal(t, []any{ops.RelayRole, "Relay", "nats://mq:4222/ORDERS", "nobody listens", int64(200), int64(0)},
		[]any{is.Role, is.Name, is.Broker, is.LastError, is.Window, is.Unconfirmed})
	require.WithinDuration(t, time.Now(), is.LastErrorAt, time.Hour)
	save(t, h, paid{"7", 1})
	until(t, o, func(l ops.BrokerLink) bool { return l.Unconfirmed == 1 })
	close(held)
	is = until(t, o, func(l ops.BrokerLink) bool { return l.State == ops.LinkRefused && l.Unconfirmed == 0 })
	require.Contains(t, is.LastError, "wrong password")
	require.EqualValues(t, 1, is.Lag, "its delivery waits")
	stop()
	running.Wait()
	var left int
	require.NoError(t, h.db.NewRaw("SELECT COUNT(*) FROM bc_broker").Scan(t.Context(), &left))
	require.Zero(t, left)
}

// until waits until the relay has written what is asked for.
func until(t *testing.T, o *ops.Ops, is func(ops.BrokerLink) bool) ops.BrokerLink {
	t.Helper()
	for deadline := time.Now().Add(testdb.Patience()); ; <-time.After(50 * time.Millisecond) {
		found, err := o.Brokers(t.Context())
		require.NoError(t, err)
		if len(found.Links) > 0 && is(found.Links[0]) {
			return found.Links[0]
		}
		require.True(t, time.Now().Before(deadline), "they are %+v", found.Links)
	}
}
