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

// deliver takes the deliveries of a lane one step further.
func (w engine) deliver(s state, i, n int) {
	for batch := int8(1); batch < 1<<w.scene.Events; batch++ {
		if w.mayBatch(&s, i, n, batch) {
			w.begin(s, i, n, batch)
		}
	}
	for e := range w.scene.Events {
		switch s.members[i].tasks[n][e].phase {
		case queued:
			w.spill(s, i, n, e)
			w.giveBack(s, i, n, e)
		case open:
			w.fail(s, i, n, e)
			w.commit(s, i, n, e)
		case failing:
			w.record(s, i, n, e)
		}
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

// giveBack ends a delivery that has not started: its payload finds no room, or the database was away.
func (w engine) giveBack(s state, i, n, e int) {
	if s.happened.PutBacks == w.scene.PutBacks {
		return
	}
	s.happened.PutBacks++
	if s.members[i].tasks[n][e].retry {
		w.wait(&s, i, n, e)
	} else {
		s.drop(i, n, e)
	}
	w.add(s, true, "instance %d gives event %d back for %d", i, e, n)
}

// wait leaves the delivery to the log.
func (w engine) wait(s *state, i, n, e int) {
	t, row := &s.members[i].tasks[n][e], &s.log[n][e]
	if row.status == none || (t.retry && s.holds(i, n, e)) {
		*row = delivery{status: pending, version: row.version + 1}
	}
	s.drop(i, n, e)
}

// begin opens the transaction of a batch and writes the markers first: a twin stops here. Then it asks. If one may not run, nothing does.
func (w engine) begin(s state, i, n int, batch int8) {
	for e := range in(batch) {
		if s.isLocked(n, e) {
			return // waits for the twin's transaction
		}
	}
	for e := range in(batch) {
		if w.setAside(s, i, n, e, batch) {
			return
		}
	}
	for e := range in(batch) {
		t := &s.members[i].tasks[n][e]
		if t.phase, t.early = open, w.owed(&s, n, e); w.rules.BatchInOrder {
			t.behind = 0
		}
	}
	w.add(s, false, "instance %d runs %d with the events %v", i, n, s.inLine(i, n, batch))
}

// setAside ends a delivery of a batch that may not run, or tells that it may.
func (w engine) setAside(s state, i, n, e int, batch int8) bool {
	t := s.members[i].tasks[n][e]
	asks := t.retry || w.rules.DirectAsk
	switch {
	case !t.retry && s.log[n][e].status != none, t.retry && !s.holds(i, n, e):
		s.drop(i, n, e)
		w.add(s, false, "instance %d finds event %d recorded for %d", i, e, n)
	case asks && s.events[e].status == evGone:
		s.log[n][e] = delivery{status: dead, version: s.log[n][e].version + 1}
		s.drop(i, n, e)
		w.add(s, false, "instance %d finds event %d gone", i, e)
	case asks && !s.holds(i, n, e):
		s.drop(i, n, e)
		w.add(s, false, "instance %d finds event %d lost for %d", i, e, n)
	case asks && w.isBlocked(&s, asker{i, n, batch}, e):
		w.wait(&s, i, n, e)
		w.add(s, false, "event %d waits for %d", e, n)
	case i == 0 && w.isNewVersion(n, e):
		w.refuse(s, i, n, e)
	default:
		return false
	}
	return true
}

// refuse makes a delivery DEAD because this release does not know the schema version.
func (w engine) refuse(s state, i, n, e int) {
	s.log[n][e] = delivery{status: dead, version: s.log[n][e].version + 1}
	s.unfair = true
	s.drop(i, n, e)
	w.add(s, false, "instance %d does not know the version of event %d for %d", i, e, n)
}

// fail is the handler's. The rest of the batch runs again, without what has failed.
func (w engine) fail(s state, i, n, e int) {
	if s.happened.Failures == w.scene.Failures {
		return
	}
	s.happened.Failures++
	for o := range in(w.inPhase(&s, i, n, e, open)) {
		t := &s.members[i].tasks[n][o]
		t.phase, t.early = queued, 0
	}
	t := s.members[i].tasks[n][e]
	s.drop(i, n, e)
	s.members[i].tasks[n][e] = task{phase: failing, version: t.version, retry: t.retry}
	w.add(s, true, "%d fails on instance %d with event %d", n, i, e)
}

// commit ends the transaction of the batch that begins with an event.
func (w engine) commit(s state, i, n, e int) {
	line := s.inLine(i, n, w.inPhase(&s, i, n, e, open))
	if line[0] != e {
		return
	}
	for _, e := range line {
		t := s.members[i].tasks[n][e]
		w.apply(&s, n, e, t.early)
		s.log[n][e] = delivery{status: success, version: s.log[n][e].version + 1}
		s.members[i].rollUp[e] = s.members[i].rollUp[e] || t.retry
	}
	for _, e := range line {
		s.drop(i, n, e)
	}
	w.add(s, false, "instance %d commits the events %v for %d", i, line, n)
}

// record stores a failure: for another attempt, or as the last one.
func (w engine) record(s state, i, n, e int) {
	t, row := s.members[i].tasks[n][e], s.log[n][e]
	if !t.retry && s.isLocked(n, e) {
		return
	}
	s.drop(i, n, e)
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
