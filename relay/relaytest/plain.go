package relaytest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/relay"
)

// The cases in this file need no fault: the broker is well.

func partsArrive(w *world) {
	in := newSink()
	w.receive(w.url(), in)
	binary := message(1, 0)
	binary.Headers = map[string]string{relay.ReplayOf: "an id"}
	structured := message(2, 0)
	structured.ContentType = "application/cloudevents+json"
	w.publish(w.publisher(w.url()), []relay.Message{binary, structured})
	w.eventually("two messages", func() bool { return in.count() == 2 })
	for _, want := range []relay.Message{binary, structured} {
		got := in.byID(want.ID)
		require.Equal(w.t, want.Attributes, got.Attributes, "the CloudEvents attributes, without the binding's prefix")
		require.Equal(w.t, want.ContentType, got.ContentType)
		require.Equal(w.t, string(want.Body), string(got.Body))
		for name, v := range want.Headers {
			require.Equal(w.t, v, got.Headers[name], "header %s", name)
		}
	}
}

func orderIsKept(w *world) {
	in := newSink()
	w.publishRounds(w.publisher(w.url()), 0, w.perKey/2) // what was there before
	w.receive(w.url(), in)
	w.publishRounds(w.publisher(w.url()), w.perKey/2, w.perKey) // by another publisher
	w.eventually("all messages", func() bool { return in.count() == w.keys*w.perKey })
	in.requireRounds(w.t, w.keys, w.perKey)
}

func repeatedIsSuccess(w *world) {
	in := newSink()
	w.receive(w.url(), in)
	p := w.publisher(w.url())
	w.publish(p, w.round(0))
	w.publish(p, w.round(0))
	w.publish(w.publisher(w.url()), w.round(0))
	w.publish(p, w.round(1))
	w.eventually("all messages", func() bool { return in.count() == 2*w.keys })
	in.requireRounds(w.t, w.keys, 2)
	if w.broker.DropsRepeated {
		require.Zero(w.t, in.repeats(), "the broker drops what is repeated")
	}
}

func refusedComesAgain(w *world) {
	in := newSink()
	in.refuse = 3
	w.receive(w.url(), in)
	w.publishRounds(w.publisher(w.url()), 0, w.perKey)
	w.eventually("all messages", func() bool { return in.count() == w.keys*w.perKey })
	in.requireRounds(w.t, w.keys, w.perKey)
	require.Equal(w.t, 3, in.refused)
}

func poisonStopsNothing(w *world) {
	in := newSink()
	w.receive(w.url(), in)
	p := w.publisher(w.url())
	w.publish(p, w.round(0))
	poison := message(0, 1)
	poison.Body = []byte("\x00\xff not JSON, not UTF-8")
	poison.ContentType = "text/plain; charset=\"☃"
	bomb := message(1, 1)
	bomb.Headers = map[string]string{"bomb": strings.Repeat("x", 2000)}
	empty := message(2, 1)
	empty.Body = nil
	w.publish(p, []relay.Message{poison, bomb, empty})
	w.publish(p, w.round(2))
	w.eventually("all messages", func() bool { return in.count() == 2*w.keys+3 })
	require.Equal(w.t, poison.Body, in.byID(poison.ID).Body)
	require.Empty(w.t, in.byID(empty.ID).Body)
}

func tooLargeIsPermanent(w *world) {
	in := newSink()
	w.receive(w.url(), in)
	p := w.publisher(w.url())
	w.publish(p, w.round(0))
	ms := w.round(1)
	ms[1].Body = bytes.Repeat([]byte("x"), w.broker.TooLarge)
	errs := p.Publish(w.ctx, ms)
	require.Len(w.t, errs, len(ms))
	require.True(w.t, bus.IsPermanent(errs[1]), "too large is for ever, so its delivery is DEAD at once: %v", errs[1])
	for i, err := range errs {
		require.False(w.t, i != 1 && bus.IsPermanent(err), "message %d: %v", i, err)
	}
	w.publish(p, append(ms[:1:1], ms[2:]...))
	w.publish(p, []relay.Message{message(1, 1)})
	w.eventually("all messages", func() bool { return in.count() == 2*w.keys })
	in.requireRounds(w.t, w.keys, 2)
}

func wrongCredentials(w *world) { w.requireRefused(w.broker.WrongCredentials(w.url())) }

func missingTopic(w *world) { w.requireRefused(w.broker.Missing(w.url())) }

// requireRefused checks that both ends say that a person has to fix something, and that nothing is lost by it. Where a broker that starts
// answers the same, they may be sure of it later only.
func (w *world) requireRefused(url string) {
	w.t.Helper()
	s, err := w.broker.Subscriber(url)
	require.NoError(w.t, err)
	defer func() { require.NoError(w.t, s.Close()) }()
	received := make(chan error, 1)
	go func() { received <- s.Receive(w.ctx, newSink()) }()
	p := w.publisher(url)
	w.eventually("a publisher that is refused", refuses(w.ctx, w.t, p))
	for _, err := range p.Publish(w.ctx, w.round(0)) {
		require.Error(w.t, err)
		require.False(w.t, bus.IsPermanent(err), "it can be fixed, so the events wait: %v", err)
	}
	require.ErrorIs(w.t, <-received, relay.ErrRefused)
	require.ErrorIs(w.t, s.Connect(w.ctx), relay.ErrRefused)
}

// refuses asks whether the broker refuses one end, which may say that the broker is away until it does, but not that all is well.
func refuses(ctx context.Context, t testing.TB, c relay.Connection) func() bool {
	return func() bool {
		err := c.Connect(ctx)
		require.Error(t, err)
		return errors.Is(err, relay.ErrRefused)
	}
}

func fetchingPauses(w *world) {
	in := newSink()
	in.room = make(chan struct{})
	r := w.receive(w.url(), in)
	w.publishRounds(w.publisher(w.url()), 0, w.perKey)
	w.eventually("a question whether there is room", func() bool { return in.isWaiting() })
	require.Zero(w.t, in.count(), "there is no room")
	w.lag(r, int64(w.keys*w.perKey))
	close(in.room)
	w.eventually("all messages", func() bool { return in.count() == w.keys*w.perKey })
	w.lag(r, 0)
	in.requireRounds(w.t, w.keys, w.perKey)
}

// lag waits until the subscriber says that it is so far behind, if it can say so.
func (w *world) lag(r *receiving, want int64) {
	w.t.Helper()
	lagging, ok := r.Subscriber.(relay.Lagging)
	if !ok {
		return
	}
	w.eventually(fmt.Sprintf("a lag of %d", want), func() bool {
		got, err := lagging.Lag(w.ctx)
		return err == nil && (got == want || got == -1)
	})
}

func nothingIsLeft(w *world) {
	before := goleak.IgnoreCurrent()
	in := newSink()
	r := w.receive(w.url(), in)
	p, err := w.broker.Publisher(w.url())
	require.NoError(w.t, err)
	w.publish(p, w.round(0))
	w.eventually("all messages", func() bool { return in.count() == w.keys })
	r.stop()
	require.NoError(w.t, p.Close())
	for _, err := range p.Publish(w.ctx, w.round(1)) {
		require.Error(w.t, err, "the publisher is closed")
	}
	var left error
	w.eventually("the end of all goroutines", func() bool { left = goleak.Find(before); return left == nil })
	require.NoError(w.t, left)
}

// byID is the message of an id that has landed.
func (s *sink) byID(id string) relay.Received {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.landed {
		if r.Attributes["id"] == id {
			r.Attributes, r.Headers = maps.Clone(r.Attributes), maps.Clone(r.Headers)
			return r
		}
	}
	return relay.Received{}
}

func (s *sink) isWaiting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting > 0
}

// isAway reports whether err says that the broker is not there, and not that it refuses.
func isAway(err error) bool {
	return err != nil && !errors.Is(err, relay.ErrRefused) && !bus.IsPermanent(err)
}
