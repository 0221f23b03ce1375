package flow_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/bluecone-go/bluecone/internal/engine/flow"
)

// timesOf are those of a handler and of the rest of its transactions.
func timesOf(perEvent, overhead time.Duration) *flow.Times {
	var times flow.Times
	if perEvent > 0 {
		times.ObserveCall(perEvent)
	}
	for range 200 {
		times.ObserveOverhead(overhead)
	}
	return &times
}

// A batch is what fits into the time box, which a backlog and a slow machine stretch.
func TestBatchSizeFollowsTimes(t *testing.T) {
	t.Parallel()
	type look struct {
		queued int
		more   bool
	}
	const window = 800
	for name, c := range map[string]struct {
		looks              []look
		perEvent, overhead time.Duration
		limit              int
	}{
		"nothing is known":                         {limit: 4},
		"20 ms":                                    {perEvent: ms, limit: 20},
		"half a window is nothing to speak of":     {looks: []look{{window / 2, false}}, perEvent: ms, limit: 20},
		"more than half a window is a backlog":     {looks: []look{{window/2 + 1, false}}, perEvent: ms, limit: 60},
		"more waits in the consume log":            {looks: []look{{1, true}}, perEvent: ms, limit: 60},
		"nothing is queued, whatever waits there":  {looks: []look{{0, true}}, perEvent: ms, limit: 20},
		"a backlog lasts until it is worked off":   {looks: []look{{window, false}, {1, false}}, perEvent: ms, limit: 60},
		"and no longer":                            {looks: []look{{window, false}, {0, false}, {1, false}}, perEvent: ms, limit: 20},
		"a slow handler":                           {looks: []look{{window, false}}, perEvent: 10 * ms, limit: 6},
		"a transaction costs more than its box":    {looks: []look{{window, false}}, perEvent: 10 * ms, overhead: 51 * ms, limit: 40},
		"that counts in a backlog only":            {perEvent: 10 * ms, overhead: 51 * ms, limit: 2},
		"one that takes longer than any box":       {perEvent: time.Minute, limit: 1},
		"a very quick one: as many as it may take": {perEvent: time.Microsecond, limit: 500},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var b flow.BatchSize
			for _, l := range c.looks {
				b.Observe(l.queued, window, l.more)
			}
			require.Equal(t, c.limit, b.Limit(timesOf(c.perEvent, c.overhead), 500))
			require.Equal(t, min(c.limit, 3), b.Limit(timesOf(c.perEvent, c.overhead), 3))
		})
	}
}

// Whatever was observed: a batch has at least one delivery and no more than it may take, takes its box, and a backlog never makes
// it smaller.
func TestBatchKeepsItsLimits(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var backlog, calm flow.BatchSize
		backlog.Observe(1, 0, true)
		for range rapid.IntRange(0, 10).Draw(t, "looks") {
			calm.Observe(rapid.IntRange(0, 400).Draw(t, "queued"), 800, false)
		}
		us := func(name string) time.Duration {
			return time.Duration(rapid.IntRange(1, 1_000_000).Draw(t, name)) * time.Microsecond
		}
		each, most := us("each"), rapid.IntRange(1, 500).Draw(t, "most")
		times := timesOf(each, us("overhead"))
		n := calm.Limit(times, most)
		require.GreaterOrEqual(t, n, 1)
		require.LessOrEqual(t, n, most)
		require.LessOrEqual(t, time.Duration(n-1)*each, calm.Box())
		require.GreaterOrEqual(t, backlog.Limit(times, most), n)
		require.LessOrEqual(t, backlog.Limit(times, most), most)
	})
}
