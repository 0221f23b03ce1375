package model

// The states of an event.
const (
	evNew     int8 = iota
	evUnborn       // its transaction has not committed
	evDelayed      // SCHEDULED, and never claimed
	evParked       // SCHEDULED, because nobody takes its type
	evLeased
	evSent
	evFailed
	evDead
	evGone // removed by retention
)

// The states of a delivery in the log.
const (
	none int8 = iota
	pending
	processing
	failed
	success
	dead
	skipped
)

// The phases of a delivery in the memory of an instance.
const (
	idle    int8 = iota
	queued       // in its lane
	open         // its transaction is open, its marker in, its handler at work
	failing      // its handler has failed and the transaction is rolled back
)

// event is a row of the outbox.
type event struct {
	status, owner, version int8 // owner is 0 for nobody, else the instance's number plus one
	due                    bool // the lease is over
	needed                 int8 // the consumers that took its type when it was claimed, as bits
}

// delivery is a row of the consume log.
type delivery struct {
	status, owner, version int8
	due                    bool
}

// task is a delivery in memory.
type task struct {
	phase, version int8
	retry          bool // from the log, not directly from a claim
	behind         int8 // the later events, as bits, that were there before it
	early          int8 // the events, as bits, that were to come first when the handler began
}

// flight is a claimed event in memory.
type flight struct {
	held    bool
	version int8
	needed  int8 // the names that must have an outcome, as bits
	read    int8 // the status that was computed, plus one, and is not written yet
}

// member is one instance.
type member struct {
	frozen  bool
	tasks   [names][events]task
	flights [events]flight
	rollUp  [events]bool // a retried delivery has ended: the status is to be computed
	read    [events]int8 // by the roll-up, plus one
}

// state is everything. It is comparable, so that it can be recognised.
type state struct {
	events   [events]event
	log      [names][events]delivery
	members  [instances]member
	effects  [names][events]int8
	disorder bool
	unfair   bool         // a delivery is DEAD whose handler was never called
	passed   [events]int8 // by event: those, as bits, that need not wait for it

	started bool        // the newer release has registered what it takes
	expired [names]bool // the registration has been dropped

	fill fill

	opRead [events]int8 // an operator's computed status, plus one
	opTodo [events]bool
	found  [events]int8 // the version that retention has found, plus one

	happened Faults
}

// takePlace makes a delayed event an ordinary one, from which moment on others wait for it that are
// not in hand.
func (s *state) takePlace(e int) {
	s.events[e] = event{status: evNew, version: 1}
	for l := range events {
		if s.events[l].status == evLeased {
			s.passed[e] |= 1 << l
		}
	}
}

// isThere tells whether an event has taken its place and still has a row that is not SENT.
func (s *state) isThere(e int) bool {
	switch s.events[e].status {
	case evUnborn, evDelayed, evSent, evGone:
		return false
	}
	return true
}

// isInHand tells whether an event is NEW, parked or leased.
func (s *state) isInHand(e int) bool {
	st := s.events[e].status
	return st == evNew || st == evParked || st == evLeased
}

// isLeasedBy tells whether an instance has a lease of the event that has not run out.
func (s *state) isLeasedBy(i, e int) bool {
	ev := s.events[e]
	return ev.status == evLeased && int(ev.owner) == i+1 && !ev.due
}

// isLeased tells whether anybody has one.
func (s *state) isLeased(e int) bool { return s.events[e].status == evLeased && !s.events[e].due }

// swap exchanges the numbers of the instances.
func (s *state) swap() {
	other := func(owner int8) int8 {
		if owner == 0 {
			return 0
		}
		return instances + 1 - owner
	}
	s.members[0], s.members[1] = s.members[1], s.members[0]
	for e := range events {
		s.events[e].owner = other(s.events[e].owner)
		for n := range names {
			s.log[n][e].owner = other(s.log[n][e].owner)
		}
	}
}
