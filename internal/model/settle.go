package model

// computed is the status that the deliveries of an event amount to. An event that one of the needed
// names has not even got is given back.
func (s *state) computed(e int, needed int8) int8 {
	missing, waiting, isDead, called := false, false, false, false
	for n := range names {
		st := s.log[n][e].status
		called = called || st != none
		switch st {
		case none:
			missing = missing || needed&(1<<n) != 0
		case pending, processing, failed:
			waiting = true
		case dead:
			isDead = true
		}
	}
	switch {
	case missing, !called && s.events[e].status == evFailed:
		return evNew
	case waiting:
		return evFailed
	case isDead:
		return evDead
	}
	return evSent
}

// settle ends a flight of which nothing runs any more.
func (w engine) settle(s state, i, e int) {
	f := &s.members[i].flights[e]
	if !f.held {
		return
	}
	for n := range names {
		if t := s.members[i].tasks[n][e]; t.phase != idle && !t.retry {
			return
		}
	}
	if !w.rules.UnderLock && f.read == 0 {
		f.read = s.computed(e, f.needed) + 1
		w.add(s, false, "instance %d looks how event %d went", i, e)
		return
	}
	status := s.computed(e, f.needed)
	if !w.rules.UnderLock {
		status = f.read - 1
	}
	ev := &s.events[e]
	if ev.status == evLeased && int(ev.owner) == i+1 && ev.version == f.version {
		*ev = event{status: status, version: ev.version + 1, needed: ev.needed}
	}
	*f = flight{}
	w.add(s, false, "instance %d settles event %d", i, e)
}

// rollUp brings the status up to date after a retried delivery.
func (w engine) rollUp(s state, i, e int) {
	m := &s.members[i]
	if !m.rollUp[e] {
		return
	}
	if !w.rules.UnderLock && m.read[e] == 0 {
		m.read[e] = s.computed(e, 0) + 1
		w.add(s, false, "instance %d looks how the retry of event %d went", i, e)
		return
	}
	status := s.computed(e, 0)
	if !w.rules.UnderLock {
		status = m.read[e] - 1
	}
	s.rolled(e, status)
	m.rollUp[e], m.read[e] = false, 0
	w.add(s, false, "instance %d rolls up event %d", i, e)
}

// rolled writes a status, unless the event is in flight.
func (s *state) rolled(e int, status int8) {
	ev := &s.events[e]
	if (ev.status == evFailed || ev.status == evDead || ev.status == evSent) && ev.status != status {
		*ev = event{status: status, version: ev.version + 1, needed: ev.needed}
	}
}

// sweep recomputes FAILED events none of whose deliveries waits.
func (w engine) sweep(s state) {
	for e := range w.scene.Events {
		if status := s.computed(e, 0); s.events[e].status == evFailed && status != evFailed {
			to := s
			to.rolled(e, status)
			w.add(to, false, "the sweep recomputes event %d", e)
		}
	}
}
