package model

import "slices"

// fill is how far the backfill of a consumer has come that wants what was handed out before it was registered.
type fill struct {
	isOpen        bool
	reached, upTo int8 // it goes on with this event, and ends before that one, which is 0 as long as it has not been found out
	past          int8 // the events, as bits, that the consumer can get only by it
}

// newcomer is the consumer that wants the past, or none.
func (w *setting) newcomer() int {
	if !w.scene.Newcomer && len(w.scene.Past) == 0 {
		return names
	}
	return w.scene.Consumers - 1
}

// comesLater tells whether a consumer is one that only the newer release has.
func (w *setting) comesLater(n int) bool { return w.scene.Newcomer && n == w.newcomer() }

func (w *setting) isPast(e int) bool { return slices.Contains(w.scene.Past, e) }

// register opens the backfill of the newcomer, together with its registration.
func (w *setting) register(s *state) {
	s.fill.isOpen = w.newcomer() < names
	for e, ev := range s.events {
		switch ev.status {
		case evLeased, evSent, evFailed, evDead:
			if s.fill.isOpen {
				s.fill.past |= 1 << e
			}
		}
	}
}

// backfill gives the newcomer the next event of the past, unless an instance has it in flight: whoever claimed that one may not have
// known the newcomer. What is new gets there by itself.
func (w engine) backfill(s state, i int) {
	f, n := &s.fill, w.newcomer()
	switch {
	case !f.isOpen || !w.has(i, n):
		return
	case f.upTo == 0:
		f.upTo = w.behindAll(&s)
		w.add(s, false, "instance %d finds that the past ends before event %d", i, f.upTo)
		return
	case f.reached >= f.upTo:
		f.isOpen = false
		w.add(s, false, "instance %d ends the backfill", i)
		return
	}
	e := int(f.reached)
	switch s.events[e].status {
	case evLeased:
		if w.rules.PastInFlightWaits {
			return
		}
	case evSent, evFailed, evDead:
		if s.log[n][e].status == none || !w.rules.PastOnce {
			s.log[n][e] = delivery{status: pending, version: s.log[n][e].version + 1}
			s.rolled(e, s.computed(e, 0))
		}
	}
	f.reached++
	w.add(s, false, "instance %d is through with event %d of the past", i, e)
}

// behindAll is the event after all that are committed.
func (w *setting) behindAll(s *state) (next int8) {
	for e := range w.scene.Events {
		if s.events[e].status != evUnborn {
			next = int8(e + 1)
		}
	}
	return next
}

// firstPast is the first event of e's aggregate that an open backfill still has to give to whoever asks, or one after all.
func (w *questions) firstPast(s *state, a asker, e int) int {
	if !s.fill.isOpen || a.name != w.newcomer() {
		return events
	}
	for p := int(s.fill.reached); p < w.scene.Events && (s.fill.upTo == 0 || p < int(s.fill.upTo)); p++ {
		switch s.events[p].status {
		case evUnborn, evDelayed, evParked, evGone:
			continue
		}
		if w.sibling(p, e) && s.log[a.name][p].status == none && !w.passes(s, a, p) {
			return p
		}
	}
	return events
}

// owesPast tells whether a consumer has yet to do an event of the past.
func (w *promises) owesPast(s *state, n, e int) bool {
	return n == w.newcomer() && s.fill.past&(1<<e) != 0 && s.events[e].status != evGone && s.effects[n][e] == 0 && !w.isDone(s, n, e)
}
