package delivery

import (
	"time"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/flow"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
)

// Offered is an event that a publisher has leased and offers to the lane of a consumer.
type Offered struct {
	// Flight is the event; it is told how the delivery ended, once. The publisher extends its lease, and gives that to [Lanes.Lose]
	// when it is lost.
	Flight *settle.Flight
	// Kind is the kind of due work that the event was.
	Kind claim.Kind
	// Suspect says that a process that has died may have started the delivery, if it has no row yet: a lease of the event
	// has run out before. What [OnExternal] registers has a row before it starts.
	Suspect bool
}

// delivery is one event on its way to one consumer, inside a lane.
type delivery struct {
	handler.Message

	kind        claim.Kind           // of due work
	held        *claim.Lease         // of the event, for a direct delivery
	isFresh     bool                 // no row can exist yet
	isSuspected bool                 // a process that has died may have started this direct delivery
	done        func(settle.Outcome) // reports a direct delivery
	lease       *store.Leased        // for a delivery from the retry queue
	bytes       int                  // of its payload and metadata, for such a one
	own         *claim.Lease         // whether that is still ours
	queued      time.Time            // when a direct delivery came into the lane
}

// fromLog is a delivery from the retry queue, with its event. If that is nil, because its row is gone or was not loaded, the
// delivery knows of it what the log says.
func fromLog(lease store.Leased, event *eventrow.Row) *delivery {
	d := &delivery{kind: kindOf(lease), lease: &lease, own: new(claim.Lease)}
	d.Attempt, d.Replay = lease.Attempts, store.IsReplay(lease.Consumer)
	if event == nil {
		d.Event = &eventrow.Row{
			OutboxID: lease.OutboxID, ID: lease.EventID, Type: lease.EventType, AggregateType: lease.AggregateType,
			AggregateID: lease.AggregateID, TenantID: lease.TenantID, MaxAttempts: lease.Attempts,
		}
		return d
	}
	d.Event, d.bytes = event, event.Size
	return d
}

func (d *delivery) isDirect() bool { return d.lease == nil }

// kindOf is the kind of due work that a delivery from the retry queue was.
func kindOf(lease store.Leased) claim.Kind {
	switch lease.Before {
	case store.Failed:
		return claim.Retries
	case store.Processing:
		return claim.Orphans
	}
	return claim.Deliveries
}

// isFirstRun tells whether the delivery has never run.
func (d *delivery) isFirstRun() bool { return d.lease == nil || d.lease.Before == store.Pending }

// group are the deliveries that are refused for like reasons.
func (d *delivery) group() flow.Group { return flow.Group{Type: d.Event.Type, Again: !d.isFirstRun()} }

// isSuspect reports whether a process that has died may have started the delivery.
func (d *delivery) isSuspect() bool {
	if d.isDirect() {
		return d.isSuspected
	}
	return d.lease.Suspect
}

// sinceFirstRun is how long before its lease the delivery ran for the first time, 0 if it did not.
func (d *delivery) sinceFirstRun() time.Duration {
	if d.lease == nil {
		return 0
	}
	return d.lease.SinceFirstRun
}

// aggregate is the entity within which order holds.
func (d *delivery) aggregate() store.Aggregate {
	return store.Aggregate{Tenant: d.Event.TenantID, Type: d.Event.AggregateType, ID: d.Event.AggregateID}
}

// asks is the question of the delivery whether it may run.
func (d *delivery) asks() store.Asked {
	return store.Asked{Event: d.pair(), Aggregate: d.aggregate()}
}

// pair names the event for the gate; only a direct delivery must prove its outbox lease.
func (d *delivery) pair() dialect.Pair {
	p := dialect.Pair{ID: d.Event.OutboxID}
	if d.held != nil {
		p.Version = d.held.Version
	}
	return p
}

// leasesOf are the leases of deliveries from the retry queue.
func leasesOf(ds []*delivery) []store.Leased {
	leases := make([]store.Leased, len(ds))
	for i, d := range ds {
		leases[i] = *d.lease
	}
	return leases
}

// rowsOf are the rows of deliveries in the consume log.
func rowsOf(ds []*delivery, c *handler.Consumer) []store.Delivery {
	rows := make([]store.Delivery, len(ds))
	for i, d := range ds {
		rows[i] = d.row(c)
	}
	return rows
}

// row is the delivery's row in the consume log.
func (d *delivery) row(c *handler.Consumer) store.Delivery {
	return store.Delivery{
		Consumer: c.Key, EventID: d.Event.ID, EventType: d.Event.Type, OutboxID: d.Event.OutboxID,
		AggregateType: d.Event.AggregateType, AggregateID: d.Event.AggregateID, TenantID: d.Event.TenantID, Attempts: d.Attempt,
		Suspect: d.isSuspect(),
	}
}
