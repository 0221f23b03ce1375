package bustest

import (
	"time"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/outbox"
)

// Saved is an event that was saved: everything that is stored about it, tenant, store and metadata too, and its payload as a
// handler gets it, brought to the version of E by the upcasters of the harness's bus.
type Saved[E bus.Event] struct {
	bus.Envelope
	Payload E
	// IdempotencyKey is the one that it was saved with, empty for none.
	IdempotencyKey string
	// DeliverAt is when it is due, if it was delayed and nobody has had it yet. [Harness.Advance] moves it into the past, like
	// every time.
	DeliverAt time.Time
}

// RequireSaved fails the test unless exactly one event of type E has been saved, and committed,
// since the harness was made. It returns that event.
func RequireSaved[E bus.Event](h *Harness) Saved[E] {
	h.t.Helper()
	all := AllSaved[E](h)
	if len(all) != 1 {
		var zero E
		h.t.Fatalf("bustest: %d events of type %s have been saved, want exactly 1", len(all), zero.EventType())
	}
	return all[0]
}

// RequireNotSaved fails the test if an event of type E has been saved, and committed, since the harness was made.
func RequireNotSaved[E bus.Event](h *Harness) {
	h.t.Helper()
	if all := AllSaved[E](h); len(all) > 0 {
		h.t.Fatalf("bustest: %d events of type %s have been saved, want none; the first one is %s of %s %s", len(all), all[0].Type,
			all[0].ID, all[0].AggregateType, all[0].AggregateID)
	}
}

// AllSaved lists the events of type E that have been saved since the harness was made, in order.
func AllSaved[E bus.Event](h *Harness) []Saved[E] {
	h.t.Helper()
	var zero E
	rows, err := store.EventsSaved(h.t.Context(), h.db, h.d, h.first, zero.EventType())
	h.must(err, "read the outbox")
	keys := h.keys(zero.EventType())
	out := make([]Saved[E], 0, len(rows))
	for _, r := range rows {
		s := Saved[E]{Envelope: envelopeOf(r), IdempotencyKey: keys[r.OutboxID]}
		s.Payload, err = bus.Decode[E](h.Bus, &s.Envelope)
		h.must(err, "decode "+r.ID)
		if r.Status == string(outbox.StatusScheduled) && r.LockVersion == 0 {
			s.DeliverAt = time.UnixMicro(r.DueAt).UTC()
		}
		out = append(out, s)
	}
	return out
}

// envelopeOf is a row as handlers see it.
func envelopeOf(r eventrow.Row) bus.Envelope {
	return bus.Envelope{
		OutboxID: r.OutboxID, ID: r.ID, Type: r.Type, AggregateType: r.AggregateType, AggregateID: r.AggregateID,
		TenantID: r.TenantID, StoreID: r.StoreID, SchemaVersion: max(r.SchemaVersion, 1), Data: r.Payload,
		Metadata: r.Metadata, CreatedAt: r.CreatedAt, MaxAttempts: r.MaxAttempts, Malformed: r.Malformed,
	}
}

// keys are the idempotency keys of the test's events of a type.
func (h *Harness) keys(eventType string) map[int64]string {
	h.t.Helper()
	rows, err := h.db.QueryContext(h.t.Context(), "SELECT id, event_key FROM bc_outbox_event WHERE id > ? AND event_type = ? "+
		"AND event_key IS NOT NULL", h.first, eventType)
	h.must(err, "read the keys")
	defer rows.Close()
	out := make(map[int64]string)
	for rows.Next() {
		var id int64
		var key string
		h.must(rows.Scan(&id, &key), "read the keys")
		out[id] = key
	}
	h.must(rows.Err(), "read the keys")
	return out
}
