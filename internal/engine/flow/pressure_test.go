package flow

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
			p.Recover()
		}
		return limit - p.Fewer()
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
	require.Zero(t, p.Fewer())
}

// An error of the database halves the workers; transactions without trouble bring them back.
func TestPressureHalvesAfterErrors(t *testing.T) {
	t.Parallel()
	var p Pressure
	p.Halve(4)
	require.Equal(t, 2, 4-p.Fewer())
	for range 3 {
		p.Halve(4)
	}
	require.Equal(t, 1, 4-p.Fewer(), "never the last one")
	for range 3 * recoverAfter {
		p.Recover()
	}
	require.Zero(t, p.Fewer())
}
