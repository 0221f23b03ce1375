package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/store"
)

// Record is one row of the outbox, for people.
type Record struct {
	OutboxID      int64           `json:"outboxId,string"`      // the row's id: events saved later have larger ones
	EventID       string          `json:"eventId"`              // unique, the same over every redelivery
	EventType     string          `json:"eventType"`            // such as order.paid
	AggregateType string          `json:"aggregateType"`        // such as ORDER
	AggregateID   string          `json:"aggregateId"`          // such as 123
	TenantID      int64           `json:"tenantId,omitempty"`   // 0 if the event has none
	Status        Status          `json:"status"`               // of the event; each delivery has its own
	Payload       json.RawMessage `json:"payload"`              // as it is stored
	Metadata      string          `json:"metadata"`             // JSON text, "" for none
	LastError     string          `json:"lastError,omitempty"`  // of a delivery that has failed, or why the event is parked
	LockedBy      string          `json:"lockedBy,omitempty"`   // the owner of the lease while the event is DISPATCHING
	CreatedAt     time.Time       `json:"createdAt"`            // when it was saved, UTC, by the database's clock
	SentAt        time.Time       `json:"sentAt,omitzero"`      // when it became SENT; zero if it is not
	NextRetryAt   time.Time       `json:"nextRetryAt,omitzero"` // when it is due or its lease ends; zero where it waits for neither
}

// Filter selects events. At least one of EventID, the aggregate and Status must be set:
// each of them is served by an index.
type Filter struct {
	EventID       string // one event
	AggregateType string // together with AggregateID: those of one aggregate, of any tenant
	AggregateID   string // together with AggregateType
	EventType     string // narrows one of the others
	Status        Status // those in one state
	After         int64  // outbox id after which to go on, for the next page
	Limit         int    // Default: 100, at most 1000.
}

// Events lists events in the order they were saved. It returns an error for a filter that no index serves, and that of the
// database.
func (o *Outbox) Events(ctx context.Context, f Filter) ([]Record, error) {
	limit := min(max(f.Limit, 0), 1000)
	if limit == 0 {
		limit = 100
	}
	rows, err := store.ListEvents(ctx, o.db, o.d, store.EventFilter{
		EventID: f.EventID, AggregateType: f.AggregateType, AggregateID: f.AggregateID, EventType: f.EventType, Status: string(f.Status),
		After: f.After, Limit: limit,
	})
	if errors.Is(err, store.ErrUnindexed) {
		return nil, errors.New("outbox: list events: set EventID, AggregateType with AggregateID, or Status: anything else would read the " +
			"whole table")
	}
	if err != nil {
		return nil, fmt.Errorf("outbox: list events: %w", err)
	}
	var out []Record
	for _, r := range rows {
		out = append(out, Record{
			OutboxID: r.ID, EventID: r.EventID, EventType: r.EventType, AggregateType: r.AggregateType, AggregateID: r.AggregateID,
			TenantID: r.TenantID,
			Status:   Status(r.Status), Payload: json.RawMessage(r.Payload), Metadata: r.Metadata, LastError: r.LastError, LockedBy: r.LockedBy,
			CreatedAt: instant(r.CreatedAt), SentAt: instant(r.SentAt), NextRetryAt: instant(r.NextRetryAt),
		})
	}
	return out, nil
}

func instant(micros int64) time.Time {
	if micros == 0 {
		return time.Time{}
	}
	return time.UnixMicro(micros).UTC()
}

// Counts tells how many events are in each state. It reads the whole table: ask seldom. An error is that of the database.
func (o *Outbox) Counts(ctx context.Context) (map[Status]int64, error) {
	found, err := store.CountEvents(ctx, o.db)
	if err != nil {
		return nil, fmt.Errorf("outbox: count events: %w", err)
	}
	counts := map[Status]int64{StatusNew: 0, StatusScheduled: 0, StatusDispatching: 0, StatusSent: 0, StatusFailed: 0, StatusDead: 0}
	for status, n := range found {
		counts[Status(status)] = n
	}
	return counts, nil
}

// OpenEvents tells how many events of the aggregate (tenant 0 for none) are unfinished for a consumer, whose durable key is
// given, and how many deliveries of them to it are DEAD. An event is unfinished for every consumer until an instance has
// settled it for the first time, and for this consumer until its own delivery has ended, whatever the deliveries to others do. A past
// event that an open backfill of the consumer, or its StartFrom, still has to give to it counts too. Without a consumer OpenEvents
// counts the events that are unfinished for any consumer.
// The reaper asks it before it releases a lock. An error is that of the database.
func (o *Outbox) OpenEvents(ctx context.Context, idb bun.IDB, tenantID int64, aggregateType, aggregateID, consumer string,
) (waiting, dead int, err error) {
	open, err := store.OpenEvents(ctx, idb, o.d, store.Aggregate{Tenant: tenantID, Type: aggregateType, ID: aggregateID}, consumer)
	if err != nil {
		return 0, 0, fmt.Errorf("outbox: open events of %s %s: %w", aggregateType, aggregateID, err)
	}
	return open.Waiting, open.Dead, nil
}

// Missing returns those of the event ids that exist neither in the outbox nor in its archive, nor,
// with Config.DeleteSent, as finished deliveries in the consume log or its archive. An error is that of the database.
func (o *Outbox) Missing(ctx context.Context, idb bun.IDB, eventIDs []string) ([]string, error) {
	if len(eventIDs) == 0 {
		return nil, nil
	}
	known, err := store.Known(ctx, idb, eventIDs, o.cfg.DeleteSent)
	if err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	return slices.DeleteFunc(slices.Clone(eventIDs), func(id string) bool { return known[id] }), nil
}

// Backlog is how much the engine has before it.
type Backlog struct {
	Pending int64 // events that are NEW, SCHEDULED, DISPATCHING or FAILED
	Dead    int64 // events that wait for an operator
	// Oldest is for how long the oldest event that is not SENT has been due: since it was saved, or since its DeliverAt. The claim
	// of a delayed event overwrites that time: then the event counts as due since its claim, and after a failure since the first of
	// its waiting deliveries was written.
	Oldest time.Duration
}

// Backlog measures what is pending, by index. An error is that of the database.
func (o *Outbox) Backlog(ctx context.Context) (Backlog, error) {
	b, err := store.MeasureBacklog(ctx, o.db, o.d)
	if err != nil {
		return Backlog{}, fmt.Errorf("outbox: measure the backlog: %w", err)
	}
	return Backlog{Pending: b.Pending, Dead: b.Dead, Oldest: b.Oldest}, nil
}
