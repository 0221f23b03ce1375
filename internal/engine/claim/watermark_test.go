package claim_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/store"
)

// noon is some moment.
var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

const mostRest = 250 * time.Millisecond

// Claims that find little but what is blocked by the events of other instances take a part of the time only,
// a larger one if there is nothing to do, and the answer says when to ask again.
func TestClaimsRestWhileOthersAreInTheWay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		took   time.Duration
		isIdle bool
		rest   time.Duration
	}{
		{time.Millisecond, false, claim.BlockedFor},
		{50 * time.Millisecond, false, 200 * time.Millisecond},
		{time.Second, false, mostRest},
		{time.Millisecond, true, claim.BlockedFor},
		{60 * time.Millisecond, true, 60 * time.Millisecond},
		{time.Second, true, mostRest},
	} {
		var m claim.Watermark
		require.Zero(t, m.Rests(noon, c.isIdle))
		now := noon.Add(m.Rest(noon, c.took))
		for again := m.Rests(now, c.isIdle); again > 0; again = m.Rests(now, c.isIdle) {
			require.LessOrEqual(t, again, claim.BlockedFor)
			now = now.Add(again)
		}
		require.Equal(t, c.rest, now.Sub(noon), "%+v", c)
	}
}

// An instance that runs out of work while it rests looks again soon.
func TestRestEndsWithTheWork(t *testing.T) {
	t.Parallel()
	var m claim.Watermark
	now := noon.Add(m.Rest(noon, 50*time.Millisecond))
	for isIdle := false; m.Rests(now, isIdle) > 0; isIdle = now.Sub(noon) >= 90*time.Millisecond {
		now = now.Add(m.Rests(now, isIdle))
	}
	require.Equal(t, 4*claim.BlockedFor, now.Sub(noon))
}

// A rest is no reason to start at the start again: what was blocked there has hardly moved.
func TestClaimAfterARestGoesOn(t *testing.T) {
	t.Parallel()
	var m claim.Watermark
	m.Observe(noon, upTo(5_000_000), 2*time.Millisecond, false)
	now := noon.Add(m.Rest(noon, 2*time.Millisecond))
	require.NotZero(t, m.Start(now, false))
	require.Zero(t, m.Start(now, true))
	require.Zero(t, m.Start(now.Add(20*time.Millisecond), false), "claims from the start take a tenth of the time")
}

// A claim from the start that finds it blocked does not lose how far others had got.
func TestBlockedStartLosesNothing(t *testing.T) {
	t.Parallel()
	var m claim.Watermark
	blocked := func(due int64) claim.Result {
		r := upTo(due)
		r.Seen = 5
		return r
	}
	m.Observe(noon, upTo(5_000_000), time.Minute, false)
	reached := m.Start(noon, false)
	m.Observe(noon, blocked(3_000_000), time.Minute, true)
	require.Equal(t, reached, m.Start(noon, false))
	require.True(t, m.IsCrowded())
	m.Observe(noon, blocked(7_000_000), time.Minute, false)
	require.True(t, reached.IsBefore(m.Start(noon, false)))
	require.False(t, m.IsCrowded())
	m.Observe(noon, upTo(3_000_000), time.Minute, true)
	require.True(t, m.Start(noon, false).IsBefore(reached), "it is not blocked any more")
	require.False(t, m.IsCrowded())
}

// upTo is a claim from the start that has found an event that is due then, the last one.
func upTo(due int64) claim.Result {
	return claim.Result{Rows: make([]eventrow.Row, 1), Seen: 1, Last: store.Cursor{DueAt: due, ID: 1}}
}

// A claim that finds nothing but what must wait is gone on behind it, however many are due at that moment; otherwise
// the next one looks at the last moment again.
func TestPlaceOfTheNextClaim(t *testing.T) {
	t.Parallel()
	var m claim.Watermark
	for _, c := range []struct {
		r    claim.Result
		want store.Cursor
	}{
		{claim.Result{Seen: 5, IsFull: true, Last: store.Cursor{DueAt: 7_000_000, ID: 44}}, store.Cursor{DueAt: 7_000_000, ID: 44}},
		{claim.Result{}, store.Cursor{DueAt: 7_000_000, ID: 44}},
		{claim.Result{Seen: 5, From: store.Cursor{DueAt: 1}, Last: store.Cursor{DueAt: 7_000_000, ID: 49}}, store.Cursor{DueAt: 6_999_000}},
		{claim.Result{Seen: 5, IsFull: true, Last: store.Cursor{DueAt: store.NoTime, ID: 3}}, store.Cursor{DueAt: store.NoTime, ID: 3}},
	} {
		m.Observe(noon, c.r, time.Hour, false)
		require.Equal(t, c.want, m.Start(noon, false), "%+v", c.r)
	}
}
