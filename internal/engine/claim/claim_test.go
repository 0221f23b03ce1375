package claim_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/bluecone-go/bluecone/internal/engine/claim"
)

// The kind whose last turn is the longest ago is next, of those that are asked for.
func TestTurnsGoRound(t *testing.T) {
	t.Parallel()
	var turns claim.Turns
	_, ok := turns.Next(0)
	require.False(t, ok)
	some := claim.Of(claim.New, claim.Expired, claim.Retries)
	var order []claim.Kind
	for range 6 {
		k, ok := turns.Next(some)
		require.True(t, ok)
		turns.Take(k)
		order = append(order, k)
	}
	require.Equal(t, []claim.Kind{claim.New, claim.Expired, claim.Retries, claim.New, claim.Expired, claim.Retries}, order)
	k, _ := turns.Next(claim.Of(claim.New, claim.Scheduled))
	require.Equal(t, claim.Scheduled, k, "it never had a turn")
	k, _ = turns.Next(some.Without(claim.New))
	require.Equal(t, claim.Expired, k)
}

// Whatever else is due, and for how long: a kind that is due and ready has its turn before any other kind has two.
func TestNoKindStarves(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var a claim.Agenda
		passed := make(map[claim.Kind]map[claim.Kind]int) // turns of others since a kind is due without a break
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			a.Add(time.Time{}, claim.Kinds(rapid.IntRange(0, int(claim.All)).Draw(t, "found")))
			for k := range claim.Kind(6) {
				if a.Due().Has(k) && passed[k] == nil {
					passed[k] = make(map[claim.Kind]int)
				}
			}
			k, ok := a.Next(claim.All)
			require.Equal(t, a.Due() != 0, ok)
			if !ok {
				continue
			}
			for other, by := range passed {
				if by != nil && other != k {
					by[k]++
					require.LessOrEqual(t, by[k], 1, "kind %d has waited for two turns of kind %d", other, k)
				}
			}
			passed[k] = nil
			a.Taken(k, rapid.Bool().Draw(t, "more"))
		}
	})
}

// What is not ready is passed over, and still due.
func TestAgendaPassesOverWhatIsNotReady(t *testing.T) {
	t.Parallel()
	var a claim.Agenda
	a.Add(time.Time{}, claim.Of(claim.New, claim.Scheduled))
	k, ok := a.Next(claim.All.Without(claim.New))
	require.True(t, ok)
	require.Equal(t, claim.Scheduled, k)
	a.Taken(k, false)
	_, ok = a.Next(claim.All.Without(claim.New))
	require.False(t, ok)
	require.Equal(t, claim.Of(claim.New), a.Due())
}

// A publisher looks after a quarter of a second when it had something to do, seldom when not, and looks take at most a
// tenth of the time, unless that would be more seldom than when it is idle.
func TestWhenToLookAgain(t *testing.T) {
	t.Parallel()
	const idle = time.Second
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var a claim.Agenda
	require.False(t, a.NextLook(idle).After(now), "at once")
	for _, c := range []struct {
		took time.Duration
		due  claim.Kinds
		next time.Duration
	}{
		{time.Millisecond, 0, idle},
		{time.Millisecond, claim.Of(claim.Expired), claim.Often},
		{40 * time.Millisecond, claim.Of(claim.Expired), 400 * time.Millisecond},
		{time.Minute, claim.Of(claim.Expired), idle},
	} {
		a = claim.Agenda{}
		a.Looked(now.Add(-c.took), now, c.due)
		require.Equal(t, c.next, a.NextLook(idle).Sub(now), "%+v", c)
	}
	a = claim.Agenda{}
	a.Looked(now, now, 0)
	later := now.Add(600 * time.Millisecond)
	a.Add(later, claim.Of(claim.New)) // saved here since
	a.Worked(later.Add(time.Millisecond))
	require.Equal(t, claim.Often, a.NextLook(idle).Sub(later))
	a.Taken(claim.New, false)
	require.Equal(t, claim.Often, a.NextLook(idle).Sub(later))
	a.Looked(later, later, 0)
	require.Equal(t, idle, a.NextLook(idle).Sub(later), "the work is done")
	a.Worked(later.Add(900 * time.Millisecond))
	require.Equal(t, idle, a.NextLook(idle).Sub(later), "no later than without work")
	a.Looked(now, now, claim.Of(claim.New))
	require.Equal(t, 50*time.Millisecond, a.NextLook(50*time.Millisecond).Sub(now), "an idle interval that is shorter counts")
}
