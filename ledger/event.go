package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/spi"
	"github.com/bluecone-go/bluecone/ledger/ledgerv1"
)

// EventOf is an event as the ledger takes it: what outbox.Save would save, with the metadata and the trace of ctx, and with
// outbox.Tenant and outbox.Meta of outbox.With. An event that is not keyed gets an id of its own, so that a call can be repeated.
// It returns an error for an event that cannot be encoded, is delayed (outbox.DeliverAt), or has a store: the ledger has neither.
func EventOf(ctx context.Context, e bus.Event) (*ledgerv1.Event, error) {
	parts := spi.PartsOf(e)
	inner, ok := parts.Event.(bus.Event)
	if !ok {
		return nil, errors.New("ledger.EventOf: the event is nil")
	}
	if !parts.DeliverAt.IsZero() || parts.StoreID != 0 {
		return nil, fmt.Errorf("ledger.EventOf: %s has a time or a store: the ledger delivers at once and knows tenants only", inner.EventType())
	}
	payload, err := json.Marshal(inner)
	if err != nil {
		return nil, fmt.Errorf("ledger.EventOf: payload of %s cannot be encoded: %w", inner.EventType(), err)
	}
	out := &ledgerv1.Event{
		EventType: inner.EventType(), Payload: payload, TenantId: parts.TenantID, SchemaVersion: 1, Metadata: metadataOf(ctx, parts),
	}
	out.AggregateType, out.AggregateId = inner.Aggregate()
	if v, ok := inner.(bus.Versioned); ok {
		out.SchemaVersion = int32(max(v.SchemaVersion(), 1))
	}
	if k, ok := inner.(bus.Keyed); ok {
		out.IdempotencyKey = k.IdempotencyKey()
	}
	return out, identify(out)
}

func metadataOf(ctx context.Context, parts spi.Parts) map[string]string {
	md := maps.Clone(map[string]string(bus.MetadataFrom(ctx)))
	if md == nil {
		md = make(map[string]string)
	}
	maps.Copy(md, parts.Metadata)
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		propagation.TraceContext{}.Inject(ctx, propagation.MapCarrier(md))
		md[bus.MetaTraceID] = span.TraceID().String()
	}
	return md
}

// identify gives an event an id that has neither one nor a key.
func identify(e *ledgerv1.Event) error {
	if e.GetEventId() != "" || e.GetIdempotencyKey() != "" {
		return nil
	}
	id, err := uuid.NewV7()
	e.EventId = id.String()
	return err
}
