package model

// release starts the newer release, and may forget consumers whose instances are away.
func (w surroundings) release(s state) {
	w.startNewer(s)
	if w.rules.RegistrationStays || !w.scene.Apart {
		return
	}
	for n := range names {
		if s.members[n].frozen && !s.expired[n] { // the instance that has it
			to := s
			to.expired[n] = true
			w.add(to, true, "the registration of %d runs out", n)
		}
	}
}

// startNewer lets the newer release register what it takes.
func (w surroundings) startNewer(s state) {
	if !w.deploys() || s.started {
		return
	}
	s.started = true
	w.register(&s)
	w.add(s, false, "the newer release starts")
}
