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

// A database that answers the last look ever more slowly loses workers, down to one, and gets
// them back when it is quick again.
func TestPaceFollowsTheDatabase(t *testing.T) {
	t.Parallel()
	const limit, quick, slow = 4, 300 * time.Microsecond, 20 * time.Millisecond
	var p pace
	looks := func(n int, took time.Duration) int {
		for range n {
			p.feel(took, limit)
			p.bear()
		}
		return limit - p.eased
	}
	require.Equal(t, 4, looks(50, quick))
	require.Equal(t, 4, looks(50, 5*quick), "load is not strain")
	require.Equal(t, 1, looks(50, slow))
	require.Equal(t, 4, looks(200, quick))
	require.Equal(t, 4, looks(1, slow), "one slow look is not strain")
}

// A remote database is slow to answer, but not strained.
func TestPaceKnowsADistantDatabase(t *testing.T) {
	t.Parallel()
	var p pace
	for range 100 {
		p.feel(30*time.Millisecond, 4)
	}
	require.Zero(t, p.eased)
}

// An error of the database halves the workers; transactions without trouble bring them back.
func TestPaceEasesAfterErrors(t *testing.T) {
	t.Parallel()
	var p pace
	p.ease(4)
	require.Equal(t, 2, 4-p.eased)
	for range 3 {
		p.ease(4)
	}
	require.Equal(t, 1, 4-p.eased, "never the last one")
	for range 3 * easeAfter {
		p.bear()
	}
	require.Zero(t, p.eased)
}

// A batch is what fits into the time box, which a backlog and a slow machine stretch.
func TestBatchSizeFollowsTimes(t *testing.T) {
	t.Parallel()
	c := &handler.Consumer{Config: handler.Config{}.WithDefaults()}
	ln := &lane{retries: new(retryQueue), c: c, window: widest(c)}
	require.Equal(t, firstBatch, ln.batchSize(), "who knows")
	ln.observeTime(time.Millisecond)
	require.Equal(t, 20, ln.batchSize())
	ln.queue = queueOf(ln.window / 2)
	ln.notice()
	require.Equal(t, 20, ln.batchSize(), "nothing to speak of")
	ln.retries.more = claim.Of(claim.Deliveries)
	ln.notice()
	require.Equal(t, 60, ln.batchSize(), "a backlog in the consume log, of which the queue never holds much")
	ln.retries.more, ln.backlog = 0, false
	ln.queue = queueOf(ln.window)
	ln.notice()
	require.Equal(t, 60, ln.batchSize(), "a backlog")
	ln.queue = ln.queue[:1]
	ln.notice()
	require.Equal(t, 60, ln.batchSize(), "until it has been worked off")
	ln.perEvent = 10 * time.Millisecond
	require.Equal(t, 6, ln.batchSize())
	ln.overhead = 50 * time.Millisecond
	require.Equal(t, 40, ln.batchSize(), "a transaction costs more than its box")
	ln.perEvent = time.Minute
	require.Equal(t, 1, ln.batchSize())
	ln.perEvent = time.Microsecond
	require.Equal(t, c.Config.Batch, ln.batchSize())
	refused := []*delivery{{}}
	ln.refused(slices.Repeat(refused, 32))
	ln.accepted(t.Context(), slices.Repeat(refused, 15))
	require.Equal(t, mostWary, ln.batchSize(), "a handler has refused one lately")
	ln.accepted(t.Context(), refused)
	require.Equal(t, c.Config.Batch, ln.batchSize())
}

// While every delivery fails there is one worker, which tries one at a time, and nobody waits for it, until one succeeds.
func TestOneWorkerWhileEveryDeliveryFails(t *testing.T) {
	t.Parallel()
	ln := &lane{retries: new(retryQueue), c: &handler.Consumer{Config: handler.Config{}.WithDefaults()}, limit: 4}
	for range 19 {
		ln.observe(t.Context(), flow.Failed, true, errors.New("no"))
	}
	require.Equal(t, 4, ln.mostWorkers())
	require.False(t, ln.behind)
	ln.observe(t.Context(), flow.Failed, true, errors.New("no"))
	require.Equal(t, 1, ln.mostWorkers())
	require.Equal(t, 1, ln.batchSize())
	require.True(t, ln.behind, "what comes in waits in the consume log")
	require.Less(t, ln.depth(), 100, "few are in hand")
	ln.accepted(t.Context(), []*delivery{{}})
	require.Equal(t, 4, ln.mostWorkers())
}

// Retries that fail leave what comes in alone: it is run at once, before the next retry.
func TestFailedRetriesDoNotMakeALaneFallBehind(t *testing.T) {
	t.Parallel()
	ln := &lane{retries: new(retryQueue), c: &handler.Consumer{Config: handler.Config{}.WithDefaults()}, limit: 4, busy: make(map[store.Aggregate]struct{})}
	for range 100 {
		ln.observe(t.Context(), flow.Failed, false, errors.New("no"))
	}
	require.False(t, ln.behind)
	of := func(aggregate string) handler.Message {
		return handler.Message{Event: &eventrow.Row{AggregateID: aggregate}}
	}
	retry := &delivery{kind: claim.Retries, Message: of("1"), lease: &store.Leased{Before: store.Failed}}
	mate, never := &delivery{Message: of("1")}, &delivery{Message: of("2")}
	ln.queue = []*delivery{retry, mate, never}
	ln.turns.Take(claim.New) // it would be the turn of the retry
	for _, want := range []*delivery{never, retry} {
		require.Equal(t, []*delivery{want}, ln.take(ln.batchSize()))
	}
	require.Empty(t, ln.take(1), "it waits for the one before it")
}

// A full lane falls behind those that are dry if its handler is slower than theirs, or if they have waited
// for many of its batches: not because everything is slow.
func TestWhenALaneFallsBehind(t *testing.T) {
	t.Parallel()
	const quick = 200 * time.Microsecond
	for name, c := range map[string]struct {
		each, others, turn time.Duration
		overhead           time.Duration
		looks              int
		passed             time.Duration // between two looks, a third of the patience if 0
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
			passed: hopeless / 2, looks: 1,
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
			ln := &lane{
				c: &handler.Consumer{Config: cfg}, l: &Lanes{host: Host{Paused: func(string) bool { return false }}},
				limit: 4, window: 200, queue: queueOf(150), usual: c.each, turn: c.turn, overhead: c.overhead,
			}
			for range c.looks {
				ln.looked = time.Now().Add(-cmp.Or(c.passed, patience/3))
				ln.room(dryLanes{true, c.others}, true)
			}
			require.Equal(t, c.behind, ln.behind)
		})
	}
}

// A full lane is no reason for the others to have nothing to do, until it is known whether it is slow.
func TestRoomForThoseThatAreStarved(t *testing.T) {
	t.Parallel()
	cfg := handler.Config{}.WithDefaults()
	ln := &lane{
		c: &handler.Consumer{Config: cfg}, l: &Lanes{host: Host{Paused: func(string) bool { return false }}},
		limit: 4, window: 200, queue: queueOf(200), looked: time.Now(),
	}
	free, window := ln.room(dryLanes{}, false)
	require.Equal(t, 0, free)
	require.Equal(t, 200, window)
	free, window = ln.room(dryLanes{}, true)
	require.Equal(t, cfg.Queue*4/5-200, free)
	require.Equal(t, 200, window)
	for each, most := range map[time.Duration]int{time.Millisecond: cfg.Queue * 4 / 5, 10 * time.Millisecond: 400, time.Second: narrowest} {
		ln.ahead = flow.Ahead{}
		ln.ahead.Observe(1, each)
		free, window = ln.room(dryLanes{}, true)
		require.Equal(t, most-200, free, "no more than start within a second")
		require.Equal(t, min(200, most), window)
	}
	require.False(t, ln.behind)
	require.False(t, ln.drained())
	ln.behind = true
	require.True(t, ln.drained(), "nobody waits for it")
}

// The first transactions of a connection take long. That a handler takes longer is to be seen soon after.
func TestOverheadOfATransactionFallsSoon(t *testing.T) {
	t.Parallel()
	ln := &lane{}
	for _, took := range []int{150, 150, 150, 150, 4, 4, 4} {
		ln.observeOverhead(time.Duration(took) * time.Millisecond)
	}
	require.Less(t, ln.overhead, 15*time.Millisecond)
	ln.observeOverhead(time.Second)
	require.Less(t, ln.overhead, 150*time.Millisecond, "one that is slow is not all of them")
}

// One slow call of a handler does not make it a slow one, and how long its transaction takes does not at all.
func TestUsualTimeOfAHandler(t *testing.T) {
	t.Parallel()
	ln := &lane{}
	for range 10 {
		ln.observeTime(time.Millisecond)
	}
	ln.observeTime(9 * time.Millisecond)
	require.Equal(t, 7*time.Millisecond, ln.perEvent, "its next batch is smaller at once")
	require.Equal(t, 1250*time.Microsecond, ln.usual)
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
