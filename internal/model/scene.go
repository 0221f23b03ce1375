package model

import "slices"

const (
	instances = 2
	names     = 2 // of consumers: a renamed one has two, and replays have one of their own
	events    = 3 // at most
)

// Scene says what there is, and limits the faults of one way, and with them the number of states.
type Scene struct {
	Events, Consumers int
	Faults

	Late     []int // events whose transactions commit after those of later ids
	Delayed  []int // events that their producers delayed
	Unwanted []int // events of types that nobody takes
	Past     []int // events that were SENT before the last consumer was registered, which wants them

	Release // which the second instance runs

	Discards   bool // operators also discard events that nobody has been called for
	Continue   bool // a DEAD delivery lets later ones pass
	Tenants    bool // the last event is another tenant's, with the same aggregate id
	Replayable bool // operators may repeat deliveries of the one consumer, whose replays have a name of their own
	Apart      bool // each consumer lives in an instance of its own
}

// Release is in what the newer release differs from the older one.
type Release struct {
	// NewTypes tells of which events only a newer release of a consumer takes the type, and
	// NewVersions of which only it knows the schema version. The second instance has yet to start; the first one runs the older release.
	NewTypes    func(consumer, event int) bool
	NewVersions func(consumer, event int) bool
	Renamed     bool // the newer release has another name for the first consumer
	Newcomer    bool // the last consumer comes with the newer release, and wants the past
}

// Faults are how often each of them may happen, or has happened.
type Faults struct {
	Crashes, Freezes, Expiries, Failures, Spills, PutBacks, Operations, Retentions int8
}

// setting is what stays as it is: the rules, and who takes what.
type setting struct {
	rules Rules
	scene Scene
}

func (s *Scene) isLate(e int) bool     { return slices.Contains(s.Late, e) }
func (s *Scene) isDelayed(e int) bool  { return slices.Contains(s.Delayed, e) }
func (s *Scene) isUnwanted(e int) bool { return slices.Contains(s.Unwanted, e) }

// deploys tells whether the second instance has yet to start.
func (w *setting) deploys() bool {
	return w.scene.NewTypes != nil || w.scene.NewVersions != nil || w.scene.Renamed || w.scene.Newcomer
}

func (w *setting) isNewType(n, e int) bool { return w.scene.NewTypes != nil && w.scene.NewTypes(n, e) }

func (w *setting) isNewVersion(n, e int) bool {
	return w.scene.NewVersions != nil && w.scene.NewVersions(n, e)
}

// isReplay tells whether a name is that of replays.
func (w *setting) isReplay(n int) bool { return w.scene.Replayable && n == 1 }

// consumer is who has a name.
func (w *setting) consumer(n int) int {
	if w.scene.Renamed {
		return 0
	}
	return n
}

// runs tells whether an instance is there.
func (w *setting) runs(s *state, i int) bool { return i == 0 || !w.deploys() || s.started }

// has tells whether an instance has a consumer under this name in its log.
func (w *setting) has(i, n int) bool {
	switch {
	case w.scene.Renamed && !w.rules.DurableKey:
		return i == n
	case w.scene.Apart:
		return i == n
	case w.comesLater(n):
		return i == 1
	}
	return n < w.scene.Consumers
}

// takes tells whether the code of an instance takes the event's type.
func (w *setting) takes(i, n, e int) bool {
	return w.has(i, n) && !w.scene.isUnwanted(e) && (i == 1 || !w.isNewType(n, e))
}

// handles tells whether an instance can run the event, or believes that it can.
func (w *setting) handles(i, n, e int) bool {
	if w.isReplay(n) {
		return true
	}
	return w.takes(i, n, e) && (i == 1 || !w.isNewVersion(n, e) || !w.rules.VersionsWait)
}

// registered tells whether the registry shows a release of the consumer that takes the event's type.
func (w *setting) registered(s *state, n, e int) bool { return w.taken(s, n, e) && !s.expired[n] }

// taken is what the registry would show if nothing were ever lost from it.
func (w *setting) taken(s *state, n, e int) bool {
	for i := range instances {
		if w.runs(s, i) && w.takes(i, n, e) {
			return true
		}
	}
	return false
}

// sibling tells whether the engine takes two events for those of one aggregate.
func (w *setting) sibling(p, e int) bool { return !w.rules.TenantInKey || w.isOneAggregate(p, e) }

// isOneAggregate tells whether two events are of one aggregate.
func (w *setting) isOneAggregate(p, e int) bool {
	return !w.scene.Tenants || (p == w.scene.Events-1) == (e == w.scene.Events-1)
}
