package model

// surroundings are what happens to the engine: producers, faults, releases and retention.
type surroundings struct{ *world }

// faults are what may happen to instances and rows.
func (w surroundings) faults(s state) {
	for i := range instances {
		if w.runs(&s, i) {
			w.crash(s, i)
			w.freeze(s, i)
		}
	}
	for e := range w.scene.Events {
		w.expire(s, e)
	}
}

// crash ends a process and starts another in its place: the transactions roll back, the memory is gone.
func (w surroundings) crash(s state, i int) {
	if s.happened.Crashes == w.scene.Crashes || s.members[i] == (member{}) {
		return
	}
	s.happened.Crashes++
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
		for n := range names {
			if row := &s.log[n][e]; row.status == processing && int(row.owner) == i+1 {
				row.due = true
			}
		}
	}
}

// freeze stops a process for longer than its leases; the server ends its transactions meanwhile.
// It wakes up without having noticed.
func (w surroundings) freeze(s state, i int) {
	if s.members[i].frozen {
		s.members[i].frozen = false
		for n := range names {
			s.expired[n] = s.expired[n] && !w.has(i, n)
		}
		w.add(s, false, "instance %d wakes up", i)
		return
	}
	if s.happened.Freezes == w.scene.Freezes {
		return
	}
	s.happened.Freezes++
	s.members[i].frozen = true
	for n := range names {
		for e := range events {
			if s.members[i].tasks[n][e].phase == open {
				s.drop(i, n, e)
			}
		}
	}
	s.orphan(i)
	w.add(s, true, "instance %d freezes", i)
}

// expire takes a lease from an instance that works, only too slowly.
func (w surroundings) expire(s state, e int) {
	if s.happened.Expiries == w.scene.Expiries {
		return
	}
	s.happened.Expiries++
	if ev := s.events[e]; ev.status == evLeased && !ev.due {
		to := s
		to.events[e].due = true
		w.add(to, true, "the lease of event %d runs out", e)
	}
	for n := range names {
		if row := s.log[n][e]; row.status == processing && !row.due {
			to := s
			to.log[n][e].due = true
			w.add(to, true, "the lease of event %d for %d runs out", e, n)
		}
	}
}
