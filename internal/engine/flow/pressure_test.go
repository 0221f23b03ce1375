package flow

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A database that answers the last look ever more slowly loses workers, down to one, and gets
// them back when it is quick again.
func TestPressureFollowsTheDatabase(t *testing.T) {
	t.Parallel()
	const limit, quick, slow = 4, 300 * time.Microsecond, 20 * time.Millisecond
	var p Pressure
	looks := func(n int, took time.Duration) int {
		for range n {
			p.Observe(took, limit)
			p.Grow()
		}
		return p.Limit(limit)
	}
	require.Equal(t, 4, looks(50, quick))
	require.Equal(t, 4, looks(50, 5*quick), "load is not strain")
	require.Equal(t, 1, looks(50, slow))
	require.Equal(t, 4, looks(200, quick))
	require.Equal(t, 4, looks(1, slow), "one slow look is not strain")
}

// A remote database is slow to answer, but not strained.
func TestPressureKnowsADistantDatabase(t *testing.T) {
	t.Parallel()
	var p Pressure
	for range 100 {
		p.Observe(30*time.Millisecond, 4)
	}
	require.Equal(t, 4, p.Limit(4))
}

// Whatever the database does, there is a worker, and no more than there may be; and when it is quick again for long enough all
// come back.
func TestPressureLeavesAWorker(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var p Pressure
		workers := rapid.IntRange(1, 16).Draw(t, "workers")
		for range rapid.IntRange(0, 100).Draw(t, "transactions") {
			if rapid.Bool().Draw(t, "commits") {
				p.Grow()
			} else {
				p.Observe(time.Duration(rapid.IntRange(1, 100_000).Draw(t, "µs"))*time.Microsecond, workers)
			}
			require.GreaterOrEqual(t, p.Limit(workers), 1)
			require.LessOrEqual(t, p.Limit(workers), workers)
		}
		for range 100 + workers*recoverAfter {
			p.Observe(time.Microsecond, workers)
			p.Grow()
		}
		require.Equal(t, workers, p.Limit(workers))
	})
}
