package settle

import (
	"slices"
	"sync"
)

// Coalescer makes one call of those that come while another is under way: many workers end deliveries at a time, and what is
// to be done then costs the database hardly more for many events than for one.
type Coalescer struct {
	working chan struct{} // the caller that works holds the token

	mu   sync.Mutex
	next *call
}

// NewCoalescer returns a coalescer that nobody uses yet.
func NewCoalescer() *Coalescer { return &Coalescer{working: make(chan struct{}, 1)} }

// call is what several callers want to be done.
type call struct {
	ids    []string
	isDone bool // by one of them; needs the token
}

// Do returns when work has been done for the ids, by this caller or another.
func (c *Coalescer) Do(ids []string, work func(ids []string)) {
	c.mu.Lock()
	if c.next == nil {
		c.next = new(call)
	}
	mine := c.next
	mine.ids = append(mine.ids, ids...)
	c.mu.Unlock()

	c.working <- struct{}{}
	defer func() { <-c.working }()
	if mine.isDone {
		return
	}
	c.mu.Lock()
	c.next = nil // it is mine, for nobody else has done it
	c.mu.Unlock()
	defer func() { mine.isDone = true }()
	slices.Sort(mine.ids)
	work(slices.Compact(mine.ids))
}
