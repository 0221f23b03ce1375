package relaytest

import (
	"context"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
)

// The cases in this file break the broker, or the way to it.

func awayIsWaitedFor(w *world) {
	w.proxy.lead("")
	in := newSink()
	r := w.receive(w.url(), in)
	p := w.publisher(w.url())
	require.True(w.t, isAway(p.Connect(w.ctx)), "nobody listens")
	require.True(w.t, isAway(r.Connect(w.ctx)), "nobody listens")
	for _, err := range p.Publish(w.ctx, w.round(0)) {
		require.True(w.t, isAway(err), "nobody listens: %v", err)
	}
	w.proxy.lead(w.server.Addr())
	w.publishRounds(p, 0, 2)
	w.eventually("all messages", func() bool { return in.count() == 2*w.keys })
	in.requireRounds(w.t, w.keys, 2)
}

// during publishes everything while fn does harm, and waits until all has landed.
func (w *world) during(in *sink, fn func(p Publisher)) {
	w.t.Helper()
	p := w.publisher(w.url())
	w.publishRounds(p, 0, 2)
	var wg sync.WaitGroup
	wg.Go(func() { fn(p) })
	w.publishRounds(p, 2, w.perKey)
	wg.Wait()
	w.publishRounds(p, w.perKey, w.perKey+2)
	w.eventually("all messages", func() bool { return in.count() == w.keys*(w.perKey+2) })
	in.requireRounds(w.t, w.keys, w.perKey+2)
}

func killedLosesNothing(w *world) {
	in := newSink()
	w.receive(w.url(), in)
	w.during(in, func(Publisher) {
		for range w.kills {
			w.server.Kill()
			w.server.Restart()
		}
	})
}

func frozenLosesNothing(w *world) {
	in := newSink()
	w.receive(w.url(), in)
	p := w.publisher(w.url())
	w.publishRounds(p, 0, 1)
	w.server.Freeze()
	thaw := sync.OnceFunc(w.server.Thaw)
	defer thaw() // also after a failure
	frozen := time.After(w.freeze)
	ctx, cancel := context.WithTimeout(w.ctx, w.freeze/2)
	defer cancel()
	for _, err := range p.Publish(ctx, w.round(1)) {
		require.True(w.t, isAway(err), "the broker is frozen, so nothing is confirmed: %v", err)
	}
	<-frozen
	thaw()
	w.publishRounds(p, 1, w.perKey)
	w.eventually("all messages", func() bool { return in.count() == w.keys*w.perKey })
	in.requireRounds(w.t, w.keys, w.perKey)
}

func cutBeforeConfirm(w *world) {
	in := newSink()
	w.receive(w.url(), in)
	p := w.publisher(w.url())
	w.publishRounds(p, 0, 1)
	said := w.proxy.silence()
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-said: // the broker has them, and nobody knows
		case <-w.ctx.Done():
		}
		w.proxy.cut()
	})
	w.publishRounds(p, 1, w.perKey)
	wg.Wait()
	w.eventually("all messages", func() bool { return in.count() == w.keys*w.perKey })
	in.requireRounds(w.t, w.keys, w.perKey)
}

// cutBeforeAck keeps the broker away until the subscriber has said so: a client that comes back at once might acknowledge after all.
func cutBeforeAck(w *world) {
	in := newSink()
	mine := newProxy(w.t) // not the publisher's
	mine.lead(w.server.Addr())
	back := sync.OnceFunc(func() { mine.lead(w.server.Addr()) })
	in.setCommit(sync.OnceFunc(func() {
		in.setAway(back)
		mine.lead("")
	}))
	w.receive(w.server.URL(mine.addr()), in)
	w.publishRounds(w.publisher(w.url()), 0, w.perKey)
	w.eventually("all messages", func() bool { return in.count() == w.keys*w.perKey })
	w.eventually("a redelivery of what was not acknowledged", func() bool { return in.repeats() > 0 })
	in.requireRounds(w.t, w.keys, w.perKey)
}

func anotherTakesOver(w *world) {
	in := newSink()
	first := newProxy(w.t)
	first.lead(w.server.Addr())
	w.receive(w.server.URL(first.addr()), in)
	w.receive(w.url(), in.another())
	p := w.publisher(w.url())
	w.publishRounds(p, 0, w.perKey/2)
	first.lead("") // as if it had died: it says nothing any more
	w.publishRounds(p, w.perKey/2, w.perKey)
	w.eventually("all messages", func() bool { return in.count() == w.keys*w.perKey })
	in.requireRounds(w.t, w.keys, w.perKey)
}
