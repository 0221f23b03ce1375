package flow_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/bluecone-go/bluecone/internal/engine/flow"
)

const (
	ms  = time.Millisecond
	box = 20 * ms
)

// start is when the clock of a test begins.
func start() time.Time { return time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC) }

func TestWhenAnotherWorkerStarts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		running      []time.Duration // how long ago each began
		most         int
		queued, full int
		wait         time.Duration
	}{
		"nothing runs":                           {most: 4, queued: 1, full: 100},
		"a full batch":                           {running: []time.Duration{ms}, most: 4, queued: 100, full: 100},
		"more than a full batch":                 {running: []time.Duration{ms}, most: 4, queued: 101, full: 100},
		"less than a full batch":                 {running: []time.Duration{ms}, most: 4, queued: 99, full: 100, wait: 19 * ms},
		"one that has run for its box":           {running: []time.Duration{box}, most: 4, queued: 1, full: 100},
		"one that is slow":                       {running: []time.Duration{time.Minute}, most: 4, queued: 1, full: 100},
		"one that is slow and one that is quick": {running: []time.Duration{time.Minute, 5 * ms}, most: 4, queued: 1, full: 100, wait: 15 * ms},
		"each event is a full batch":             {running: []time.Duration{3 * ms, 2 * ms, ms}, most: 4, queued: 1, full: 1},
		"as many as a strained database bears":   {running: []time.Duration{5 * ms}, most: 1, queued: 100, full: 1, wait: 15 * ms},
		"more than a strained database bears": {
			running: []time.Duration{9 * ms, 8 * ms, 7 * ms}, most: 2, queued: 100, full: 1,
			wait: 12 * ms,
		},
		"a strained database and one slow batch": {running: []time.Duration{time.Minute}, most: 1, queued: 1, full: 100},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var w flow.Workers
			for _, ago := range c.running {
				w.Begin(start().Add(-ago))
			}
			require.Equal(t, c.wait, w.Wait(start(), c.most, c.queued, c.full, box))
		})
	}
}

// The end of a quick batch leaves the slow one, beside which nobody waits.
func TestEndOfABatchLeavesTheOthers(t *testing.T) {
	t.Parallel()
	var w flow.Workers
	second := start().Add(time.Second)
	w.Begin(start())
	w.Begin(second)
	require.Equal(t, 2, w.Running())
	now := second.Add(ms)
	require.Equal(t, 19*ms, w.Wait(now, 4, 1, 100, box))
	w.End(second, now)
	require.Equal(t, 1, w.Running())
	require.Zero(t, w.Wait(now, 4, 1, 100, box))
	w.End(start().Add(time.Hour), now) // never began
	require.Equal(t, 1, w.Running())
}

// Where every batch takes long, because the database is strained, none of them is slow.
func TestSlowIsWhatTakesLongerThanUsual(t *testing.T) {
	t.Parallel()
	var w flow.Workers
	now := start()
	for range 10 {
		w.Begin(now)
		w.End(now, now.Add(100*ms))
		now = now.Add(100 * ms)
	}
	w.Begin(now)
	w.End(now, now.Add(time.Hour)) // one that is slow changes little
	now = now.Add(time.Hour)
	w.Begin(now)
	require.Equal(t, 500*ms-200*ms, w.Wait(now.Add(200*ms), 1, 1, 1, box))
	require.Zero(t, w.Wait(now.Add(500*ms), 1, 1, 1, box))
}

// Whatever begins and ends: if the database bears all workers, nobody waits for longer than one box, and after the wait nobody
// waits again.
func TestNobodyWaitsLongerThanOneBox(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var w flow.Workers
		var running []time.Time
		now := start()
		t.Repeat(map[string]func(*rapid.T){
			"time passes": func(t *rapid.T) { now = now.Add(time.Duration(rapid.IntRange(0, 50).Draw(t, "ms")) * ms) },
			"begin":       func(*rapid.T) { w.Begin(now); running = append(running, now) },
			"end": func(t *rapid.T) {
				if len(running) == 0 {
					t.Skip("nothing runs")
				}
				i := rapid.IntRange(0, len(running)-1).Draw(t, "which")
				w.End(running[i], now)
				running = append(running[:i:i], running[i+1:]...)
			},
			"": func(t *rapid.T) {
				require.Equal(t, len(running), w.Running())
				queued, full := rapid.IntRange(1, 1000).Draw(t, "queued"), rapid.IntRange(1, 500).Draw(t, "full")
				wait := w.Wait(now, len(running)+1, queued, full, box)
				require.LessOrEqual(t, wait, box)
				require.Zero(t, w.Wait(now.Add(wait), len(running)+1, queued, full, box))
				most := rapid.IntRange(1, len(running)+1).Draw(t, "most")
				wait = w.Wait(now, most, queued, full, box)
				require.GreaterOrEqual(t, wait, time.Duration(0))
				require.LessOrEqual(t, w.Wait(now.Add(wait), most, queued, full, box), box, "then a batch is queued for one box at most")
			},
		})
	})
}
