package outbox

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/store"
)

// Claims that find little but what is behind the events of other instances take a part of the time only,
// a larger one if there is nothing to do, and somebody is told when they are worth it again.
func TestClaimsRestWhileOthersAreInTheWay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		took time.Duration
		dry  bool
		rest time.Duration
	}{
		{time.Millisecond, false, blockedFor},
		{50 * time.Millisecond, false, 200 * time.Millisecond},
		{time.Second, false, restMost},
		{time.Millisecond, true, blockedFor},
		{60 * time.Millisecond, true, 60 * time.Millisecond},
		{time.Second, true, restMost},
	} {
		synctest.Test(t, func(t *testing.T) {
			var l lookout
			front := make(chan struct{}, 1)
			require.False(t, l.rests(c.dry, front))
			l.rest(c.took, front)
			began := time.Now()
			for l.rests(c.dry, front) {
				<-front
				l.waiting = false // as the loop does
			}
			require.Equal(t, c.rest, time.Since(began))
		})
	}
}

// Who runs out of work while it rests looks again soon.
func TestRestEndsWithTheWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l lookout
		front := make(chan struct{}, 1)
		l.rest(50*time.Millisecond, front)
		began := time.Now()
		for l.rests(time.Since(began) >= 90*time.Millisecond, front) {
			<-front
			l.waiting = false
		}
		require.Equal(t, 4*blockedFor, time.Since(began))
	})
}

// In the way are others when most of what was looked at is left alone.
func TestWhatIsInTheWayOfAClaim(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		seen, leased      int
		blocked, inTheWay bool
	}{{0, 0, false, false}, {100, 100, false, false}, {100, 50, true, false}, {100, 49, true, true}, {100, 0, true, true}} {
		got := claim{seen: c.seen, rows: make([]eventrow.Row, c.leased)}
		require.Equal(t, c.blocked, got.blocked(), "%+v", c)
		require.Equal(t, c.inTheWay, got.inTheWay(), "%+v", c)
	}
}

// A rest is no reason to start at the front again: what was in the way there has hardly moved.
func TestClaimAfterARestGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l lookout
		front := make(chan struct{}, 1)
		l.saw(claimedUpTo(5_000_000), 2*time.Millisecond)
		l.rest(2*time.Millisecond, front)
		<-front
		require.NotZero(t, l.from(false))
		require.Zero(t, l.from(true))
	})
}

// A claim from the front that finds it blocked does not lose how far others had got.
func TestBlockedFrontLosesNothing(t *testing.T) {
	t.Parallel()
	var l lookout
	l.saw(claimedUpTo(5_000_000), time.Millisecond)
	reached := l.low
	l.saw(claimedUpTo(3_000_000), time.Millisecond)
	l.notBefore(reached)
	require.Equal(t, reached, l.low)
	l.saw(claimedUpTo(7_000_000), time.Millisecond)
	l.notBefore(reached)
	require.True(t, reached.IsBefore(l.low))
}

// claimedUpTo is a claim from the front that has found an event that is due then, the last one.
func claimedUpTo(due int64) claim {
	return claim{rows: make([]eventrow.Row, 1), seen: 1, last: store.Cursor{DueAt: due, ID: 1}}
}

// A claim that finds nothing but what must wait is gone on behind it, however many are due at that moment; otherwise
// the next one looks at the last moment again.
func TestPlaceOfTheNextClaim(t *testing.T) {
	t.Parallel()
	var l lookout
	l.saw(claim{seen: 5, full: true, last: store.Cursor{DueAt: 7_000_000, ID: 44}}, time.Hour)
	require.Equal(t, store.Cursor{DueAt: 7_000_000, ID: 44}, l.from(false))
	l.saw(claim{seen: 5, last: store.Cursor{DueAt: 7_000_000, ID: 49}}, time.Hour)
	require.Equal(t, store.Cursor{DueAt: 6_999_000}, l.from(false))
	l.saw(claim{seen: 5, full: true, last: store.Cursor{DueAt: store.NoTime, ID: 3}}, time.Hour)
	require.Equal(t, store.Cursor{DueAt: store.NoTime, ID: 3}, l.from(false))
}
