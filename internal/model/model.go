// Package model is a small model of the engine that can be explored exhaustively: a few instances,
// consumers and events of one aggregate, every step of a claim, a delivery, a retry, a settling and a
// roll-up, and between any two of them a crash, a freeze, a lost lease, a failing handler, an operator
// or retention.
//
// # Contract
//
// [Explore] visits every state that the steps can reach, the shortest ways first, and returns the way
// to the first state that breaks a promise: an effect that happens twice, an order that is broken, an
// event that is SENT while somebody waits for it, or one that nobody will ever finish. Each of the
// five rules of the engine can be switched off in [Rules]; the model then finds out what it is for.
//
// The model knows neither time nor batches: a lease may run out at any moment, and a batch is the
// sequence of its events. What it calls a step is one transaction of the engine, or what the engine
// does in memory between two of them.
package model

// Rules are the five rules of the engine; the zero value has all of them switched off.
type Rules struct {
	// UnderLock: the status of an event is computed and written under the lock of its row, by
	// settling, roll-up and operators alike.
	UnderLock bool
	// Sweep: FAILED events none of whose deliveries waits are recomputed every now and then.
	Sweep bool
	// BlockedByAny: an earlier event blocks as long as this consumer has not done with it, whatever
	// state it is in, and not only if it has an unfinished row in the log.
	BlockedByAny bool
	// LastLook: before COMMIT, a delivery looks again whether its event is leased by it, and
	// whether an earlier one blocks.
	LastLook bool
	// ParkedCounts: an event that is parked for want of a consumer keeps later ones from being claimed.
	ParkedCounts bool
}

// All has every rule switched on: the engine as it is.
func All() Rules {
	return Rules{UnderLock: true, Sweep: true, BlockedByAny: true, LastLook: true, ParkedCounts: true}
}

// Bounds limit the faults of one way, and with them the number of states.
type Bounds struct {
	Crashes, Freezes, Expiries, Failures, Operations, Retentions int
	// Deploy makes the first instance one of an older release, whose consumers do not take the type
	// of the first event, and the second one of a newer release that has yet to start.
	Deploy bool
}

const (
	instances = 2
	consumers = 2
	events    = 2
)

// The states of an event.
const (
	evNew int8 = iota
	evParked
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
	checked      // the first look has let it pass
	open         // its transaction is open, its marker in, its handler done
	failing      // its handler has failed and the transaction is rolled back
)

// event is a row of the outbox.
type event struct {
	status, owner, version int8 // owner is 0 for nobody, else the instance's number plus one
	due                    bool // the lease is over
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
}

// flight is a claimed event in memory.
type flight struct {
	held    bool
	version int8
	read    int8 // the status that was computed, plus one, and is not written yet
}

// member is one instance.
type member struct {
	frozen  bool
	tasks   [consumers][events]task
	flights [events]flight
	rollUp  [events]bool // a retried delivery has ended: the status is to be computed
	read    [events]int8 // by the roll-up, plus one
}

// state is everything. It is comparable, so that it can be recognised.
type state struct {
	events   [events]event
	log      [consumers][events]delivery
	members  [instances]member
	effects  [consumers][events]int8
	disorder bool

	started bool // the newer release has registered what it takes

	opRead [events]int8 // an operator's computed status, plus one
	opTodo [events]bool

	crashes, freezes, expiries, failures, operations, retentions int8
}

// handles tells whether the consumers of an instance take the event.
func (b Bounds) handles(instance, e int) bool { return !b.Deploy || instance != 0 || e != 0 }

// registered tells whether the deployment knows that its consumers take the event.
func (w *world) registered(s *state, e int) bool { return !w.bounds.Deploy || s.started || e != 0 }
