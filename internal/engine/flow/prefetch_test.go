package flow_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/bluecone-go/bluecone/internal/engine/flow"
)

func TestPrefetchIsWhatStartsWithinASecond(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		each       time.Duration
		busy, idle int
		want       int
	}{
		"quick":                 {time.Millisecond, 4, 0, 4000},
		"quick, some idle":      {time.Millisecond, 1, 3, 4000},
		"slow":                  {100 * time.Millisecond, 4, 0, 40},
		"very slow, all busy":   {10 * time.Second, 4, 0, 0},
		"very slow, one idle":   {10 * time.Second, 3, 1, 1},
		"nobody may work":       {time.Millisecond, 0, 0, 0},
		"no time at all":        {0, 1, 0, 1_000_000},
		"as long as the second": {time.Second, 1, 0, 1},
	} {
		var a flow.Prefetch
		a.Observe(10, 10*c.each)
		require.Equal(t, c.want, a.Limit(c.busy, c.idle), name)
	}
	var unknown flow.Prefetch
	require.Equal(t, 8, unknown.Limit(0, 4), "a few, before anything is known")
	unknown.Observe(0, time.Hour)
	require.Equal(t, 8, unknown.Limit(0, 4), "nothing tells nothing")
}

// Whatever it was, the limit soon is what the last batches say.
func TestPrefetchFollowsWhatItObserves(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var a flow.Prefetch
		for range rapid.IntRange(0, 20).Draw(t, "earlier batches") {
			a.Observe(rapid.IntRange(1, 500).Draw(t, "events"), time.Duration(rapid.IntRange(1, 1_000_000).Draw(t, "µs"))*time.Microsecond)
		}
		each := time.Duration(rapid.IntRange(10, 100_000).Draw(t, "µs each")) * time.Microsecond
		for range 60 {
			a.Observe(1, each)
		}
		require.InDelta(t, float64(4*time.Second/each), float64(a.Limit(4, 0)), 1+0.1*float64(4*time.Second/each))
	})
}
