package delivery

import (
	"context"
	"errors"
	"math"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/flow"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
)

// While every delivery fails there is one worker, which tries one at a time, and nobody waits for it, until one succeeds.
func TestOneWorkerWhileEveryDeliveryFails(t *testing.T) {
	t.Parallel()
	ln := idleLane(&handler.Consumer{Config: handler.Config{}.WithDefaults()}, 4)
	for range 19 {
		ln.observe(t.Context(), flow.Failed, true, errors.New("no"))
	}
	require.Equal(t, 4, ln.speed.WorkerLimit(time.Now()))
	require.False(t, ln.speed.Spill.IsActive())
	ln.observe(t.Context(), flow.Failed, true, errors.New("no"))
	require.Equal(t, 1, ln.speed.WorkerLimit(time.Now()))
	require.Equal(t, 1, ln.speed.BatchLimit(time.Now()))
	require.True(t, ln.speed.Spill.IsActive(), "what comes in waits in the consume log")
	require.Less(t, ln.retries.leaseLimit(), 100, "few are leased")
	ln.accepted(t.Context(), []*delivery{waiting(claim.New, 1, "1")})
	require.Equal(t, 4, ln.speed.WorkerLimit(time.Now()))
}

// Retries that fail leave what comes in alone: it is run at once, before the next retry.
func TestFailedRetriesDoNotMakeALaneFallBehind(t *testing.T) {
	t.Parallel()
	ln := idleLane(&handler.Consumer{Config: handler.Config{}.WithDefaults()}, 4)
	for range 100 {
		ln.observe(t.Context(), flow.Failed, false, errors.New("no"))
	}
	require.False(t, ln.speed.Spill.IsActive())
	of := func(aggregate string) handler.Message {
		return handler.Message{Event: &eventrow.Row{AggregateID: aggregate}}
	}
	retry := &delivery{kind: claim.Retries, Message: of("1"), lease: &store.Leased{Before: store.Failed}}
	mate, never := &delivery{Message: of("1")}, &delivery{Message: of("2")}
	ln.queue.ds = []*delivery{retry, mate, never}
	ln.queue.turns.Take(claim.New) // it would be the turn of the retry
	for _, want := range []*delivery{never, retry} {
		size := ln.speed.BatchLimit(time.Now())
		require.Equal(t, []*delivery{want}, ln.queue.take(size, &ln.speed.Parts, ln.speed.IsHalfOpen(time.Now())))
	}
	require.Empty(t, ln.queue.take(1, &ln.speed.Parts, ln.speed.IsHalfOpen(time.Now())), "it waits for the one before it")
}

// A lane that is full while others have nothing to do spills if its handler is much slower than theirs, and takes nothing
// directly until it has caught up. A lane that has been closed does not.
func TestAFullLaneSpills(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		queued         int
		idle           idleLanes
		closed, spills bool
	}{
		"others have nothing to do":   {queued: 150, idle: idleLanes{true, time.Microsecond}, spills: true},
		"others have something to do": {queued: 150},
		"it is not full":              {queued: 50, idle: idleLanes{true, time.Microsecond}},
		"it has been closed":          {queued: 150, idle: idleLanes{true, time.Microsecond}, closed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ln := idleLane(&handler.Consumer{Config: handler.Config{}.WithDefaults()}, 4)
			ln.queue.ds, ln.isOver = queueOf(c.queued), c.closed
			ln.speed.Times.ObserveCall(20 * time.Millisecond)
			ln.speed.Spill.Observe(time.Now().Add(-time.Second), false, time.Hour)
			free, window := ln.room(c.idle, true)
			require.Equal(t, c.spills, ln.speed.Spill.IsActive())
			require.Equal(t, c.spills, free == math.MaxInt && window == math.MaxInt, "it puts no limit on the others")
			if c.spills || c.closed {
				require.Zero(t, ln.push(queueOf(1)))
			}
			ln.queue.ds = nil
			ln.retries.catchUp()
			require.False(t, ln.speed.Spill.IsActive())
		})
	}
}

// A full lane is no reason for the others to have nothing to do, until it is known whether it is slow.
func TestRoomForThoseThatAreStarved(t *testing.T) {
	t.Parallel()
	cfg := handler.Config{}.WithDefaults()
	ln := idleLane(&handler.Consumer{Config: cfg}, 4)
	ln.queue.ds = queueOf(200)
	ln.speed.Spill.Observe(time.Now(), false, time.Hour)
	free, window := ln.room(idleLanes{}, false)
	require.Equal(t, 0, free)
	require.Equal(t, 200, window)
	free, window = ln.room(idleLanes{}, true)
	require.Equal(t, cfg.Queue*4/5-200, free)
	require.Equal(t, 200, window)
	for each, most := range map[time.Duration]int{time.Millisecond: cfg.Queue * 4 / 5, 10 * time.Millisecond: 400, time.Second: 100} {
		ln.speed.Prefetch = flow.Prefetch{}
		ln.speed.Prefetch.Observe(1, each)
		free, window = ln.room(idleLanes{}, true)
		require.Equal(t, most-200, free, "no more than start within a second")
		require.Equal(t, min(200, most), window)
	}
	require.False(t, ln.speed.Spill.IsActive())
	require.False(t, ln.isDrained())
	ln.speed.Spill.Begin()
	require.True(t, ln.isDrained(), "nobody waits for it")
}

// queueOf are n deliveries of NEW events.
func queueOf(n int) []*delivery {
	ds := make([]*delivery, n)
	for i := range ds {
		ds[i] = &delivery{Message: handler.Message{Event: &eventrow.Row{OutboxID: int64(i + 1)}}}
	}
	return ds
}

// What a handler answers says something about other deliveries, but for one that asks for another run later.
func TestWhatAnAnswerSaysAboutOthers(t *testing.T) {
	t.Parallel()
	away := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	for answer, want := range map[error]flow.Outcome{
		errors.New("no"): flow.Failed, handler.Permanent(away): flow.Failed, &handler.SkipError{Reason: "not ours"}: flow.Succeeded,
		away:                                   flow.Unreached,
		handler.Unavailable(errors.New("503")): flow.Unavailable,
	} {
		o, says := outcomeOf(answer)
		require.True(t, says)
		require.Equal(t, want, o, answer.Error())
	}
	_, says := outcomeOf(handler.RetryAfter(away, time.Second))
	require.False(t, says)
	require.NoError(t, handler.Unavailable(nil))
}

// While the circuit of a consumer is open nothing of it starts, the publisher is told, and waits for nothing of it.
func TestOpenCircuitStartsNothing(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.consumer("C", handler.Config{}, func(context.Context, bun.Tx, *handler.Message) error {
		if len(h.called()) == 1 {
			return handler.Unavailable(errNo)
		}
		return nil
	})
	h.open()
	require.Empty(t, h.lanes.Broken())
	h.offer("C", h.event("a", "1"))
	require.Equal(t, []string{"C"}, h.lanes.Broken())
	require.Zero(t, h.push("C", h.event("b", "2")), "it waits in the consume log")
	require.True(t, h.lanes.QueuesAreEmpty())
	require.Contains(t, h.log(), "the consumer's circuit opened: what it calls cannot be reached")
	h.waiting("C", "c", "3")
	h.eventually(func() bool { return h.row("C", "c").status == store.Success && h.lanes.AreIdle() }, "it is tried again by itself")
	require.Empty(t, h.lanes.Broken())
	require.Contains(t, h.log(), "the consumer's circuit closed")
}
