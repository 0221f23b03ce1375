package model

// operator is whoever intervenes.
type operator struct{ *world }

// acts retries, skips, gives up, discards and repeats.
func (w operator) acts(s state) {
	for e := range w.scene.Events {
		if s.opTodo[e] {
			w.operatorRollUp(s, e)
		}
		if s.happened.Operations == w.scene.Operations || s.events[e].status == evGone {
			continue
		}
		w.discard(s, e)
		w.replay(s, e)
		for n := range names {
			if !s.isLocked(n, e) {
				w.interveneIn(s, n, e)
			}
		}
	}
}

// interveneIn does what an operator can do to one delivery.
func (w operator) interveneIn(s state, n, e int) {
	st := s.log[n][e].status
	if st == dead || st == failed || (st == skipped && !w.isPassed(&s, n, e)) {
		w.intervene(s, n, e, pending, "retries")
	}
	if st == dead || st == failed || st == pending {
		w.intervene(s, n, e, skipped, "skips")
	}
	if st == failed || st == pending {
		w.intervene(s, n, e, dead, "gives up")
	}
}

func (w operator) intervene(s state, n, e int, status int8, verb string) {
	s.log[n][e] = delivery{status: status, version: s.log[n][e].version + 1}
	w.operated(s, e, "an operator %s event %d for %d", verb, e, n)
}

// operated ends an operation on the deliveries of an event by computing its status.
func (w operator) operated(s state, e int, format string, args ...any) {
	s.happened.Operations++
	if w.rules.UnderLock {
		s.rolled(e, s.computed(e, 0))
	} else {
		s.opTodo[e] = true
	}
	w.add(s, true, format, args...)
}

// isPassed tells whether a later event has passed a skipped one, or is about to. Taking it back
// then breaks the order, as the operator is told.
func (w operator) isPassed(s *state, n, e int) bool {
	for l := e + 1; l < w.scene.Events; l++ {
		if s.effects[n][l] > 0 || s.events[l].status == evLeased {
			return true
		}
	}
	return false
}

// discard ends an event that nobody has been called for yet: everybody who takes it is skipped.
func (w operator) discard(s state, e int) {
	if st := s.events[e].status; !w.scene.Discards || (st != evNew && st != evParked) {
		return
	}
	for n := range names {
		if row := s.log[n][e].status; w.registered(&s, n, e) && (row == none || w.isOpenInLog(&s, n, e)) {
			s.log[n][e] = delivery{status: skipped, version: s.log[n][e].version + 1}
		}
	}
	s.happened.Operations++
	s.events[e] = event{status: evSent, version: s.events[e].version + 1, needed: s.events[e].needed}
	w.add(s, true, "an operator discards event %d", e)
}

// replay lets the one consumer get an event again, under the name of its replays.
func (w operator) replay(s state, e int) {
	st := s.events[e].status
	if !w.scene.Replayable || (st != evSent && st != evFailed && st != evDead) || !w.isDone(&s, 0, e) || w.isOpenInLog(&s, 1, e) {
		return
	}
	s.log[1][e] = delivery{status: pending, version: s.log[1][e].version + 1}
	w.operated(s, e, "an operator repeats event %d", e)
}

func (w operator) operatorRollUp(s state, e int) {
	if s.opRead[e] == 0 {
		s.opRead[e] = s.computed(e, 0) + 1
		w.add(s, false, "the operator's tool looks how event %d stands", e)
		return
	}
	s.rolled(e, s.opRead[e]-1)
	s.opRead[e], s.opTodo[e] = 0, false
	w.add(s, false, "the operator's tool writes the status of event %d", e)
}
