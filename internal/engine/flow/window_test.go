package flow_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/bluecone-go/bluecone/internal/engine/flow"
)

func TestWindowIsWhatDoesNotWaitTooLong(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		queue       int
		quick, slow int // batches of 10 that waited for 200 ms, and then longer
		limit, most int
	}{
		"at first":                             {queue: 1000, limit: 200, most: 800},
		"a quick batch widens it by half":      {queue: 1000, quick: 1, limit: 206, most: 800},
		"up to four fifths of the queue":       {queue: 1000, quick: 500, limit: 800, most: 800},
		"a slow one takes a quarter":           {queue: 1000, slow: 1, limit: 150, most: 800},
		"down to the least":                    {queue: 1000, slow: 50, limit: 100, most: 800},
		"what has grown shrinks":               {queue: 1000, quick: 500, slow: 1, limit: 600, most: 800},
		"a small queue":                        {queue: 50, limit: 40, most: 40},
		"a small queue is all used, when slow": {queue: 50, slow: 10, limit: 40, most: 40},
		"a queue of one":                       {queue: 1, limit: 1, most: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := flow.NewWindow(c.queue)
			for range c.quick {
				w.Observe(200*ms, 10)
			}
			for range c.slow {
				w.Observe(201*ms, 10)
			}
			require.Equal(t, c.limit, w.Limit())
			require.Equal(t, c.most, w.Most())
		})
	}
}

// Whatever waits: the window keeps between its limits, and what waits too long never widens it.
func TestWindowKeepsItsLimits(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		queue := rapid.IntRange(1, 5000).Draw(t, "queue")
		w := flow.NewWindow(queue)
		for range rapid.IntRange(0, 50).Draw(t, "batches") {
			before := w.Limit()
			waited := time.Duration(rapid.IntRange(0, 1000).Draw(t, "ms")) * ms
			w.Observe(waited, rapid.IntRange(1, 500).Draw(t, "batch"))
			require.Equal(t, waited > 200*ms && before > min(w.Most(), 100), w.Limit() < before)
			require.LessOrEqual(t, w.Limit(), queue-queue/5)
			require.GreaterOrEqual(t, w.Limit(), min(100, w.Most()))
		}
	})
}
