// Package claim decides which due work comes next. [Turns] says which kind has its turn, so that the backlog of one kind starves
// no other. [Watermark] and [Walk] say where a claim starts, [Agenda] says when to look again, and [Handover] takes what was just
// committed, without a search. [Claimer] leases events.
//
// It has no SQL of its own and starts no goroutine: a publisher and its lanes ask it, and tell it what they have done.
package claim

// Kind is a kind of due work. Each is found by a statement of its own.
type Kind uint8

// The kinds of due work. A publisher claims events of the first three and lets its lanes claim deliveries; a lane tells
// those apart by the state that they waited in.
const (
	New        Kind = iota // events that nobody has claimed yet
	Scheduled              // delayed and parked events that have fallen due
	Expired                // events whose lease has run out
	Deliveries             // deliveries that wait in the consume log and have never run
	Retries                // deliveries that run again
	Orphans                // deliveries whose lease has run out
	kinds
)

// Kinds is a set of kinds.
type Kinds uint8

// Of is the set of some kinds.
func Of(some ...Kind) (s Kinds) {
	for _, k := range some {
		s |= 1 << k
	}
	return s
}

// All is the set of all kinds.
const All = Kinds(1<<kinds - 1)

// Has tells whether the set holds a kind.
func (s Kinds) Has(k Kind) bool { return s&(1<<k) != 0 }

// Without is the set less one kind.
func (s Kinds) Without(k Kind) Kinds { return s &^ (1 << k) }

// Turns gives each kind its turn. The zero value works.
type Turns struct {
	last [kinds]uint64 // number of the last turn
	n    uint64
}

// Next is the kind of a set whose last turn is the longest ago. It reports false for the empty set.
func (t *Turns) Next(of Kinds) (next Kind, ok bool) {
	for k := range kinds {
		if of.Has(k) && (!ok || t.last[k] < t.last[next]) {
			next, ok = k, true
		}
	}
	return next, ok
}

// Take notes that a kind has had its turn.
func (t *Turns) Take(k Kind) {
	t.n++
	t.last[k] = t.n
}
