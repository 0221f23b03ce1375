// Package model is a small model of the engine that can be explored exhaustively: a few instances,
// consumers and events, every step of a claim, a delivery, a retry, a settling and a roll-up, and
// between any two of them a crash, a freeze, a lost lease, a failing handler, an operator, a new
// release or retention.
//
// # Contract
//
// [Explore] visits every state that the steps of a [Scene] can reach, the shortest ways first, and
// returns the way to the first state that breaks a promise: an effect that happens twice, an order
// that is broken, two instances at work on one aggregate, an event that is SENT while somebody waits
// for it, a delivery that is DEAD and never failed, or an event that nobody will ever finish. Each of
// the engine's rules can be switched off in [Rules]; the model then finds out what it is for.
//
// The model knows no time: a lease may run out at any moment. What it calls a step is one transaction of the engine, which
// runs a delivery or several of one aggregate, or what the engine does in memory between two of them. What a lane has queued can be
// put back, and be claimed again behind later deliveries. A backfill gives one event at a time.
// What a process reads from the registry is up to date.
// [ExploreCrashLoop] does the same with a model of its own for processes that their own handlers kill.
package model

import "hash/maphash"

// world is a model with its rules and its scene.
type world struct {
	promises
	next []step[state]

	swaps bool // of two states that differ by the numbers of the instances one is visited
	seed  maphash.Seed
}

func newWorld(rules Rules, scene Scene) *world {
	w := &world{promises: promises{questions{setting{rules, scene}}}, seed: maphash.MakeSeed()}
	w.swaps = !w.deploys() && !w.scene.Apart
	return w
}

// Explore visits all states that can be reached. It fails if there are more than most of them.
func Explore(rules Rules, scene Scene, most int) (Explored, error) {
	return newWorld(rules, scene).explore(most, nil)
}

// explore shows each state to visit, if there is one. A way to a broken promise is looked for once more, with instances that keep their
// numbers.
func (w *world) explore(most int, visit func(*state)) (Explored, error) {
	seen, err := explore(w, most, visit)
	if seen.Violation == nil || !w.swaps {
		return seen, err
	}
	w.swaps = false
	return explore(w, most, nil)
}

// add notes a way to go on. A fault need not happen: what is only possible through it is no progress.
func (w *world) add(to state, fault bool, format string, args ...any) {
	if w.swaps && maphash.Comparable(w.seed, to.members[0]) > maphash.Comparable(w.seed, to.members[1]) {
		to.swap()
	}
	w.next = append(w.next, step[state]{to, fault, format, args})
}

// start is the state before anything has happened.
func (w *world) start() state {
	var s state
	for e := range w.scene.Events {
		switch {
		case w.scene.isLate(e):
			s.events[e].status = evUnborn
		case w.scene.isDelayed(e):
			s.events[e].status = evDelayed
		case w.isPast(e):
			s.events[e] = event{status: evSent, version: 2}
		}
	}
	if !w.deploys() {
		w.register(&s)
	}
	return s
}

// steps lists all ways to go on from s.
func (w *world) steps(s state) []step[state] {
	w.next = w.next[:0]
	for i := range instances {
		if !s.members[i].frozen && w.runs(&s, i) {
			engine{w}.work(s, i)
		}
	}
	around := surroundings{w}
	around.producers(s)
	around.release(s)
	around.faults(s)
	around.retention(s)
	operator{w}.acts(s)
	if w.rules.Sweep {
		engine{w}.sweep(s)
	}
	return w.next
}

// work is what an instance that is awake can do.
func (w engine) work(s state, i int) {
	for e := range w.scene.Events {
		w.claim(s, i, e)
		w.settle(s, i, e)
		w.rollUp(s, i, e)
		for n := range names {
			w.claimDelivery(s, i, n, e)
		}
	}
	for n := range names {
		w.deliver(s, i, n)
	}
	w.backfill(s, i)
}

// producers commit late, and what they have delayed falls due.
func (w surroundings) producers(s state) {
	for e := range w.scene.Events {
		to := s
		switch s.events[e].status {
		case evUnborn:
			to.events[e].status, to.passed[e] = evNew, 1<<events-1 // who committed before it did not wait for it
			w.add(to, false, "the transaction of event %d commits", e)
		case evDelayed:
			to.takePlace(e)
			w.add(to, false, "event %d is due and takes its place", e)
		}
	}
}
