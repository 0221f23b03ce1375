package settle

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/store"
)

// Settler writes the status of events. It is safe for concurrent use.
type Settler struct {
	db          *bun.DB
	d           dialect.Dialect
	stmts       *prepared.Statements
	events      store.Settling
	deliveries  store.Results
	queues      store.Queues
	deletesSent bool
}

// NewSettler returns the settler of a database. With deleteSent it deletes events instead of making them SENT, unless nothing else
// would tell of them.
func NewSettler(db *bun.DB, d dialect.Dialect, stmts *prepared.Statements, deleteSent bool) *Settler {
	return &Settler{
		db: db, d: d, stmts: stmts, deletesSent: deleteSent,
		events: store.NewSettling(d, stmts), deliveries: store.NewResults(d), queues: store.NewQueues(d, stmts),
	}
}

// inTx runs a short transaction.
func (s *Settler) inTx(ctx context.Context, fn func(ctx context.Context, tx bun.Tx) error) error {
	return store.InTx(ctx, s.db, s.d, s.stmts, fn)
}

// Event is an event whose deliveries by this instance have ended.
type Event struct {
	Lease   dialect.Pair // its outbox id, and the lock version of the lease
	EventID string
	Needed  []string // keys of the consumers that must have a delivery in the log
	Waits   []string // of those whose deliveries this instance has spilled to the log
	// Certain says that nobody else can have written about the other deliveries: this instance is the first to have leased
	// the event, and all of them have succeeded.
	Certain bool
	IsRetry bool // an earlier try to settle it has answered an error, and may have ended its lease
}

// IsDelivered reports whether the event is SENT for certain, without a look at the log.
func (e Event) IsDelivered() bool { return e.Certain && len(e.Waits) == 0 }

// Uncertain are the keys of the consumers whose deliveries need a look at the log.
func (e Event) Uncertain() []string {
	if e.Certain {
		return e.Waits
	}
	return e.Needed
}

// Settled is what has become of events.
type Settled struct {
	Status map[int64]Status // by outbox id, of those whose leases were ended
	Lost   []int64          // outbox ids of events that another instance had taken over before
}

// settleIn looks at deliveries. Another instance may be writing them, so it does that only under the lock of the event's row.
func (s *Settler) settleIn(ctx context.Context, tx bun.Tx, owner string, events []Event, isDraining bool, done *Settled) error {
	held, err := s.events.LockHeld(ctx, tx, owner, leasesOf(events))
	if err != nil {
		return err
	}
	mine, missing := split(events, func(e Event) bool { return isAmong(e.Lease.ID, held) })
	if err := s.noteMissing(ctx, tx, missing, done); err != nil || len(mine) == 0 {
		return err
	}
	states, err := s.look(ctx, tx, mine)
	if err != nil {
		return err
	}
	groups := make(map[store.Ending][]Event)
	for _, e := range mine {
		ending := endingOf(states[e.EventID], e.Uncertain(), isDraining)
		groups[ending] = append(groups[ending], e)
	}
	for ending, same := range groups {
		if err := s.end(ctx, tx, owner, same, ending, done); err != nil {
			return err
		}
	}
	return nil
}

// look reads what the log says of the events' deliveries: of an event that went well here, only of those that were spilled.
func (s *Settler) look(ctx context.Context, tx bun.Tx, events []Event) (map[string]map[string]store.Status, error) {
	var certain, others []string
	spilled := make(map[string]struct{})
	for _, e := range events {
		if !e.Certain {
			others = append(others, e.EventID)
			continue
		}
		certain = append(certain, e.EventID)
		for _, key := range e.Waits {
			spilled[key] = struct{}{}
		}
	}
	states, err := s.deliveries.States(ctx, tx, others)
	if err != nil || len(certain) == 0 {
		return states, err
	}
	more, err := s.deliveries.States(ctx, tx, certain, slices.Sorted(maps.Keys(spilled))...)
	maps.Copy(states, more) // of other events
	return states, err
}

// endingOf follows from the states of the deliveries that needed a look.
func endingOf(states map[string]store.Status, needed []string, isDraining bool) store.Ending {
	status := count(states, needed).Status()
	e := store.Ending{Status: string(status)}
	switch {
	case status == New && isDraining:
	case status == New:
		e.Status, e.Delay = string(Scheduled), time.Second
	case status != Sent:
		for _, st := range states {
			e.Failed = e.Failed || st == store.Failed || st == store.Dead
		}
	}
	return e
}

// split tells the events that fulfil a condition from the others.
func split(events []Event, holds func(Event) bool) (some, others []Event) {
	for _, e := range events {
		if holds(e) {
			some = append(some, e)
		} else {
			others = append(others, e)
		}
	}
	return some, others
}

// byVersion are events whose leases have the same lock version: nearly always all.
func byVersion(events []Event) map[int64][]Event {
	groups := make(map[int64][]Event, 1)
	for _, e := range events {
		groups[e.Lease.Version] = append(groups[e.Lease.Version], e)
	}
	return groups
}

func leasesOf(events []Event) []dialect.Pair {
	leases := make([]dialect.Pair, len(events))
	for i, e := range events {
		leases[i] = e.Lease
	}
	return leases
}

func idsOf(events []Event) []int64 {
	ids := make([]int64, len(events))
	for i, e := range events {
		ids[i] = e.Lease.ID
	}
	return ids
}

// isAmong reports whether an id is among others, which are in order.
func isAmong(id int64, ids []int64) bool {
	_, ok := slices.BinarySearch(ids, id)
	return ok
}
