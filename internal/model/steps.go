package model

import "fmt"

// world is a model with its rules and bounds.
type world struct {
	rules  Rules
	bounds Bounds
	next   []step
}

// step is one way to go on.
type step struct {
	name  string
	to    state
	fault bool // it need not happen: what is only possible through it is no progress
}

func (w *world) add(to state, fault bool, format string, args ...any) {
	w.next = append(w.next, step{fmt.Sprintf(format, args...), to, fault})
}

// steps lists all ways to go on from s.
func (w *world) steps(s state) []step {
	w.next = w.next[:0]
	for i := range instances {
		if !s.members[i].frozen && (i == 0 || !w.bounds.Deploy || s.started) {
			w.work(s, i)
		}
	}
	if w.bounds.Deploy && !s.started {
		s := s
		s.started = true
		w.add(s, false, "the newer release starts")
	}
	w.faults(s)
	w.operator(s)
	if w.rules.Sweep {
		w.sweep(s)
	}
	return w.next
}

// work is what an instance that is awake can do.
func (w *world) work(s state, i int) {
	for e := range events {
		w.claim(s, i, e)
		w.settle(s, i, e)
		w.rollUp(s, i, e)
		for c := range consumers {
			w.claimDelivery(s, i, c, e)
			w.deliver(s, i, c, e)
		}
	}
}

// claim leases an event.
func (w *world) claim(s state, i, e int) {
	ev := s.events[e]
	due := ev.status == evNew || (ev.due && (ev.status == evLeased || ev.status == evParked))
	if s.members[i].flights[e].held || !due {
		return
	}
	for p := range e {
		earlier := s.events[p]
		mine := earlier.status == evLeased && int(earlier.owner) == i+1 && !earlier.due && s.members[i].flights[p].held
		switch {
		case earlier.status == evNew, earlier.status == evLeased && !mine, earlier.status == evParked && w.rules.ParkedCounts:
			return
		}
	}
	s.events[e].version++
	if !w.registered(&s, e) {
		s.events[e] = event{status: evParked, version: s.events[e].version, due: true}
		if ev.status != evParked { // parking again changes nothing
			w.add(s, false, "instance %d parks event %d", i, e)
		}
		return
	}
	s.events[e] = event{status: evLeased, owner: int8(i + 1), version: s.events[e].version}
	m := &s.members[i]
	m.flights[e] = flight{held: true, version: s.events[e].version}
	for c := range consumers {
		switch {
		case s.log[c][e].status != none:
		case w.bounds.handles(i, e):
			m.tasks[c][e] = task{phase: queued, version: s.events[e].version}
		default: // left to the newer release
			s.log[c][e].status = pending
		}
	}
	w.add(s, false, "instance %d claims event %d", i, e)
}

// claimDelivery leases a waiting delivery from the log.
func (w *world) claimDelivery(s state, i, c, e int) {
	row := s.log[c][e]
	if !w.bounds.handles(i, e) || s.members[i].tasks[c][e].phase != idle || w.locked(s, c, e) {
		return
	}
	if row.status != pending && row.status != failed && (row.status != processing || !row.due) {
		return
	}
	if w.blocked(s, i, c, e) {
		return
	}
	s.log[c][e] = delivery{status: processing, owner: int8(i + 1), version: row.version + 1}
	s.members[i].tasks[c][e] = task{phase: queued, version: row.version + 1, retry: true}
	w.add(s, false, "instance %d claims the delivery of event %d to consumer %d", i, e, c)
}

// locked tells whether an open transaction holds the row of the delivery.
func (w *world) locked(s state, c, e int) bool {
	for i := range instances {
		if s.members[i].tasks[c][e].phase == open {
			return true
		}
	}
	return false
}

// blocked tells whether an earlier event is in the way.
func (w *world) blocked(s state, i, c, e int) bool {
	for p := range e {
		if !w.bounds.handles(i, p) && !w.registered(&s, p) {
			continue
		}
		switch st := s.log[c][p].status; {
		case s.events[p].status == evSent, s.events[p].status == evGone, st == success, st == skipped:
		case st == none && !w.rules.BlockedByAny:
		default:
			return true
		}
	}
	return false
}

// holds tells whether the task's lease is still the one it began with.
func (w *world) holds(s state, i, c, e int) bool {
	t := s.members[i].tasks[c][e]
	if t.retry {
		row := s.log[c][e]
		return row.status == processing && int(row.owner) == i+1 && row.version == t.version
	}
	ev := s.events[e]
	return ev.status == evLeased && int(ev.owner) == i+1 && ev.version == t.version
}

// deliver takes a task one step further.
func (w *world) deliver(s state, i, c, e int) {
	t := &s.members[i].tasks[c][e]
	switch t.phase {
	case queued:
		w.firstLook(s, i, c, e)
	case checked:
		w.begin(s, i, c, e)
	case open:
		w.commit(s, i, c, e)
	case failing:
		w.record(s, i, c, e)
	}
}

// firstLook is what a lane knows before the transaction.
func (w *world) firstLook(s state, i, c, e int) {
	t := &s.members[i].tasks[c][e]
	switch {
	case !w.holds(s, i, c, e):
		t.phase = idle
		w.add(s, false, "instance %d gives up event %d for consumer %d", i, e, c)
	case w.blocked(s, i, c, e):
		w.wait(&s, i, c, e)
		w.add(s, false, "event %d waits for consumer %d", e, c)
	default:
		t.phase = checked
		w.add(s, false, "instance %d lets event %d pass to consumer %d", i, e, c)
	}
}

// wait leaves the delivery to the log.
func (w *world) wait(s *state, i, c, e int) {
	t := &s.members[i].tasks[c][e]
	row := &s.log[c][e]
	if row.status == none || (t.retry && w.holds(*s, i, c, e)) {
		*row = delivery{status: pending, version: row.version + 1}
	}
	*t = task{}
}

// begin opens the transaction and writes the marker first: a twin stops here.
func (w *world) begin(s state, i, c, e int) {
	t := &s.members[i].tasks[c][e]
	switch {
	case w.locked(s, c, e):
		return // waits for the twin's transaction
	case !t.retry && s.log[c][e].status != none, t.retry && !w.holds(s, i, c, e):
		*t = task{}
		w.add(s, false, "instance %d finds event %d recorded for consumer %d", i, e, c)
		return
	}
	t.phase = open
	w.add(s, false, "instance %d runs consumer %d with event %d", i, c, e)
}

// commit ends the transaction, or the handler fails.
func (w *world) commit(s state, i, c, e int) {
	if s.failures < int8(w.bounds.Failures) {
		f := s
		f.failures++
		f.members[i].tasks[c][e].phase = failing
		w.add(f, true, "consumer %d fails on instance %d with event %d", c, i, e)
	}
	t := &s.members[i].tasks[c][e]
	if w.rules.LastLook {
		if !w.holds(s, i, c, e) {
			*t = task{}
			w.add(s, false, "instance %d finds event %d lost before it commits for consumer %d", i, e, c)
			return
		}
		if w.blocked(s, i, c, e) {
			w.wait(&s, i, c, e)
			w.add(s, false, "instance %d finds event %d blocked before it commits for consumer %d", i, e, c)
			return
		}
	}
	s.apply(c, e)
	s.log[c][e] = delivery{status: success, version: s.log[c][e].version + 1}
	s.members[i].rollUp[e] = s.members[i].rollUp[e] || t.retry
	*t = task{}
	w.add(s, false, "instance %d commits event %d for consumer %d", i, e, c)
}

// apply notes an effect, and whether it comes before that of an earlier event.
func (s *state) apply(c, e int) {
	s.effects[c][e]++
	for p := range e {
		if s.effects[c][p] == 0 && s.log[c][p].status != skipped {
			s.disorder = true
		}
	}
	for l := e + 1; l < events; l++ {
		if s.effects[c][l] > 0 && s.log[c][e].status != skipped {
			s.disorder = true
		}
	}
}

// record stores a failure: for another attempt, or as the last one.
func (w *world) record(s state, i, c, e int) {
	t, row := s.members[i].tasks[c][e], s.log[c][e]
	mine := (t.retry && w.holds(s, i, c, e)) || (!t.retry && row.status == none)
	if !t.retry && w.locked(s, c, e) {
		return
	}
	for _, as := range []int8{failed, dead} {
		to := s
		to.members[i].tasks[c][e] = task{}
		if mine {
			to.log[c][e] = delivery{status: as, version: row.version + 1}
			to.members[i].rollUp[e] = to.members[i].rollUp[e] || t.retry
		}
		w.add(to, false, "instance %d records %s for consumer %d and event %d", i, map[int8]string{failed: "a failure", dead: "the last failure"}[as], c, e)
		if !mine {
			return
		}
	}
}

// computed is the status that the deliveries of an event amount to. Settling gives back an event
// that a consumer has not even got.
func (s *state) computed(e int) int8 {
	missing, waiting, isDead := false, false, false
	for c := range consumers {
		switch s.log[c][e].status {
		case none:
			missing = true
		case pending, processing, failed:
			waiting = true
		case dead:
			isDead = true
		}
	}
	switch {
	case missing:
		return evNew
	case waiting:
		return evFailed
	case isDead:
		return evDead
	}
	return evSent
}

// settle ends a flight of which nothing runs any more.
func (w *world) settle(s state, i, e int) {
	f := &s.members[i].flights[e]
	if !f.held {
		return
	}
	for c := range consumers {
		if t := s.members[i].tasks[c][e]; t.phase != idle && !t.retry {
			return
		}
	}
	if !w.rules.UnderLock && f.read == 0 {
		f.read = s.computed(e) + 1
		w.add(s, false, "instance %d looks how event %d went", i, e)
		return
	}
	status := s.computed(e)
	if !w.rules.UnderLock {
		status = f.read - 1
	}
	ev := &s.events[e]
	if ev.status == evLeased && int(ev.owner) == i+1 && ev.version == f.version {
		*ev = event{status: status, version: ev.version + 1}
	}
	*f = flight{}
	w.add(s, false, "instance %d settles event %d", i, e)
}

// rollUp brings the status up to date after a retried delivery.
func (w *world) rollUp(s state, i, e int) {
	m := &s.members[i]
	if !m.rollUp[e] {
		return
	}
	if !w.rules.UnderLock && m.read[e] == 0 {
		m.read[e] = s.computed(e) + 1
		w.add(s, false, "instance %d looks how the retry of event %d went", i, e)
		return
	}
	status := s.computed(e)
	if !w.rules.UnderLock {
		status = m.read[e] - 1
	}
	s.rolled(e, status)
	m.rollUp[e], m.read[e] = false, 0
	w.add(s, false, "instance %d rolls up event %d", i, e)
}

// rolled writes a status, unless the event is in the hands of a publisher.
func (s *state) rolled(e int, status int8) {
	if st := s.events[e].status; st == evFailed || st == evDead || st == evSent {
		s.events[e] = event{status: status, version: s.events[e].version}
	}
}

// sweep recomputes FAILED events none of whose deliveries waits.
func (w *world) sweep(s state) {
	for e := range events {
		if s.events[e].status == evFailed && s.computed(e) != evFailed {
			to := s
			to.rolled(e, to.computed(e))
			w.add(to, false, "the sweep recomputes event %d", e)
		}
	}
}
