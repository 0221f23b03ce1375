package flow_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/bluecone-go/bluecone/internal/engine/flow"
)

// run is how a delivery ended, that had run before unless it is a first one.
type run struct {
	outcome flow.Outcome
	first   bool
}

func times(n int, r run) []run {
	out := make([]run, n)
	for i := range out {
		out[i] = r
	}
	return out
}

func TestWhenTheCircuitOpens(t *testing.T) {
	t.Parallel()
	first := func(o flow.Outcome) run { return run{o, true} }
	again := func(o flow.Outcome) run { return run{o, false} }
	for name, c := range map[string]struct {
		runs  []run
		state flow.State
		pause time.Duration
	}{
		"nothing is known":               {state: flow.Closed},
		"two do not reach the service":   {runs: times(2, first(flow.Unreached)), state: flow.Closed},
		"three do not reach the service": {runs: times(3, first(flow.Unreached)), state: flow.Open, pause: 250 * ms},
		"one succeeds in between": {
			runs: append(times(2, first(flow.Unreached)), first(flow.Succeeded), first(flow.Unreached)), state: flow.Closed,
		},
		"the same few do not reach it again":    {runs: times(19, again(flow.Unreached)), state: flow.Closed},
		"nothing but retries fails":             {runs: times(20, again(flow.Unreached)), state: flow.HalfOpen},
		"a handler says that it is away":        {runs: []run{first(flow.Unavailable)}, state: flow.Open, pause: time.Second},
		"a handler says so of a retry":          {runs: []run{again(flow.Unavailable)}, state: flow.Open, pause: time.Second},
		"nineteen fail":                         {runs: times(19, first(flow.Failed)), state: flow.Closed},
		"every delivery fails":                  {runs: times(20, first(flow.Failed)), state: flow.HalfOpen},
		"a success closes it":                   {runs: append(times(30, first(flow.Failed)), again(flow.Succeeded)), state: flow.Closed},
		"many do not reach it while it is open": {runs: times(10, first(flow.Unreached)), state: flow.Open, pause: 250 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var circuit flow.Circuit
			for _, r := range c.runs {
				circuit.Observe(r.outcome, r.first, start())
			}
			require.Equal(t, c.state, circuit.State(start()))
			require.Equal(t, c.pause, circuit.Pause(start()))
			require.Equal(t, c.pause > 0, circuit.HasOpened())
		})
	}
}

// The probes are close together at first: what was not reached may be a few receivers of many. If the twentieth fails too, the
// pauses grow.
func TestProbesAreCloseTogetherAtFirst(t *testing.T) {
	t.Parallel()
	var c flow.Circuit
	now := start()
	var pauses []time.Duration
	for range 32 {
		c.Observe(flow.Unreached, true, now)
		if pause := c.Pause(now); pause > 0 {
			pauses = append(pauses, pause)
		}
		now = now.Add(c.Pause(now))
	}
	require.Len(t, pauses, 30)
	for _, pause := range pauses[:17] {
		require.Equal(t, 250*ms, pause)
	}
	s := time.Second
	require.Equal(t, []time.Duration{
		s, 2 * s, 4 * s, 8 * s, 16 * s, 32 * s, 64 * s, 128 * s, 256 * s, 300 * s, 300 * s, 300 * s, 300 * s,
	}, pauses[17:])
	require.Equal(t, flow.HalfOpen, c.State(now))
	require.True(t, c.Observe(flow.Succeeded, false, now), "it works again")
	require.Equal(t, flow.Closed, c.State(now))
	require.False(t, c.Observe(flow.Succeeded, false, now))
}

func TestRetryOfWhatDidNotReachItsService(t *testing.T) {
	t.Parallel()
	for since, delay := range map[time.Duration]time.Duration{
		0: time.Second, 500 * ms: time.Second, 7 * time.Second: 7 * time.Second,
		time.Hour: 5 * time.Minute,
	} {
		require.Equal(t, delay, flow.RetryUnreached(since))
	}
}

// Whatever happens: a success closes the circuit, retries alone never open it unless a handler says so, and it is never open
// for longer than the longest pause.
func TestCircuitClosesAfterASuccess(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var c flow.Circuit
		now, news := start(), false // a first run, or a handler that says so, since the last success
		for range rapid.IntRange(0, 60).Draw(t, "runs") {
			now = now.Add(time.Duration(rapid.IntRange(0, 400).Draw(t, "ms")) * ms)
			o, first := flow.Outcome(rapid.IntRange(0, 3).Draw(t, "outcome")), rapid.Bool().Draw(t, "first")
			news = o != flow.Succeeded && (news || first || o == flow.Unavailable)
			c.Observe(o, first, now)
			require.LessOrEqual(t, c.Pause(now), 5*time.Minute)
			require.Equal(t, c.State(now) == flow.Open, c.Pause(now) > 0)
			require.False(t, !news && c.State(now) == flow.Open)
			require.NotEqual(t, flow.Open, c.State(now.Add(c.Pause(now))))
			if o == flow.Succeeded {
				require.Equal(t, flow.Closed, c.State(now))
			}
		}
	})
}
