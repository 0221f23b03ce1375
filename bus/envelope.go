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

// envelopes loads the events by id. Events whose row is gone are missing from the result.
func (b *Bus) envelopes(ctx context.Context, eventIDs []string) (map[string]*Envelope, error) {
	d, err := dialect.Of(b.db)
	if err != nil {
		return nil, err
	}
	rows, err := eventrow.Read(ctx, b.db, eventrow.Select(d, "bc_outbox_event AS e WHERE e.event_id IN (?)"), bun.List(eventIDs))
	if err != nil {
		return nil, fmt.Errorf("bus: load events: %w", err)
	}
	out := make(map[string]*Envelope, len(rows))
	for _, r := range rows {
		out[r.ID] = EnvelopeOf(r)
	}
	return out, nil
}
