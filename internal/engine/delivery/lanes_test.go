package delivery

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/health"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/store"
)

// blocking is a handler that waits until the test lets it go on, or its context ends.
func blocking(begun, goOn chan struct{}) answers {
	return func(ctx context.Context, _ bun.Tx, _ *handler.Message) error {
		begun <- struct{}{}
		select {
		case <-goOn:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// The room of the lanes is that of the fullest one; one that is paused, behind, or for replays puts no limit on the others.
func TestRoomIsThatOfTheFullestLane(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	for _, name := range []string{"A", "B", "P"} {
		h.consumer(name, handler.Config{Replayable: name == "A"}, nil)
	}
	h.open().pause("P", true)
	a, b := h.lanes.lanes["A"], h.lanes.lanes["B"]
	now, most := h.lanes.Room()
	require.Equal(t, []int{800, 200}, []int{now, most}, "all are empty: each takes more than its window for the others")
	a.queue.ds = queueOf(50)
	require.False(t, h.lanes.QueuesAreEmpty())
	b.queue.ds = queueOf(150)
	now, most = h.lanes.Room()
	require.Equal(t, []int{50, 200}, []int{now, most})
	b.speed.Spill.Begin()
	now, most = h.lanes.Room()
	require.Equal(t, []int{150, 200}, []int{now, most}, "nobody waits for what is behind")
	now, most = h.lanes.RoomFor(claim.Scheduled)
	require.Equal(t, []int{100, 100}, []int{now, most})
	a.queue.ds = append(a.queue.ds, waiting(claim.Scheduled, 9, "9"))
	now, _ = h.lanes.RoomFor(claim.Scheduled)
	require.Equal(t, 99, now)
	a.speed.Spill.Begin()
	now, most = h.lanes.RoomFor(claim.Scheduled)
	require.Equal(t, []int{math.MaxInt, math.MaxInt}, []int{now, most})
	require.True(t, h.lanes.QueuesAreEmpty())
	require.Equal(t, 1+3*(1000+500)+1000+10, h.lanes.Most(), "on SQLite each has one worker")
	a.queue.ds, b.queue.ds = nil, nil
}

// A lane takes as many events of another kind than NEW as it keeps room for, and as many new ones as its queue holds.
func TestLaneTakesWhatItHasRoomFor(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	begun, goOn := make(chan struct{}, 20), make(chan struct{})
	h.consumer("C", handler.Config{Queue: 10, Batch: 1}, blocking(begun, goOn))
	h.open()
	var events []*delivery
	for i := range 14 {
		events = append(events, h.event(fmt.Sprint(i), fmt.Sprint(i)))
	}
	require.Equal(t, 1, h.push("C", events[:1]...))
	<-begun
	for i := range events {
		if i > 10 {
			events[i].kind = claim.Scheduled
		}
	}
	require.Equal(t, 1, h.push("C", events[11:]...), "a tenth of the queue")
	require.Equal(t, 9, h.push("C", events[1:11]...))
	require.Zero(t, h.push("C"))
	require.False(t, h.lanes.AreIdle())
	close(goOn)
	h.idle()
	require.Equal(t, 11, h.rows("C", store.Success))
	select {
	case <-h.lanes.Signals.Freed():
	default:
		t.Fatal("nobody is told that there is room")
	}
}

// A publisher offers what it has leased, and is told how it ends; a lane that is paused takes nothing.
func TestOfferedEventsAreRun(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.consumer("C", handler.Config{}, nil)
	h.open()
	d := h.event("e", "1")
	fs := settle.NewFlights(1, 1)
	f := fs.Begin(*d.Event, time.Now().Add(lease).UnixMicro(), nil)
	f.Route([]string{"C"}, 1)
	f.Done(settle.Succeeded) // the dispatch
	offered := []Offered{{Flight: f, Kind: claim.New}}
	h.pause("C", true)
	require.Zero(t, h.lanes.Offer("C", offered))
	h.pause("C", false)
	require.Equal(t, 1, h.lanes.Offer("C", offered))
	h.idle()
	over := make(chan struct{})
	close(over)
	settle.NewSettling(settle.SettlingConfig{
		DB: h.db, Settler: settle.NewSettler(h.db, h.d, prepared.New(h.db), false), Meter: settle.NewMeter(h.regs.Metrics, h.regs.Logger),
		Owner: me, Lease: lease, Flights: fs, Outage: h.cfg.Outage, Budget: h.cfg.Budget,
	}).Run(over) // it settles what has ended
	require.Equal(t, "SENT", h.status("e"))
	require.Equal(t, row{store.Success, 1, ""}, h.row("C", "e"))
}

// Closing the lanes gives back what has not started, new events and waiting deliveries, and waits for what runs.
func TestQuiesceGivesBackWhatHasNotStarted(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	begun, goOn := make(chan struct{}, 20), make(chan struct{})
	h.external("C", handler.Config{Concurrency: 1}, blocking(begun, goOn))
	h.open()
	h.waiting("C", "w", "3")
	claimed, err := h.lanes.lanes["C"].retries.claim(t.Context(), claim.Limits{Pending: 1}, 0, nil)
	require.NoError(t, err)
	w := h.claimed("w")
	require.Equal(t, 2, h.push("C", h.event("a", "1"), h.event("b", "2")))
	<-begun
	ln := h.lanes.lanes["C"]
	require.True(t, ln.readmit([]*delivery{fromLog(claimed.Deliveries[0], w.Event)}))
	h.lanes.Quiesce(t.Context())
	require.Equal(t, settle.Abandoned, h.outcome("b"))
	close(goOn)
	require.NoError(t, h.lanes.Drain(t.Context()))
	require.Equal(t, settle.Succeeded, h.outcome("a"))
	require.Equal(t, row{store.Pending, 0, ""}, h.row("C", "w"))
	require.Zero(t, h.push("C", h.event("c", "4")))
	require.False(t, ln.readmit(nil))
}

// What the end of the lanes gives back waits for its turn among SQLite's writers, not for long, and for nothing that has not begun.
func TestQuiesceTakesItsTurn(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.consumer("C", handler.Config{}, nil)
	h.consumer("D", handler.Config{}, nil)
	h.open()
	for _, name := range []string{"C", "D"} {
		h.waiting(name, name, name)
		ln := h.lanes.lanes[name]
		claimed, err := ln.retries.claim(t.Context(), claim.Limits{Pending: 1}, 0, nil)
		require.NoError(t, err)
		ln.mu.Lock()
		ln.queue.ds = []*delivery{fromLog(claimed.Deliveries[0], h.claimed(name).Event)}
		ln.mu.Unlock()
	}
	statements := 0
	h.db.AddQueryHook(before(func(ctx context.Context, query string) { //nolint:staticcheck // the engine's own statements are to be seen
		if !strings.HasPrefix(query, "UPDATE") {
			return
		}
		statements++
		_, isLimited := ctx.Deadline()
		assert.True(t, isLimited)
		for name, ln := range h.lanes.lanes {
			assert.True(t, ln.isClosed(), name)
		}
		soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		assert.Error(t, h.cfg.Budget.Write(soon, func() error { return nil }), "it has its turn")
	}))
	h.lanes.Quiesce(context.Background())
	require.Equal(t, 2, statements, "one for each lane")
	require.Equal(t, row{store.Pending, 0, ""}, h.row("C", "C"))
}

// before is called with each statement, before it is sent.
type before func(ctx context.Context, query string)

func (b before) BeforeQuery(ctx context.Context, e *bun.QueryEvent) context.Context {
	b(ctx, e.Query)
	return ctx
}

func (before) AfterQuery(context.Context, *bun.QueryEvent) {}

// When the drain time is over, what runs is canceled, and nothing of it has happened.
func TestDrainCancelsWhatRunsTooLong(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	begun := make(chan struct{}, 1)
	h.consumer("C", handler.Config{}, blocking(begun, nil))
	h.open()
	require.Equal(t, 1, h.push("C", h.event("e", "1")))
	<-begun
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, h.lanes.Drain(ended), errDrained)
	require.Equal(t, settle.Abandoned, h.outcome("e"))
	require.Zero(t, h.effects("e"))
}

// A consumer with a rate starts no more than that: the rest waits for tokens.
func TestRateIsKept(t *testing.T) {
	t.Parallel()
	for rate, want := range map[float64]int{0.001: 1, 50: 6} { // a token in a quarter of an hour, or soon
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			h.consumer("C", handler.Config{Rate: rate}, nil)
			h.open()
			var events []*delivery
			for i := range 6 {
				events = append(events, h.event(fmt.Sprint(i), fmt.Sprint(i)))
			}
			require.Equal(t, 6, h.push("C", events...))
			ln := h.lanes.lanes["C"]
			h.eventually(func() bool {
				ln.mu.Lock()
				defer ln.mu.Unlock()
				return ln.speed.Workers.Running() == 0 && len(ln.queue.ds) == 6-want
			}, "what may start has run")
			require.Equal(t, want, h.rows("C", store.Success))
		})
	}
}

// A database that does not answer for the length of a lease is taken for one that is away: the delivery is put off.
func TestSilentDatabaseEndsATransaction(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	require.Equal(t, errNo, silenced(ctx, errNo))
	cancel(health.ErrSilent)
	require.Equal(t, health.ErrSilent, silenced(ctx, errNo))
	require.True(t, isOutage(&infraError{err: health.ErrSilent}))
	require.False(t, isOutage(health.ErrSilent), "that is what a handler answers")
}

// A lane that was looked at is woken by one that was not yet: then they are not idle. Who waits for them would give back what the
// first one claims.
func TestLanesAreNotIdleWhileOneWakesAnother(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.consumer("A", handler.Config{}, nil)
	h.consumer("B", handler.Config{}, nil)
	h.open()
	a, b := h.lanes.lanes["A"], h.lanes.lanes["B"]
	for range 100 {
		for range cap(h.lanes.claims) {
			h.lanes.claims <- struct{}{} // whoever is woken has to wait for its turn to claim
		}
		b.mu.Lock()
		isIdle := make(chan bool)
		go func() { isIdle <- h.lanes.AreIdle() }()
		for range 100 {
			runtime.Gosched() // it has looked at A, half of the times, and waits for B
		}
		a.retries.refill()
		b.mu.Unlock()
		is := <-isIdle
		for range cap(h.lanes.claims) {
			<-h.lanes.claims
		}
		h.idle()
		require.False(t, is)
	}
}
