package bus

import (
	"context"
	"fmt"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/eventrow"
)

// EnvelopeOf turns a row that a publisher has read into an envelope.
func EnvelopeOf(r eventrow.Row) *Envelope {
	return &Envelope{
		OutboxID: r.OutboxID, ID: r.ID, Type: r.Type, AggregateType: r.AggregateType, AggregateID: r.AggregateID,
		TenantID: r.TenantID, StoreID: r.StoreID, SchemaVersion: max(r.SchemaVersion, 1), Data: r.Payload,
		Metadata: r.Metadata, CreatedAt: r.CreatedAt, MaxAttempts: r.MaxAttempts, Malformed: r.Malformed,
	}
}

// stored is an event as it was loaded, and how many bytes its payload and metadata have.
type stored struct {
	env   *Envelope
	bytes int
}

// envelopes loads the events by id, the first of them, as far as they fit. Events whose row is gone are missing from the
// result; more says that others may be missing because they did not fit.
func (b *Bus) envelopes(ctx context.Context, eventIDs []string, fits func(bytes int) bool) (found map[string]stored, more bool, err error) {
	d, err := dialect.Of(b.db)
	if err != nil {
		return nil, false, err
	}
	rows, more, err := eventrow.ReadWithin(ctx, b.db, d, fits, "bc_outbox_event AS e WHERE e.event_id IN (?) ORDER BY e.id", bun.List(eventIDs))
	if err != nil {
		return nil, false, fmt.Errorf("bus: load events: %w", err)
	}
	found = make(map[string]stored, len(rows))
	for _, r := range rows {
		found[r.ID] = stored{EnvelopeOf(r), r.Size}
	}
	return found, more, nil
}
