package model

// Rules are the rules of the engine; the zero value has all of them switched off.
type Rules struct {
	// UnderLock: the status of an event is computed and written under the lock of its row, by
	// settling, roll-up and operators alike.
	UnderLock bool
	// Sweep: FAILED events none of whose deliveries waits are recomputed every now and then.
	Sweep bool
	// Question is what a delivery asks about the events before it.
	Question Question
	// ParkedInHand: an event that is parked for want of a consumer is in hand for those who ask.
	ParkedInHand bool
	// ParkedLetsPass: a parked event keeps no later one from being claimed.
	ParkedLetsPass bool
	// DirectAsk: a delivery that comes from a claim asks in its transaction, as one from the log does. It holds its marker
	// then, which keeps others out until COMMIT: the model does without the engine's last look.
	DirectAsk bool
	// BatchInOrder: a batch runs its deliveries in the order of their events, whatever the order in which they were queued.
	BatchInOrder bool
	// LaterInFlight: an event that was not in hand before, or was given back, waits while any instance
	// has a later one in flight, even the one that claims: its delivery may go to another one by the log.
	LaterInFlight bool
	// RunningElsewhere: a delivery waits while another instance runs one of its aggregate to its consumer.
	RunningElsewhere bool
	// RunningBehind: it is seen also behind a delivery that waits, of an event that came into the log later.
	RunningBehind bool
	// RunningPastLease: it is seen also when its lease is over, as long as its transaction is open.
	RunningPastLease bool
	// VersionsWait: a schema version newer than the code is left to instances that know it.
	VersionsWait bool
	// DurableKey: the log is kept under the key that a consumer has for life, and not under its name.
	DurableKey bool
	// TenantInKey: the aggregate is tenant, type and id.
	TenantInKey bool
	// PastFirst: a consumer of which a backfill is open waits for the past events of an aggregate before later ones.
	PastFirst bool
	// PastOnce: a backfill gives nothing that the consumer has a delivery of.
	PastOnce bool
	// PastInFlightWaits: a backfill waits for an event that an instance has in flight.
	PastInFlightWaits bool
	// RetentionLocks: retention locks an event before it removes the event's deliveries.
	RetentionLocks bool
	// RegistrationStays: a registration ends by an operator only.
	RegistrationStays bool

	// CountedByOutcome: an attempt is counted when it ends, and not when the delivery is claimed.
	CountedByOutcome bool
	// CountedFirst: what a dead process may have started is counted by a commit before its handler starts.
	CountedFirst bool
	// RunsAlone: what a dead process may have started runs alone.
	RunsAlone bool
}

// All has every rule switched on: the engine as it is.
func All() Rules {
	return Rules{
		UnderLock: true, Sweep: true, Question: Split, ParkedInHand: true, ParkedLetsPass: true,
		DirectAsk: true, BatchInOrder: true, LaterInFlight: true, RunningElsewhere: true, RunningBehind: true, RunningPastLease: true,
		VersionsWait: true, DurableKey: true, TenantInKey: true, PastFirst: true, PastOnce: true, PastInFlightWaits: true,
		RetentionLocks: true, RegistrationStays: true,
		CountedByOutcome: true, CountedFirst: true, RunsAlone: true,
	}
}

// Question is a way to ask whether an earlier event is in the way of a delivery.
type Question int8

const (
	// UnfinishedRows asks for earlier deliveries in the log that are not done.
	UnfinishedRows Question = iota
	// Nearest asks whether the consumer is done with the nearest earlier event.
	Nearest
	// AnyEarlier asks whether there is any earlier event that the consumer is not done with.
	AnyEarlier
	// Split asks for the first unfinished delivery in the log and for the first event in hand
	// without a delivery, each of which is one look at an index.
	Split
)
