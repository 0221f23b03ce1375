package flow

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The first transactions of a connection take long. That a handler takes longer is to be seen soon after.
func TestOverheadOfATransactionFallsSoon(t *testing.T) {
	t.Parallel()
	var times Times
	for _, took := range []int{150, 150, 150, 150, 4, 4, 4} {
		times.ObserveOverhead(time.Duration(took) * time.Millisecond)
	}
	require.Less(t, times.overhead, 15*time.Millisecond)
	times.ObserveOverhead(time.Second)
	require.Less(t, times.overhead, 150*time.Millisecond, "one that is slow is not all of them")
}

// One slow call of a handler does not make it a slow one, and how long its transaction takes does not at all.
func TestUsualTimeOfAHandler(t *testing.T) {
	t.Parallel()
	var times Times
	require.Zero(t, times.Usual())
	for range 10 {
		times.ObserveCall(time.Millisecond)
		times.ObserveOverhead(time.Second)
		times.ObserveBatch(time.Second)
	}
	times.ObserveCall(9 * time.Millisecond)
	require.Equal(t, 7*time.Millisecond, times.perEvent, "its next batch is smaller at once")
	require.Equal(t, 1250*time.Microsecond, times.Usual())
	require.Equal(t, time.Second, times.batch)
	times.ObserveBatch(2 * time.Second)
	require.Equal(t, 1250*time.Millisecond, times.batch)
}

// A handler that takes no time to measure takes a microsecond.
func TestNoTimeIsAMicrosecond(t *testing.T) {
	t.Parallel()
	var times Times
	times.ObserveCall(0)
	require.Equal(t, time.Microsecond, times.Usual())
	require.Equal(t, time.Microsecond, times.perEvent)
}

// Whatever was observed: an average is not outside of what it was made of, and soon it is what the last ones say.
func TestTimesFollowWhatTheyObserve(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var times Times
		least, most := time.Hour, time.Duration(0)
		observe := func(took time.Duration) {
			times.ObserveCall(took)
			times.ObserveOverhead(took)
			times.ObserveBatch(took)
			least, most = min(least, took), max(most, took)
		}
		for range rapid.IntRange(0, 20).Draw(t, "earlier") {
			observe(time.Duration(rapid.IntRange(1, 1_000_000).Draw(t, "µs")) * time.Microsecond)
		}
		last := time.Duration(rapid.IntRange(10, 100_000).Draw(t, "last µs")) * time.Microsecond
		observe(last)
		for _, average := range []time.Duration{times.perEvent, times.usual, times.batch} {
			require.GreaterOrEqual(t, average, least-time.Microsecond)
			require.LessOrEqual(t, average, most)
		}
		require.LessOrEqual(t, times.overhead, most)
		for range 100 {
			observe(last)
		}
		for _, average := range []time.Duration{times.perEvent, times.usual, times.batch, times.overhead} {
			require.InDelta(t, last, average, float64(last)/100+float64(time.Microsecond))
		}
	})
}
