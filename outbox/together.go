package outbox

import (
	"slices"
	"sync"
)

// together makes one call of those that come while another is under way: many workers end deliveries at a time, and what
// is to be done then costs the database hardly more for many events than for one.
type together struct {
	working chan struct{} // held by who does a turn

	mu   sync.Mutex
	next *turn
}

func newTogether() *together { return &together{working: make(chan struct{}, 1)} }

// turn is what several callers want to be done.
type turn struct {
	ids  []string
	done bool // by one of them; needs working
}

// do returns when work has been done for the ids, by this caller or another.
func (t *together) do(ids []string, work func(ids []string)) {
	t.mu.Lock()
	if t.next == nil {
		t.next = new(turn)
	}
	mine := t.next
	mine.ids = append(mine.ids, ids...)
	t.mu.Unlock()

	t.working <- struct{}{}
	defer func() { <-t.working }()
	if mine.done {
		return
	}
	t.mu.Lock()
	t.next = nil // it is mine, for nobody else has done it
	t.mu.Unlock()
	defer func() { mine.done = true }()
	slices.Sort(mine.ids)
	work(slices.Compact(mine.ids))
}
