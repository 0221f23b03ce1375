package delivery

import (
	"cmp"
	"errors"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/flow"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
)

// A batch is what fits into the time box, which a backlog and a slow machine stretch.
func TestBatchSizeFollowsTimes(t *testing.T) {
	t.Parallel()
	c := &handler.Consumer{Config: handler.Config{}.WithDefaults()}
	ln := idleLane(c, 0)
	ln.speed.window = widest(c.Config)
	require.Equal(t, firstBatch, ln.speed.batchSize(), "who knows")
	ln.speed.times.observeCall(time.Millisecond)
	require.Equal(t, 20, ln.speed.batchSize())
	ln.queue.ds = queueOf(ln.speed.window / 2)
	ln.speed.notice(len(ln.queue.ds), ln.retries.more.Has(claim.Deliveries))
	require.Equal(t, 20, ln.speed.batchSize(), "nothing to speak of")
	ln.retries.more = claim.Of(claim.Deliveries)
	ln.speed.notice(len(ln.queue.ds), ln.retries.more.Has(claim.Deliveries))
	require.Equal(t, 60, ln.speed.batchSize(), "a backlog in the consume log, of which the queue never holds much")
	ln.retries.more, ln.speed.backlog = 0, false
	ln.queue.ds = queueOf(ln.speed.window)
	ln.speed.notice(len(ln.queue.ds), ln.retries.more.Has(claim.Deliveries))
	require.Equal(t, 60, ln.speed.batchSize(), "a backlog")
	ln.queue.ds = ln.queue.ds[:1]
	ln.speed.notice(len(ln.queue.ds), ln.retries.more.Has(claim.Deliveries))
	require.Equal(t, 60, ln.speed.batchSize(), "until it has been worked off")
	ln.speed.times.perEvent = 10 * time.Millisecond
	require.Equal(t, 6, ln.speed.batchSize())
	ln.speed.times.overhead = 50 * time.Millisecond
	require.Equal(t, 40, ln.speed.batchSize(), "a transaction costs more than its box")
	ln.speed.times.perEvent = time.Minute
	require.Equal(t, 1, ln.speed.batchSize())
	ln.speed.times.perEvent = time.Microsecond
	require.Equal(t, c.Config.Batch, ln.speed.batchSize())
	refused := []*delivery{{}}
	ln.refused(slices.Repeat(refused, 32))
	ln.accepted(t.Context(), slices.Repeat(refused, 15))
	require.Equal(t, mostInParts, ln.speed.batchSize(), "a handler has refused one lately")
	ln.accepted(t.Context(), refused)
	require.Equal(t, c.Config.Batch, ln.speed.batchSize())
}

// While every delivery fails there is one worker, which tries one at a time, and nobody waits for it, until one succeeds.
func TestOneWorkerWhileEveryDeliveryFails(t *testing.T) {
	t.Parallel()
	ln := idleLane(&handler.Consumer{Config: handler.Config{}.WithDefaults()}, 4)
	for range 19 {
		ln.observe(t.Context(), flow.Failed, true, errors.New("no"))
	}
	require.Equal(t, 4, ln.speed.mostWorkers())
	require.False(t, ln.speed.spill.active)
	ln.observe(t.Context(), flow.Failed, true, errors.New("no"))
	require.Equal(t, 1, ln.speed.mostWorkers())
	require.Equal(t, 1, ln.speed.batchSize())
	require.True(t, ln.speed.spill.active, "what comes in waits in the consume log")
	require.Less(t, ln.speed.depth(len(ln.queue.ds)), 100, "few are in hand")
	ln.accepted(t.Context(), []*delivery{{}})
	require.Equal(t, 4, ln.speed.mostWorkers())
}

// Retries that fail leave what comes in alone: it is run at once, before the next retry.
func TestFailedRetriesDoNotMakeALaneFallBehind(t *testing.T) {
	t.Parallel()
	ln := idleLane(&handler.Consumer{Config: handler.Config{}.WithDefaults()}, 4)
	for range 100 {
		ln.observe(t.Context(), flow.Failed, false, errors.New("no"))
	}
	require.False(t, ln.speed.spill.active)
	of := func(aggregate string) handler.Message {
		return handler.Message{Event: &eventrow.Row{AggregateID: aggregate}}
	}
	retry := &delivery{kind: claim.Retries, Message: of("1"), lease: &store.Leased{Before: store.Failed}}
	mate, never := &delivery{Message: of("1")}, &delivery{Message: of("2")}
	ln.queue.ds = []*delivery{retry, mate, never}
	ln.queue.turns.Take(claim.New) // it would be the turn of the retry
	for _, want := range []*delivery{never, retry} {
		require.Equal(t, []*delivery{want}, ln.queue.take(ln.speed.batchSize(), ln.speed.batchSize(), ln.speed.isHalfOpen()))
	}
	require.Empty(t, ln.queue.take(1, 1, ln.speed.isHalfOpen()), "it waits for the one before it")
}

// A full lane falls behind those that are idle if its handler is slower than theirs, or if they have waited
// for many of its batches: not because everything is slow.
func TestWhenALaneFallsBehind(t *testing.T) {
	t.Parallel()
	const quick = 200 * time.Microsecond
	for name, c := range map[string]struct {
		each, others, turn time.Duration
		overhead           time.Duration
		looks              int
		passed             time.Duration // between two looks, a third of the spillAfter if 0
		behind             bool
	}{
		"its handler takes as long as others": {each: quick, others: quick, turn: 20 * time.Millisecond, looks: 1},
		"its handler is slow":                 {each: 20 * time.Millisecond, others: quick, turn: 80 * time.Millisecond, looks: 1, behind: true},
		"all handlers are slow": {
			each: 20 * time.Millisecond, others: 10 * time.Millisecond, turn: 80 * time.Millisecond,
			looks: 1,
		},
		"its handler is slower, but not slow": {each: 10 * quick, others: quick, turn: 20 * time.Millisecond, looks: 1},
		"its handler is slow for a moment": {
			each: 20 * time.Millisecond, others: quick, turn: 20 * time.Millisecond,
			passed: slowSpillAfter / 2, looks: 1,
		},
		"everything is slow": {
			each: 20 * time.Millisecond, others: quick, turn: 80 * time.Millisecond,
			overhead: 30 * time.Millisecond, looks: 1,
		},
		"others wait for too long":         {each: quick, others: quick, turn: 20 * time.Millisecond, looks: 4, behind: true},
		"its transactions are slow":        {each: quick, others: quick, turn: time.Second, looks: 4},
		"they wait for too long for those": {each: quick, others: quick, turn: time.Second, looks: 61, behind: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := handler.Config{}.WithDefaults()
			ln := idleLane(&handler.Consumer{Config: cfg}, 4)
			ln.queue.ds, ln.speed.times = queueOf(150), times{usual: c.each, turn: c.turn, overhead: c.overhead}
			for range c.looks {
				ln.speed.spill.looked = time.Now().Add(-cmp.Or(c.passed, spillAfter/3))
				ln.room(idleLanes{true, c.others}, true)
			}
			require.Equal(t, c.behind, ln.speed.spill.active)
		})
	}
}

// A full lane is no reason for the others to have nothing to do, until it is known whether it is slow.
func TestRoomForThoseThatAreStarved(t *testing.T) {
	t.Parallel()
	cfg := handler.Config{}.WithDefaults()
	ln := idleLane(&handler.Consumer{Config: cfg}, 4)
	ln.queue.ds, ln.speed.spill.looked = queueOf(200), time.Now()
	free, window := ln.room(idleLanes{}, false)
	require.Equal(t, 0, free)
	require.Equal(t, 200, window)
	free, window = ln.room(idleLanes{}, true)
	require.Equal(t, cfg.Queue*4/5-200, free)
	require.Equal(t, 200, window)
	for each, most := range map[time.Duration]int{time.Millisecond: cfg.Queue * 4 / 5, 10 * time.Millisecond: 400, time.Second: narrowest} {
		ln.speed.prefetch = flow.Prefetch{}
		ln.speed.prefetch.Observe(1, each)
		free, window = ln.room(idleLanes{}, true)
		require.Equal(t, most-200, free, "no more than start within a second")
		require.Equal(t, min(200, most), window)
	}
	require.False(t, ln.speed.spill.active)
	require.False(t, ln.drained())
	ln.speed.spill.active = true
	require.True(t, ln.drained(), "nobody waits for it")
}

// The first transactions of a connection take long. That a handler takes longer is to be seen soon after.
func TestOverheadOfATransactionFallsSoon(t *testing.T) {
	t.Parallel()
	ln := &lane{}
	for _, took := range []int{150, 150, 150, 150, 4, 4, 4} {
		ln.speed.times.observeOverhead(time.Duration(took) * time.Millisecond)
	}
	require.Less(t, ln.speed.times.overhead, 15*time.Millisecond)
	ln.speed.times.observeOverhead(time.Second)
	require.Less(t, ln.speed.times.overhead, 150*time.Millisecond, "one that is slow is not all of them")
}

// One slow call of a handler does not make it a slow one, and how long its transaction takes does not at all.
func TestUsualTimeOfAHandler(t *testing.T) {
	t.Parallel()
	ln := &lane{}
	for range 10 {
		ln.speed.times.observeCall(time.Millisecond)
	}
	ln.speed.times.observeCall(9 * time.Millisecond)
	require.Equal(t, 7*time.Millisecond, ln.speed.times.perEvent, "its next batch is smaller at once")
	require.Equal(t, 1250*time.Microsecond, ln.speed.times.usual)
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
