package model

// engine is what the instances do: claim, deliver, settle.
type engine struct{ *world }

// claim leases an event, alone or together with all later ones that may be claimed with it.
func (w engine) claim(s state, i, e int) {
	w.claimUpTo(s, i, e, e)
	for last := e + 1; last < w.scene.Events; last++ {
		w.claimUpTo(s, i, e, last)
	}
}

// claimUpTo claims the events from first to last, if all of them may be claimed.
func (w engine) claimUpTo(s state, i, first, last int) {
	claimed := s
	for e := first; e <= last; e++ {
		if !w.claimable(&s, i, e, first) {
			return
		}
		w.lease(&claimed, i, e)
	}
	if first == last {
		w.add(claimed, false, "instance %d claims event %d", i, first)
		return
	}
	w.add(claimed, false, "instance %d claims events %d to %d", i, first, last)
}

// claimable tells whether an instance may claim an event together with all from first on.
func (w engine) claimable(s *state, i, e, first int) bool {
	ev := s.events[e]
	switch {
	case s.members[i].flights[e].held:
		return false
	case ev.status == evNew:
	case ev.status == evLeased && ev.due:
	case ev.status == evParked && w.isWanted(s, e): // looked at every 30 s, and parked again otherwise
	default:
		return false
	}
	for p := range first {
		earlier := s.events[p].status
		if w.sibling(p, e) && (earlier == evNew || (earlier == evLeased && !s.isLeasedBy(i, p)) ||
			(earlier == evParked && !w.rules.ParkedLetsPass)) {
			return false
		}
	}
	if ev.version == 0 || !w.rules.LaterInFlight {
		return true
	}
	for l := e + 1; l < w.scene.Events; l++ {
		if w.sibling(l, e) && s.isLeased(l) {
			return false
		}
	}
	return true
}

// isWanted tells whether the registry shows anybody who takes the event.
func (w *setting) isWanted(s *state, e int) bool {
	for n := range names {
		if w.registered(s, n, e) {
			return true
		}
	}
	return false
}

// isOpenInLog tells whether a delivery is neither SUCCESS nor SKIPPED.
func (w *questions) isOpenInLog(s *state, n, e int) bool {
	st := s.log[n][e].status
	return st != none && st != success && st != skipped
}

// isInHandFor tells whether an event is in hand, as far as those who ask care.
func (w *questions) isInHandFor(s *state, e int) bool {
	return s.isInHand(e) && (s.events[e].status != evParked || w.rules.ParkedInHand)
}

// lease leases an event and hands it to its consumers, or parks it.
func (w engine) lease(s *state, i, e int) {
	version := s.events[e].version + 1
	if !w.isWanted(s, e) {
		s.events[e] = event{status: evParked, version: version}
		return
	}
	s.events[e] = event{status: evLeased, owner: int8(i + 1), version: version, needed: s.events[e].needed}
	f := flight{held: true, version: version}
	for n := range names {
		if w.taken(s, n, e) {
			s.events[e].needed |= 1 << w.consumer(n)
		}
		if !w.registered(s, n, e) || !w.isFor(i, n) {
			continue
		}
		f.needed |= 1 << n
		switch {
		case s.log[n][e].status != none:
		case w.handles(i, n, e):
			w.push(s, i, n, e, task{version: version})
		default: // for another instance
			s.log[n][e].status = pending
		}
	}
	s.members[i].flights[e] = f
}

// isFor tells whether an instance hands events to a name: the old name of a consumer that it has
// under a new one, or the other way round, is an alias.
func (w *setting) isFor(i, n int) bool { return !w.scene.Renamed || w.has(i, n) }

// claimDelivery leases a waiting delivery from the log, also behind others that the instance has leased.
func (w engine) claimDelivery(s state, i, n, e int) {
	row := s.log[n][e]
	if !w.handles(i, n, e) || s.members[i].tasks[n][e].phase != idle || s.isLocked(n, e) {
		return
	}
	if row.status != pending && row.status != failed && (row.status != processing || !row.due) {
		return
	}
	if w.isBlocked(&s, asker{i, n, s.leasedInLog(i, n)}, e) {
		return
	}
	s.log[n][e] = delivery{status: processing, owner: int8(i + 1), version: row.version + 1}
	w.push(&s, i, n, e, task{version: row.version + 1, retry: true})
	w.add(s, false, "instance %d claims the delivery of event %d to %d", i, e, n)
}

// leasedInLog are the deliveries that an instance has leased from the log, which its lane runs before those behind them.
func (s *state) leasedInLog(i, n int) (set int8) {
	for e, row := range s.log[n] {
		if row.status == processing && int(row.owner) == i+1 && !row.due {
			set |= 1 << e
		}
	}
	return set
}

// isLocked tells whether an open transaction holds the row of the delivery.
func (s *state) isLocked(n, e int) bool {
	for i := range instances {
		if s.members[i].tasks[n][e].phase == open {
			return true
		}
	}
	return false
}
