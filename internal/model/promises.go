package model

import "fmt"

// promises judge a state: what it breaks, and what is left to do.
type promises struct{ questions }

// apply notes an effect, and whether it comes before that of an earlier event, which was to come
// first when the handler began, and still is.
func (w *promises) apply(s *state, n, e int, early int8) {
	s.effects[n][e]++
	if early&w.owed(s, n, e) != 0 {
		s.disorder = true
	}
}

// owed are the earlier events, as bits, that a consumer has to do before a later one.
func (w *promises) owed(s *state, n, e int) (owed int8) {
	if w.isReplay(n) {
		return 0
	}
	for p := range e {
		if w.isOneAggregate(p, e) && s.passed[p]&(1<<e) == 0 && w.owes(s, n, p) {
			owed |= 1 << p
		}
	}
	return owed
}

// owes tells whether a consumer has yet to do an event. It does not owe those that were handed out
// before it took their type.
func (w *promises) owes(s *state, n, p int) bool {
	if w.owesPast(s, n, p) {
		return true
	}
	if !w.taken(s, n, p) || !s.isThere(p) {
		return false
	}
	for other := range names {
		if w.consumer(other) == w.consumer(n) && (s.effects[other][p] > 0 || w.isDone(s, other, p)) {
			return false
		}
	}
	switch s.events[p].status {
	case evNew, evParked:
		return true
	case evLeased:
		return s.events[p].needed&(1<<w.consumer(n)) != 0
	}
	return s.log[n][p].status != none
}

// broken names the promise that a state breaks.
func (w *promises) broken(s *state) string {
	switch {
	case s.disorder:
		return "an effect came before that of an earlier event"
	case s.unfair:
		return "a delivery is DEAD whose handler never failed"
	case w.areTwoAtWork(s):
		return "two instances work on one aggregate"
	}
	for e := range w.scene.Events {
		for c := range w.scene.Consumers {
			if effects, done := w.standing(s, c, e); effects > 1 {
				return fmt.Sprintf("event %d had its effect on consumer %d twice", e, c)
			} else if !done && s.events[e].status == evSent && s.events[e].needed&(1<<c) != 0 {
				return fmt.Sprintf("event %d is SENT, but consumer %d has not got it", e, c)
			}
		}
	}
	return ""
}

// standing is how often an event had its effect on a consumer, and whether that is done with it.
func (w *promises) standing(s *state, c, e int) (effects int8, done bool) {
	for n := range names {
		if w.consumer(n) == c && (n == c || w.scene.Renamed) {
			st := s.log[n][e].status
			effects += s.effects[n][e]
			done = done || st == success || st == skipped || s.effects[n][e] > 0
		}
	}
	return effects, done
}

// areTwoAtWork tells whether two instances run handlers of one consumer with events of one aggregate, each with its lease, or from
// the log, whose rows nobody takes from an open transaction. Late commits have no order, and neither has a DEAD delivery that let
// others pass and is retried.
func (w *promises) areTwoAtWork(s *state) bool {
	if len(w.scene.Late) > 0 || w.scene.Continue {
		return false
	}
	for n := range w.scene.Consumers {
		for a := range w.scene.Events {
			for b := range w.scene.Events {
				if a != b && w.isOneAggregate(a, b) && s.isAtWork(0, n, a) && s.isAtWork(1, n, b) {
					return true
				}
			}
		}
	}
	return false
}

func (s *state) isAtWork(i, n, e int) bool {
	t := s.members[i].tasks[n][e]
	return t.phase == open && s.holds(i, n, e) && (t.retry || !s.isOver(i, n, e))
}

// left names what is not finished.
func (w *promises) left(s *state) string {
	if s.fill.isOpen {
		return "the backfill will never end"
	}
	for e := range w.scene.Events {
		if n := w.newcomer(); w.owesPast(s, n, e) && s.log[n][e].status == none {
			return fmt.Sprintf("consumer %d will never get event %d of the past", n, e)
		}
		switch s.events[e].status {
		case evSent, evGone, evDead:
			continue
		case evParked:
			if w.scene.isUnwanted(e) { // reported, for as long as nobody takes it
				continue
			}
		case evFailed:
			if w.waitsForOperator(s, e) {
				continue
			}
		}
		return fmt.Sprintf("nobody will ever finish event %d", e)
	}
	return ""
}

// waitsForOperator tells whether what waits of the event waits behind a DEAD delivery.
func (w *promises) waitsForOperator(s *state, e int) bool {
	waits := false
	for n := range names {
		if row := s.log[n][e]; row.status != pending && row.status != failed && (row.status != processing || !row.due) {
			continue
		}
		behind := false
		for p := range e {
			behind = behind || (w.isOneAggregate(p, e) && !w.scene.Continue && s.log[n][p].status == dead)
		}
		if !behind {
			return false
		}
		waits = true
	}
	return waits
}
