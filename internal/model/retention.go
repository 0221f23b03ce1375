package model

// retention removes SENT events with their deliveries.
func (w surroundings) retention(s state) {
	for e := range w.scene.Events {
		switch {
		case s.found[e] > 0:
			w.remove(s, e)
		case s.happened.Retentions == w.scene.Retentions || s.events[e].status != evSent:
		case w.rules.RetentionLocks:
			s := s
			s.happened.Retentions++
			w.remove(s, e)
		default:
			s := s
			s.happened.Retentions++
			s.found[e] = s.events[e].version + 1
			w.add(s, true, "retention finds event %d", e)
		}
	}
}

// remove removes the deliveries of an event, and the event if it is as it was found. It waits for
// transactions that hold its rows.
func (w surroundings) remove(s state, e int) {
	for n := range names {
		if s.isLocked(n, e) {
			return
		}
	}
	for n := range names {
		s.log[n][e] = delivery{}
	}
	if s.events[e].status == evSent && (s.found[e] == 0 || s.found[e] == s.events[e].version+1) {
		s.events[e] = event{status: evGone}
	}
	s.found[e] = 0
	w.add(s, true, "retention removes event %d", e)
}
