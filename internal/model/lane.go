package model

import (
	"iter"
	"slices"
)

// in lists the events of a set, which has a bit for each.
func in(set int8) iter.Seq[int] {
	return func(yield func(int) bool) {
		for e := range events {
			if set&(1<<e) != 0 && !yield(e) {
				return
			}
		}
	}
}

// push queues a delivery in a lane, behind what is there of its aggregate.
func (w engine) push(s *state, i, n, e int, t task) {
	t.phase = queued
	for l := e + 1; l < w.scene.Events; l++ {
		if w.sibling(l, e) && s.members[i].tasks[n][l].phase != idle {
			t.behind |= 1 << l
		}
	}
	s.members[i].tasks[n][e] = t
}

// drop forgets a delivery.
func (s *state) drop(i, n, e int) {
	tasks := &s.members[i].tasks[n]
	tasks[e] = task{}
	for p := range e {
		tasks[p].behind &^= 1 << e
	}
}

// inLine lists the deliveries of a set in the order in which they were queued.
func (s *state) inLine(i, n int, set int8) []int {
	tasks := &s.members[i].tasks[n]
	return slices.SortedFunc(in(set), func(a, b int) int {
		if (tasks[min(a, b)].behind&(1<<max(a, b)) != 0) == (a < b) {
			return 1
		}
		return -1
	})
}

// inPhase is the set of the deliveries of e's aggregate that are in a phase.
func (w *setting) inPhase(s *state, i, n, e int, phase int8) (set int8) {
	for o := range w.scene.Events {
		if w.sibling(o, e) && s.members[i].tasks[n][o].phase == phase {
			set |= 1 << o
		}
	}
	return set
}

// mayBatch tells whether the next batch of a lane may be this set, of deliveries of one aggregate. One from the log overtakes later
// ones, which cannot run before it; others keep their line.
func (w *setting) mayBatch(s *state, i, n int, batch int8) bool {
	first := slices.Collect(in(batch))[0]
	waits := w.inPhase(s, i, n, first, queued)
	if batch&^waits != 0 || w.inPhase(s, i, n, first, open)|w.inPhase(s, i, n, first, failing) != 0 {
		return false
	}
	isRetry, passed := s.members[i].tasks[n][first].retry, events
	for _, e := range s.inLine(i, n, waits) {
		switch {
		case batch&(1<<e) == 0:
			passed = min(passed, e)
		case s.members[i].tasks[n][e].retry != isRetry:
			return false
		case passed < events && (!isRetry || passed < e):
			return false
		}
	}
	return true
}
