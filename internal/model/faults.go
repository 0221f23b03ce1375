package model

// faults are what may happen to instances and rows.
func (w *world) faults(s state) {
	for i := range instances {
		w.crash(s, i)
		w.freeze(s, i)
	}
	for e := range events {
		w.expire(s, e)
		w.retain(s, e)
	}
}

// crash ends a process and starts another in its place: the transactions roll back, the memory is gone.
func (w *world) crash(s state, i int) {
	if s.crashes == int8(w.bounds.Crashes) || s.members[i] == (member{}) {
		return
	}
	s.crashes++
	s.members[i] = member{}
	s.orphan(i)
	w.add(s, true, "instance %d crashes", i)
}

// orphan lets the leases of an instance run out: nobody renews them.
func (s *state) orphan(i int) {
	for e := range events {
		if ev := &s.events[e]; ev.status == evLeased && int(ev.owner) == i+1 {
			ev.due = true
		}
		for c := range consumers {
			if row := &s.log[c][e]; row.status == processing && int(row.owner) == i+1 {
				row.due = true
			}
		}
	}
}

// freeze stops a process for longer than its leases; the server ends its transactions meanwhile.
// It wakes up without having noticed.
func (w *world) freeze(s state, i int) {
	if s.members[i].frozen {
		s.members[i].frozen = false
		w.add(s, false, "instance %d wakes up", i)
		return
	}
	if s.freezes == int8(w.bounds.Freezes) {
		return
	}
	s.freezes++
	s.members[i].frozen = true
	for c := range consumers {
		for e := range events {
			if t := &s.members[i].tasks[c][e]; t.phase == open {
				*t = task{}
			}
		}
	}
	s.orphan(i)
	w.add(s, true, "instance %d freezes", i)
}

// expire takes a lease from an instance that works, only too slowly.
func (w *world) expire(s state, e int) {
	if s.expiries == int8(w.bounds.Expiries) {
		return
	}
	s.expiries++
	if ev := s.events[e]; ev.status == evLeased && !ev.due {
		to := s
		to.events[e].due = true
		w.add(to, true, "the lease of event %d runs out", e)
	}
	for c := range consumers {
		if row := s.log[c][e]; row.status == processing && !row.due {
			to := s
			to.log[c][e].due = true
			w.add(to, true, "the lease of event %d for consumer %d runs out", e, c)
		}
	}
}

// retain removes a SENT event with its deliveries.
func (w *world) retain(s state, e int) {
	if s.retentions == int8(w.bounds.Retentions) || s.events[e].status != evSent {
		return
	}
	for c := range consumers {
		if w.locked(s, c, e) {
			return
		}
	}
	s.retentions++
	s.events[e] = event{status: evGone}
	for c := range consumers {
		s.log[c][e] = delivery{}
	}
	w.add(s, true, "retention removes event %d", e)
}

// operator retries and skips.
func (w *world) operator(s state) {
	for e := range events {
		if s.opTodo[e] {
			w.operatorRollUp(s, e)
		}
		if s.operations == int8(w.bounds.Operations) || s.events[e].status == evGone {
			continue
		}
		for c := range consumers {
			row := s.log[c][e]
			if w.locked(s, c, e) {
				continue
			}
			if row.status == dead || row.status == failed || row.status == skipped {
				w.intervene(s, c, e, pending, "retries")
			}
			if row.status == dead || row.status == failed || row.status == pending {
				w.intervene(s, c, e, skipped, "skips")
			}
		}
	}
}

func (w *world) intervene(s state, c, e int, status int8, verb string) {
	if s.log[c][e].status == skipped && s.skippedPast(c, e) {
		return // later effects have passed: taking it back breaks the order, as the operator knows
	}
	s.operations++
	s.log[c][e] = delivery{status: status, version: s.log[c][e].version + 1}
	if w.rules.UnderLock {
		s.rolled(e, s.computed(e))
	} else {
		s.opTodo[e] = true
	}
	w.add(s, true, "an operator %s event %d for consumer %d", verb, e, c)
}

// skippedPast tells whether a later event has passed, or is about to.
func (s *state) skippedPast(c, e int) bool {
	for l := e + 1; l < events; l++ {
		if s.effects[c][l] > 0 {
			return true
		}
	}
	return false
}

func (w *world) operatorRollUp(s state, e int) {
	if s.opRead[e] == 0 {
		s.opRead[e] = s.computed(e) + 1
		w.add(s, false, "the operator's tool looks how event %d stands", e)
		return
	}
	s.rolled(e, s.opRead[e]-1)
	s.opRead[e], s.opTodo[e] = 0, false
	w.add(s, false, "the operator's tool writes the status of event %d", e)
}
