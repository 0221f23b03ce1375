package flow_test

import (
	"cmp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/bluecone-go/bluecone/internal/engine/flow"
)

// defaults are those of a consumer.
func defaults() flow.Settings { return flow.Settings{Batch: 500, Queue: 1000, Workers: 4} }

// While every delivery fails there is one worker, which tries one at a time and has few leased, until one succeeds.
func TestOneWorkerWhileEveryDeliveryFails(t *testing.T) {
	t.Parallel()
	s := flow.NewSpeed(defaults())
	s.Times.ObserveCall(ms)
	s.Prefetch.Observe(1, ms)
	for range 19 {
		s.Circuit.Observe(flow.Failed, true, start())
	}
	require.Equal(t, 4, s.WorkerLimit(start()))
	require.Equal(t, 20, s.BatchLimit(start()))
	require.Equal(t, 1000, s.LeaseLimit(start(), 0))
	require.False(t, s.IsHalfOpen(start()))
	s.Circuit.Observe(flow.Failed, true, start())
	require.True(t, s.IsHalfOpen(start()))
	require.Equal(t, 1, s.WorkerLimit(start()))
	require.Equal(t, 1, s.BatchLimit(start()))
	require.Equal(t, 4, s.LeaseLimit(start(), 0))
	s.Circuit.Observe(flow.Succeeded, false, start())
	require.Equal(t, 4, s.WorkerLimit(start()))
}

// An open circuit becomes half-open when its pause is over: the decisions follow the clock that they are given.
func TestDecisionsFollowTheClock(t *testing.T) {
	t.Parallel()
	s := flow.NewSpeed(defaults())
	s.Circuit.Observe(flow.Unavailable, true, start())
	require.False(t, s.IsHalfOpen(start()), "it is open")
	require.True(t, s.IsHalfOpen(start().Add(time.Second)))
	require.Equal(t, 1, s.WorkerLimit(start().Add(time.Second)))
}

// A worker takes at most a hundred deliveries to run them in parts, and then each that is queued is worth another worker.
func TestPartsMakeSmallBatches(t *testing.T) {
	t.Parallel()
	s := flow.NewSpeed(defaults())
	s.Times.ObserveCall(time.Microsecond)
	require.Equal(t, 500, s.BatchLimit(start()))
	s.Workers.Begin(start())
	require.Equal(t, box, s.Wait(start(), 1, 500))
	s.Parts.Shrink(flow.Group{Type: "a"}, 32)
	require.Equal(t, 100, s.BatchLimit(start()), "a handler has refused one lately")
	require.Zero(t, s.Wait(start(), 1, 100))
	s.Parts.Grow(flow.Group{Type: "a"}, 16)
	require.Equal(t, 500, s.BatchLimit(start()))
}

// While a backlog is worked off a batch has a longer box, and so has the wait for it.
func TestBacklogHasALongerBox(t *testing.T) {
	t.Parallel()
	s := flow.NewSpeed(defaults())
	s.Times.ObserveCall(ms)
	s.Workers.Begin(start())
	s.Observe(100, false)
	require.Equal(t, 20, s.BatchLimit(start()))
	require.Equal(t, 20*ms, s.Wait(start(), 1, 20))
	s.Observe(101, false)
	require.Equal(t, 60, s.BatchLimit(start()))
	require.Equal(t, 60*ms, s.Wait(start(), 1, 60))
}

// A lane leases what its workers start within a second, and no more than its queue holds and its rate allows.
func TestWhatALaneLeasesAhead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		settings        flow.Settings
		each            time.Duration
		running, queued int
		limit           int
	}{
		"nothing is known":                     {settings: defaults(), limit: 8},
		"what four workers start in a second":  {settings: defaults(), each: 10 * ms, queued: 1, limit: 400},
		"no more than the queue holds":         {settings: defaults(), each: ms, queued: 1, limit: 1000},
		"a small queue":                        {settings: flow.Settings{Batch: 500, Queue: 5, Workers: 4}, each: ms, queued: 1, limit: 5},
		"what the rate allows":                 {settings: flow.Settings{Batch: 500, Queue: 1000, Workers: 4, Rate: 30}, each: ms, limit: 30},
		"one, at a low rate":                   {settings: flow.Settings{Batch: 500, Queue: 1000, Workers: 4, Rate: 0.1}, each: ms, limit: 1},
		"a slow one: what idle workers start":  {settings: defaults(), each: time.Minute, running: 1, limit: 3},
		"a slow one: nothing beside its queue": {settings: defaults(), each: time.Minute, running: 1, queued: 1, limit: 0},
		"a slow one: all its workers run":      {settings: defaults(), each: time.Minute, running: 4, limit: 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := flow.NewSpeed(c.settings)
			if c.each > 0 {
				s.Prefetch.Observe(1, c.each)
			}
			for range c.running {
				s.Workers.Begin(start())
			}
			require.Equal(t, c.limit, s.LeaseLimit(start(), c.queued))
		})
	}
}

// On a machine where a transaction takes long beside its handlers, a lane leases batches that are worth it: the share grows with what
// the last one took, and does not shrink to single deliveries. Handlers that are slow themselves have nothing leased ahead.
func TestSlowTransactionsDoNotMakeSmallBatches(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		transaction, each time.Duration
		share             int
	}{
		"a slow machine":                {transaction: 300 * ms, each: ms, share: 500},
		"a slow machine, slow handlers": {transaction: 300 * ms, each: 100 * ms, share: 20},
		"very slow handlers":            {transaction: 10 * ms, each: 10 * time.Second, share: 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := flow.NewSpeed(flow.Settings{Batch: 500, Queue: 1000, Workers: 1})
			leased := 1
			for range 100 {
				s.Observe(leased, true)
				s.Times.ObserveCall(c.each)
				s.Times.ObserveOverhead(c.transaction)
				s.Prefetch.Observe(leased, c.transaction+time.Duration(leased)*c.each)
				s.Workers.Begin(start()) // what is leased now waits for it
				leased = max(min(s.LeaseShare(start(), 1, true), s.BatchLimit(start())), 1)
				s.Workers.End(start(), start())
			}
			s.Workers.Begin(start())
			require.InDelta(t, c.share, s.LeaseShare(start(), 1, true), float64(c.share)/4)
			require.LessOrEqual(t, s.LeaseShare(start(), 1, false), (s.LeaseLimit(start(), 1)+2)/3, "of those that run alone")
		})
	}
}

// However long others starve, a lane queues no more new events than it starts within a second, and a tenth is left for each
// other kind.
func TestWhatALaneQueuesForThoseThatAreStarved(t *testing.T) {
	t.Parallel()
	for each, limit := range map[time.Duration]int{0: 800, ms: 800, 10 * ms: 400, time.Second: 100} {
		s := flow.NewSpeed(defaults())
		if each > 0 {
			s.Prefetch.Observe(1, each)
		}
		require.Equal(t, limit, s.QueueLimit(start()), each)
		require.Equal(t, 100, s.KindLimit())
	}
	small := flow.NewSpeed(flow.Settings{Batch: 1, Queue: 5, Workers: 1})
	require.Equal(t, 1, small.KindLimit())
	small.Prefetch.Observe(1, time.Second)
	require.Equal(t, 4, small.QueueLimit(start()))
}

// A full lane spills if its handler is slower than that of those with nothing to do, or if they have waited
// for many of its batches: not because everything is slow.
func TestWhenAFullLaneSpills(t *testing.T) {
	t.Parallel()
	const quick = 200 * time.Microsecond
	for name, c := range map[string]struct {
		each, others, batch time.Duration
		overhead            time.Duration
		rate                float64
		looks               int
		passed              time.Duration // between two looks, a third of a second if 0
		active              bool
	}{
		"its handler takes as long as others":     {each: quick, others: quick, batch: 20 * ms, looks: 1},
		"its handler is slow":                     {each: 20 * ms, others: quick, batch: 80 * ms, looks: 1, active: true},
		"all handlers are slow":                   {each: 20 * ms, others: 10 * ms, batch: 80 * ms, looks: 1},
		"its handler is slower, but not slow":     {each: 10 * quick, others: quick, batch: 20 * ms, looks: 1},
		"its handler is slow for a moment":        {each: 20 * ms, others: quick, batch: 20 * ms, passed: 50 * ms, looks: 1},
		"everything is slow":                      {each: 20 * ms, others: quick, batch: 80 * ms, overhead: 30 * ms, looks: 1},
		"others wait for too long":                {each: quick, others: quick, batch: 20 * ms, looks: 4, active: true},
		"its transactions are slow":               {each: quick, others: quick, batch: time.Second, looks: 4},
		"they wait for too long for those":        {each: quick, others: quick, batch: time.Second, looks: 61, active: true},
		"it was asked to be slow":                 {each: quick, others: quick, batch: 20 * ms, rate: 10, passed: ms, looks: 1, active: true},
		"its rate is as quick as its handlers":    {each: quick, others: quick, batch: 20 * ms, rate: 1000, passed: ms, looks: 1},
		"nobody knows how long its handler takes": {others: quick, looks: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings, now := defaults(), start()
			settings.Rate = c.rate
			s := flow.NewSpeed(settings)
			s.Times = *timesOf(c.each, c.overhead)
			s.Times.ObserveBatch(c.batch)
			s.Spill.Observe(now, false, time.Hour)
			for range c.looks {
				now = now.Add(cmp.Or(c.passed, time.Second/3))
				s.Spill.Observe(now, true, s.SpillLimit(150, c.others))
			}
			require.Equal(t, c.active, s.Spill.IsActive())
		})
	}
}

// Whatever a lane sees: it always has a worker, a batch has at least one delivery and at most what the user allows, and it leases
// and queues no more than its queue holds.
func TestSpeedKeepsTheSettings(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		settings := flow.Settings{
			Batch: rapid.IntRange(1, 1000).Draw(t, "batch"), Queue: rapid.IntRange(1, 5000).Draw(t, "queue"),
			Workers: rapid.IntRange(1, 16).Draw(t, "workers"), Rate: rapid.SampledFrom([]float64{0, 0.5, 10, 5000}).Draw(t, "rate"),
		}
		s, now := flow.NewSpeed(settings), start()
		took := func() time.Duration {
			return time.Duration(rapid.IntRange(0, 3_000_000).Draw(t, "µs")) * time.Microsecond
		}
		n := func() int { return rapid.IntRange(1, settings.Batch).Draw(t, "n") }
		first := func() bool { return rapid.Bool().Draw(t, "first") }
		group := func() flow.Group {
			return flow.Group{Type: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "type"), Again: first()}
		}
		t.Repeat(map[string]func(*rapid.T){
			"time passes": func(*rapid.T) { now = now.Add(took()) },
			"call":        func(*rapid.T) { s.Times.ObserveCall(took()); s.Times.ObserveOverhead(took()) },
			"batch":       func(*rapid.T) { s.Times.ObserveBatch(took()); s.Prefetch.Observe(n(), took()) },
			"look":        func(*rapid.T) { s.Pressure.Observe(took(), settings.Workers) },
			"committed":   func(*rapid.T) { s.Pressure.Grow(); s.Parts.Grow(group(), n()) },
			"refused":     func(*rapid.T) { s.Parts.Shrink(group(), n()) },
			"ended": func(t *rapid.T) {
				s.Circuit.Observe(flow.Outcome(rapid.IntRange(0, 3).Draw(t, "outcome")), first(), now)
			},
			"queued": func(t *rapid.T) { s.Observe(rapid.IntRange(0, settings.Queue).Draw(t, "queued"), first()) },
			"waited": func(*rapid.T) { s.Window.Observe(took(), n()) },
			"": func(t *rapid.T) {
				queued := rapid.IntRange(0, settings.Queue).Draw(t, "queued now")
				between(t, 1, s.WorkerLimit(now), settings.Workers)
				between(t, 1, s.BatchLimit(now), settings.Batch)
				between(t, 0, s.LeaseLimit(now, queued), settings.Queue)
				between(t, 1, s.Window.Limit(), settings.Queue)
				between(t, 1, s.QueueLimit(now), settings.Queue)
				between(t, 1, s.KindLimit(), settings.Queue)
				require.GreaterOrEqual(t, s.SpillLimit(queued, took()), time.Duration(0))
				require.Zero(t, s.Wait(now, queued, s.BatchLimit(now)), "nothing runs, so nobody waits")
			},
		})
	})
}

func between(t *rapid.T, least, n, most int) {
	t.Helper()
	require.GreaterOrEqual(t, n, least)
	require.LessOrEqual(t, n, most)
}
