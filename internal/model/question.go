package model

// questions are what the engine asks before it claims or runs.
type questions struct{ setting }

// asker is who asks.
type asker struct {
	instance, name int
	passes         int8 // the events, as bits, that it does not wait for: of its batch, or leased by itself
}

// isBlocked tells whether a delivery has to wait for another one of its aggregate.
func (w *questions) isBlocked(s *state, a asker, e int) bool {
	if w.rules.RunningElsewhere && w.runsElsewhere(s, a, e) {
		return true
	}
	return w.isBehind(w.rules.Question, s, a, e) || (w.rules.PastFirst && w.firstPast(s, a, e) < e)
}

// runsElsewhere tells whether another instance runs any delivery of the aggregate from the log.
func (w *questions) runsElsewhere(s *state, a asker, e int) bool {
	for l := range w.scene.Events {
		row := s.log[a.name][l]
		if l == e || !w.sibling(l, e) || row.status == none {
			continue
		}
		isLeased := !row.due || (w.rules.RunningPastLease && s.isLocked(a.name, l))
		if row.status == processing && isLeased && int(row.owner) != a.instance+1 {
			return true
		}
		if !w.rules.RunningBehind && !w.passes(s, a, l) { // it stands before
			return false
		}
	}
	return false
}

// isBehind tells whether an earlier event is in the way, by one question or another.
func (w *questions) isBehind(q Question, s *state, a asker, e int) bool {
	if w.isReplay(a.name) { // replays wait for replays only
		return w.firstInLog(s, a, e) < e
	}
	switch q {
	case Split:
		return w.firstInLog(s, a, e) < e || w.firstInHand(s, a, e) < e
	case AnyEarlier:
		for p := range e {
			if w.isPredecessor(s, a, p, e) {
				return true
			}
		}
	case Nearest:
		for p := e - 1; p >= 0; p-- {
			if w.sibling(p, e) && w.asksFor(s, a.instance, a.name, p) && s.events[p].status != evUnborn && s.events[p].status != evDelayed &&
				s.events[p].status != evGone {
				return w.isPredecessor(s, a, p, e)
			}
		}
	case UnfinishedRows:
		return w.firstInLog(s, a, e) < e
	}
	return false
}

// isPredecessor tells whether the consumer has not done with an earlier event.
func (w *questions) isPredecessor(s *state, a asker, p, e int) bool {
	return w.sibling(p, e) && w.asksFor(s, a.instance, a.name, p) && s.isThere(p) && !w.passes(s, a, p) &&
		(s.events[p].status != evParked || w.rules.ParkedInHand)
}

// firstInLog is the first delivery of e's aggregate that is not done, or one after all.
func (w *questions) firstInLog(s *state, a asker, e int) int {
	for p := range w.scene.Events {
		if w.sibling(p, e) && s.log[a.name][p].status != none && !w.passes(s, a, p) && s.isThere(p) {
			return p
		}
	}
	return events
}

// firstInHand is the first event of e's aggregate that is in hand and has no delivery, or one after all.
func (w *questions) firstInHand(s *state, a asker, e int) int {
	for p := range w.scene.Events {
		if w.sibling(p, e) && w.asksFor(s, a.instance, a.name, p) && w.isInHandFor(s, p) && s.log[a.name][p].status == none &&
			!w.passes(s, a, p) {
			return p
		}
	}
	return events
}

// asksFor tells whether a consumer waits for events of this type: its own release or another takes it.
func (w *setting) asksFor(s *state, i, n, p int) bool {
	return w.takes(i, n, p) || w.registered(s, n, p)
}

// passes tells whether whoever asks does not wait for a delivery.
func (w *questions) passes(s *state, a asker, e int) bool {
	return a.passes&(1<<e) != 0 || w.isDone(s, a.name, e)
}

// isDone tells whether later events may pass a delivery.
func (w *questions) isDone(s *state, n, e int) bool {
	st := s.log[n][e].status
	return st == success || st == skipped || (st == dead && w.scene.Continue)
}
