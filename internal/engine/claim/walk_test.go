package claim_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/store"
)

// Events are blocked when some of what was looked at is left alone, mostly when more than half of it is.
func TestWhatIsInTheWayOfAClaim(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		seen, leased      int
		blocked, inTheWay bool
	}{{0, 0, false, false}, {100, 100, false, false}, {100, 50, true, false}, {100, 49, true, true}, {100, 0, true, true}} {
		got := claim.Result{Seen: c.seen, Rows: make([]eventrow.Row, c.leased)}
		require.Equal(t, c.blocked, got.IsBlocked(), "%+v", c)
		require.Equal(t, c.inTheWay, got.IsMostlyBlocked(), "%+v", c)
	}
}

// What is free is before the first event of its aggregate that others work on.
func TestOnlyWhatIsBeforeTheWorkOfOthersIsFree(t *testing.T) {
	t.Parallel()
	rows := []eventrow.Row{
		{OutboxID: 5, AggregateID: "1"},
		{OutboxID: 7, AggregateID: "1"},
		{OutboxID: 9, AggregateID: "1"},
		{OutboxID: 9, AggregateID: "2"},
		{OutboxID: 9, TenantID: 1, AggregateID: "1"},
	}
	require.Equal(t, []int{0, 3, 4}, claim.NotBehind(rows, map[store.Aggregate]int64{{ID: "1"}: 7}))
	require.Equal(t, []int{0, 1, 2, 3, 4}, claim.NotBehind(rows, nil))
	require.Empty(t, claim.NotBehind(nil, nil))
}

// result is a claim that has seen and leased so many events, up to an event.
func result(kind claim.Kind, seen, leased int, last store.Cursor, isFull bool) claim.Result {
	return claim.Result{Kind: kind, Rows: make([]eventrow.Row, leased), Seen: seen, Last: last, IsFull: isFull}
}

// A walk goes on while claims are full, and ends where nothing more is due.
func TestWalkGoesOnWhileMoreIsDue(t *testing.T) {
	t.Parallel()
	here := store.Cursor{DueAt: 5, ID: 5}
	for _, c := range []struct {
		name string
		r    claim.Result
		more bool
		at   store.Cursor // where the next claim starts
	}{
		{"a full claim", result(claim.Expired, 10, 10, here, true), true, store.Cursor{}},
		{"a full claim of which half is blocked", result(claim.Expired, 10, 5, here, true), true, store.Cursor{}},
		{"the last ones", result(claim.Expired, 3, 3, here, false), false, store.Cursor{}},
		{"nothing", result(claim.Expired, 0, 0, store.Cursor{}, false), false, store.Cursor{}},
		{"all are blocked: the next look goes on behind them", result(claim.Expired, 10, 0, here, true), false, here},
		{"delayed ones that must wait", result(claim.Scheduled, 10, 0, store.Cursor{}, true), true, store.Cursor{}},
	} {
		var w claim.Walk
		var m claim.Watermark
		more, again := w.GoOn(noon, c.r, time.Millisecond, &m)
		require.Equal(t, c.more, more, c.name)
		require.Zero(t, again, c.name)
		require.Equal(t, c.at, w.Start(noon, c.r.Kind, &m), c.name)
	}
}

// A walk that has come behind what is blocked begins again where nothing more is due.
func TestWalkBeginsAgain(t *testing.T) {
	t.Parallel()
	var w claim.Walk
	var m claim.Watermark
	behind := store.Cursor{DueAt: 5, ID: 5}
	w.GoOn(noon, result(claim.Expired, 10, 0, behind, true), 0, &m)
	r := result(claim.Expired, 0, 0, store.Cursor{}, false)
	r.From = w.Start(noon, claim.Expired, &m)
	more, _ := w.GoOn(noon, r, 0, &m)
	require.False(t, more)
	require.Zero(t, w.Start(noon, claim.Expired, &m))
}

// Claims of NEW events that find little but what is blocked rest. Others end with a claim from the start, now or when
// that takes a tenth of the time.
func TestWalkOfNewEvents(t *testing.T) {
	t.Parallel()
	var w claim.Walk
	var m claim.Watermark
	last := store.Cursor{DueAt: 5_000_000, ID: 5}
	more, again := w.GoOn(noon, result(claim.New, 10, 4, last, true), time.Millisecond, &m)
	require.False(t, more)
	require.Equal(t, claim.BlockedFor, again)

	m = claim.Watermark{}
	m.Observe(noon, result(claim.New, 10, 10, last, true), 10*time.Millisecond, false) // from the start
	from := m.Start(noon, false)
	require.NotZero(t, from)
	r := result(claim.New, 3, 3, last, false)
	r.From = from
	more, again = w.GoOn(noon, r, time.Millisecond, &m)
	require.False(t, more)
	require.Equal(t, 100*time.Millisecond, again)
	more, again = w.GoOn(noon.Add(100*time.Millisecond), r, time.Millisecond, &m)
	require.True(t, more)
	require.Zero(t, again)
	require.Zero(t, w.Start(noon, claim.New, &m), "from the start, before it says that nothing is due")
	more, again = w.GoOn(noon, result(claim.New, 0, 0, store.Cursor{}, false), time.Millisecond, &m)
	require.False(t, more)
	require.Zero(t, again)
	_, again = w.GoOn(noon, result(claim.New, 10, 6, last, false), time.Millisecond, &m)
	require.Equal(t, claim.BlockedFor, again, "some are blocked")
}

// A thorough walk gets past what is blocked, and starts again until it has found nothing from the start to the end.
func TestThoroughWalkSeesEverything(t *testing.T) {
	t.Parallel()
	w := claim.ThoroughWalk()
	var m claim.Watermark
	step := func(want bool, seen, leased int, last store.Cursor, isFull bool) {
		t.Helper()
		r := result(claim.New, seen, leased, last, isFull)
		r.From = w.Start(noon, claim.New, &m)
		more, again := w.GoOn(noon, r, time.Millisecond, &m)
		require.Equal(t, want, more)
		require.Zero(t, again)
	}
	require.True(t, w.IsThorough())
	step(true, 10, 0, store.Cursor{DueAt: 5, ID: 5}, true) // all blocked: behind them
	require.Equal(t, store.Cursor{DueAt: 5, ID: 5}, w.Start(noon, claim.New, &m))
	step(true, 10, 10, store.Cursor{DueAt: 6, ID: 9}, true)
	step(true, 2, 2, store.Cursor{DueAt: 7, ID: 11}, false) // the end, but it has found some
	require.Zero(t, w.Start(noon, claim.New, &m))
	step(true, 10, 0, store.Cursor{DueAt: 5, ID: 5}, true)
	require.True(t, w.IsThorough())
	step(false, 0, 0, store.Cursor{}, false)
	require.False(t, w.IsThorough())
	require.Zero(t, w.Start(noon, claim.New, &m))

	w = claim.ThoroughWalk()
	w.Relax()
	require.False(t, w.IsThorough())
}
