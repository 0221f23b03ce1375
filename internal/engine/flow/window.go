package flow

import "time"

// Window limits how many new deliveries a lane has queued: so many that none waits longer than about 200 ms. What is claimed and
// waits here is what another instance could be working on. (The idea is CoDel's.)
type Window struct{ limit, least, most int }

const (
	// sojourn is how long a delivery should wait in the queue at most.
	sojourn = 200 * time.Millisecond
	// narrowest is the least that a window becomes: less would make batches that are not worth their
	// transactions. A lane begins with twice as much: the first claims of an instance that joins others
	// must not take more than it can work off.
	narrowest = 100
)

// NewWindow is the window of a queue that holds so many. It leaves a fifth of it to events that come out of turn.
func NewWindow(queue int) Window {
	most := queue - queue/5
	return Window{limit: min(most, 2*narrowest), least: min(most, narrowest), most: most}
}

// Observe learns how long the first of n new deliveries waited that have left the queue together.
func (w *Window) Observe(waited time.Duration, n int) {
	if waited > sojourn {
		w.Shrink()
	} else {
		w.Grow(n)
	}
}

// Grow widens the window, because n deliveries did not wait too long.
func (w *Window) Grow(n int) { w.limit = min(w.limit+n/2+1, w.most) }

// Shrink narrows the window by a quarter.
func (w *Window) Shrink() { w.limit = max(w.limit*3/4, w.least) }

// Limit is how many new deliveries to have queued.
func (w *Window) Limit() int { return w.limit }

// Most is the widest that the window becomes.
func (w *Window) Most() int { return w.most }
