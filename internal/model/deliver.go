package model

// holds tells whether the task's lease is still the one it began with.
func (s *state) holds(i, n, e int) bool { return s.holdsTask(s.members[i].tasks[n][e], i, n, e) }

func (s *state) holdsTask(t task, i, n, e int) bool {
	if t.retry {
		row := s.log[n][e]
		return row.status == processing && int(row.owner) == i+1 && row.version == t.version
	}
	ev := s.events[e]
	return ev.status == evLeased && int(ev.owner) == i+1 && ev.version == t.version
}

// isOver tells whether the task's lease has run out, and anybody may take it.
func (s *state) isOver(i, n, e int) bool {
	if s.members[i].tasks[n][e].retry {
		return s.log[n][e].due
	}
	return s.events[e].due
}

// deliver takes a task one step further.
func (w engine) deliver(s state, i, n, e int) {
	switch s.members[i].tasks[n][e].phase {
	case queued:
		w.spill(s, i, n, e)
		w.begin(s, i, n, e)
	case open:
		w.fail(s, i, n, e)
		w.commit(s, i, n, e)
	case failing:
		w.record(s, i, n, e)
	}
}

// spill leaves a delivery for which its lane has no room to the log.
func (w engine) spill(s state, i, n, e int) {
	if s.members[i].tasks[n][e].retry || s.happened.Spills == w.scene.Spills {
		return
	}
	s.happened.Spills++
	w.wait(&s, i, n, e)
	w.add(s, true, "instance %d spills event %d for %d", i, e, n)
}

// wait leaves the delivery to the log.
func (w engine) wait(s *state, i, n, e int) {
	t, row := &s.members[i].tasks[n][e], &s.log[n][e]
	if row.status == none || (t.retry && s.holds(i, n, e)) {
		*row = delivery{status: pending, version: row.version + 1}
	}
	s.members[i].tasks[n][e] = task{}
}

// isNext tells whether the lane may run a delivery now: it runs one of an aggregate at a time, in order.
func (w *questions) isNext(s *state, i, n, e int) bool {
	for p := range w.scene.Events {
		if p == e || !w.sibling(p, e) {
			continue
		}
		t := s.members[i].tasks[n][p]
		if t.phase > queued || (p < e && t.phase == queued && !w.isDelayed(p)) {
			return false
		}
	}
	return true
}

// begin opens the transaction and writes the marker first: a twin stops here. Then it asks.
func (w engine) begin(s state, i, n, e int) {
	t := s.members[i].tasks[n][e]
	asks := t.retry || w.rules.DirectAsk
	switch {
	case s.isLocked(n, e), !w.isNext(&s, i, n, e):
		return // waits for the twin's transaction, or for its turn
	case !t.retry && s.log[n][e].status != none, t.retry && !s.holds(i, n, e):
		s.members[i].tasks[n][e] = task{}
		w.add(s, false, "instance %d finds event %d recorded for %d", i, e, n)
		return
	case asks && s.events[e].status == evGone:
		s.log[n][e] = delivery{status: dead, version: s.log[n][e].version + 1}
		s.members[i].tasks[n][e] = task{}
		w.add(s, false, "instance %d finds event %d gone", i, e)
		return
	case asks && !s.holds(i, n, e):
		s.members[i].tasks[n][e] = task{}
		w.add(s, false, "instance %d finds event %d lost for %d", i, e, n)
		return
	case asks && w.isBlocked(&s, i, n, e):
		w.wait(&s, i, n, e)
		w.add(s, false, "event %d waits for %d", e, n)
		return
	case i == 0 && w.isNewVersion(n, e):
		w.refuse(s, i, n, e)
		return
	}
	s.members[i].tasks[n][e].phase, s.members[i].tasks[n][e].early = open, w.owed(&s, n, e)
	w.add(s, false, "instance %d runs %d with event %d", i, n, e)
}

// refuse makes a delivery DEAD because this release does not know the schema version.
func (w engine) refuse(s state, i, n, e int) {
	s.log[n][e] = delivery{status: dead, version: s.log[n][e].version + 1}
	s.unfair = true
	s.members[i].tasks[n][e] = task{}
	w.add(s, false, "instance %d does not know the version of event %d for %d", i, e, n)
}

// fail is the handler's.
func (w engine) fail(s state, i, n, e int) {
	if s.happened.Failures == w.scene.Failures {
		return
	}
	s.happened.Failures++
	s.members[i].tasks[n][e].phase = failing
	w.add(s, true, "%d fails on instance %d with event %d", n, i, e)
}

// commit ends the transaction.
func (w engine) commit(s state, i, n, e int) {
	t := s.members[i].tasks[n][e]
	w.apply(&s, n, e, t.early)
	s.log[n][e] = delivery{status: success, version: s.log[n][e].version + 1}
	s.members[i].rollUp[e] = s.members[i].rollUp[e] || t.retry
	s.members[i].tasks[n][e] = task{}
	w.add(s, false, "instance %d commits event %d for %d", i, e, n)
}

// record stores a failure: for another attempt, or as the last one.
func (w engine) record(s state, i, n, e int) {
	t, row := s.members[i].tasks[n][e], s.log[n][e]
	if !t.retry && s.isLocked(n, e) {
		return
	}
	s.members[i].tasks[n][e] = task{}
	if (t.retry && !s.holdsTask(t, i, n, e)) || (!t.retry && row.status != none) {
		w.add(s, false, "instance %d finds event %d of %d in other hands", i, e, n)
		return
	}
	s.members[i].rollUp[e] = s.members[i].rollUp[e] || t.retry
	s.log[n][e] = delivery{status: failed, version: row.version + 1}
	w.add(s, false, "instance %d records a failure of %d and event %d", i, n, e)
	s.log[n][e].status = dead
	w.add(s, false, "instance %d records the last failure of %d and event %d", i, n, e)
}
