package flow

import "time"

// Circuit is the circuit breaker of one consumer: it tells from how deliveries end whether others are worth a try.
//
// Closed, all run. Open, nothing starts: the service that the handlers call is away. Half-open, deliveries are tried one at
// a time, until one succeeds: after a pause of the open circuit, and while every delivery fails. What has failed before says
// little about the others, so that only deliveries that run for the first time open a closed circuit.
type Circuit struct {
	failed int           // deliveries in a row that failed
	away   int           // deliveries in a row that did not reach the service, the first run of each
	pause  time.Duration // the last long one
	until  time.Time     // the circuit is open before; zero until it has opened
}

// State is whether deliveries may start.
type State int

// The states of a circuit.
const (
	Closed State = iota
	HalfOpen
	Open
)

// Outcome is how a delivery ended, as far as it says something about others. One that asks for another run later
// says nothing.
type Outcome int

// The outcomes of a delivery.
const (
	// Succeeded is a handler that did what it should, or decided that it need not.
	Succeeded Outcome = iota
	// Failed is a handler that failed for a reason of its own.
	Failed
	// Unreached is a handler that could not reach what it calls.
	Unreached
	// Unavailable is a handler that says that the service is away.
	Unavailable
)

const (
	unreachedOpen = 3                      // first runs in a row that did not reach the service open the circuit
	everyFails    = 20                     // so many failures in a row: every delivery fails
	probeAfter    = 250 * time.Millisecond // the pause while the failures may be those of a few receivers
	leastPause    = time.Second            // the first one when every delivery fails, or the handler says so
	longestPause  = 5 * time.Minute
)

// RestAfterFailure is the pause between two deliveries of a half-open circuit.
const RestAfterFailure = 20 * time.Millisecond

// Observe notes how a delivery ended, and tells whether that has changed the circuit: it has opened (again), or it works
// again after it was open. First says that the delivery had never run before.
func (c *Circuit) Observe(o Outcome, first bool, now time.Time) (changed bool) {
	if o == Succeeded {
		changed = !c.until.IsZero()
		*c = Circuit{}
		return changed
	}
	state := c.State(now)
	c.failed++
	if o == Failed {
		return false
	}
	if first {
		c.away++
	}
	if state == Open { // one that was on its way already
		return false
	}
	if o != Unavailable && c.until.IsZero() && c.away < unreachedOpen {
		return false
	}
	pause := probeAfter
	if o == Unavailable || c.failed >= everyFails {
		c.pause = min(max(2*c.pause, leastPause), longestPause)
		pause = c.pause
	}
	c.until = now.Add(pause)
	return true
}

// State is whether deliveries may start now.
func (c *Circuit) State(now time.Time) State {
	switch {
	case now.Before(c.until):
		return Open
	case !c.until.IsZero() || c.failed >= everyFails:
		return HalfOpen
	}
	return Closed
}

// HasOpened tells whether the circuit has opened, and nothing has succeeded since.
func (c *Circuit) HasOpened() bool { return !c.until.IsZero() }

// Pause is how long the circuit stays open.
func (c *Circuit) Pause(now time.Time) time.Duration { return max(c.until.Sub(now), 0) }

// RetryUnreached is when to try a delivery again that did not reach the service, and is not counted: after as long as it has
// been tried for.
func RetryUnreached(sinceFirstRun time.Duration) time.Duration {
	return min(max(sinceFirstRun, leastPause), longestPause)
}
