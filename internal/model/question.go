package model

// questions are what the engine asks before it claims or runs.
type questions struct{ setting }

// isBlocked tells whether a delivery has to wait for another one of its aggregate.
func (w *questions) isBlocked(s *state, i, n, e int) bool {
	if w.rules.RunningElsewhere && w.runsElsewhere(s, i, n, e) {
		return true
	}
	return w.isBehind(w.rules.Question, s, i, n, e)
}

// runsElsewhere tells whether another instance runs any delivery of the aggregate from the log.
func (w *questions) runsElsewhere(s *state, i, n, e int) bool {
	for l := range w.scene.Events {
		row := s.log[n][l]
		if l != e && w.sibling(l, e) && row.status == processing && !row.due && int(row.owner) != i+1 {
			return true
		}
	}
	return false
}

// isBehind tells whether an earlier event is in the way, by one question or another.
func (w *questions) isBehind(q Question, s *state, i, n, e int) bool {
	if w.isReplay(n) { // replays wait for replays only
		return w.firstInLog(s, n, e) < e
	}
	switch q {
	case Split:
		return w.firstInLog(s, n, e) < e || w.firstInHand(s, i, n, e) < e
	case AnyEarlier:
		for p := range e {
			if w.isPredecessor(s, i, n, p, e) {
				return true
			}
		}
	case Nearest:
		for p := e - 1; p >= 0; p-- {
			if w.sibling(p, e) && w.asksFor(s, i, n, p) && s.events[p].status != evUnborn && s.events[p].status != evDelayed &&
				s.events[p].status != evGone {
				return w.isPredecessor(s, i, n, p, e)
			}
		}
	case UnfinishedRows:
		return w.firstInLog(s, n, e) < e
	}
	return false
}

// isPredecessor tells whether the consumer has not done with an earlier event.
func (w *questions) isPredecessor(s *state, i, n, p, e int) bool {
	return w.sibling(p, e) && w.asksFor(s, i, n, p) && s.isThere(p) && !w.isDone(s, n, p) &&
		(s.events[p].status != evParked || w.rules.ParkedInHand)
}

// firstInLog is the first delivery of e's aggregate that is not done, or one after all.
func (w *questions) firstInLog(s *state, n, e int) int {
	for p := range w.scene.Events {
		if w.sibling(p, e) && s.log[n][p].status != none && !w.isDone(s, n, p) && s.isThere(p) {
			return p
		}
	}
	return events
}

// firstInHand is the first event of e's aggregate that is in hand and has no delivery, or one after all.
func (w *questions) firstInHand(s *state, i, n, e int) int {
	for p := range w.scene.Events {
		if w.sibling(p, e) && w.asksFor(s, i, n, p) && w.isInHandFor(s, p) && s.log[n][p].status == none {
			return p
		}
	}
	return events
}

// asksFor tells whether a consumer waits for events of this type: its own release or another takes it.
func (w *setting) asksFor(s *state, i, n, p int) bool {
	return w.takes(i, n, p) || w.registered(s, n, p)
}

// isDone tells whether later events may pass a delivery.
func (w *questions) isDone(s *state, n, e int) bool {
	st := s.log[n][e].status
	return st == success || st == skipped || (st == dead && w.scene.Continue)
}
