package bus

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/handler"
)

// Event is a fact that a module saves with the change that caused it.
// The module's own type implements it by value and needs no import of this package.
type Event interface {
	// EventType is the durable name, such as "order.paid". It is stored, so it never changes.
	EventType() string
	// Aggregate names the entity the event belongs to, such as ("ORDER", "123").
	// Events of one aggregate are delivered in commit order.
	Aggregate() (kind, id string)
}

// Keyed is an event that can be saved only once: the same type, tenant and key
// always give the same event_id, and a repeated save is a no-op. A key is known for as long as its event is
// kept, and after that for outbox.RetentionConfig.KeepKeys, 90 days by default. A save that repeats the
// key later saves a new event, and consumers get it again: choose a longer time where a fact may be reported later than that.
type Keyed interface {
	// IdempotencyKey names the business fact, such as "order:123:paid". Empty means not keyed.
	IdempotencyKey() string
}

// Versioned is an event whose payload has changed its shape over time.
type Versioned interface {
	// SchemaVersion is the version of the payload this code writes. Default: 1.
	SchemaVersion() int
}

// Metadata is what travels beside the payload: traceId, requestId, userId,
// traceparent and whatever the producer adds.
type Metadata map[string]string

// Keys of Metadata that bluecone itself writes and reads.
const (
	MetaTraceID     = "traceId"     // of the trace that saved the event: logs and the console show it
	MetaRequestID   = "requestId"   // of the request that caused the event, by [WithMetadata]
	MetaUserID      = "userId"      // of the user who caused it, by [WithMetadata]
	MetaTraceparent = "traceparent" // W3C trace context: the consumer's span continues it
	MetaTracestate  = "tracestate"  // the same
)

// Envelope is a stored event: everything about it except its decoded payload. Data and
// Metadata are shared by all consumers of the event: do not change what they hold.
type Envelope struct {
	OutboxID      int64           // bc_outbox_event.id
	ID            string          // event_id, unique, stable over every redelivery
	Type          string          // event_type
	AggregateType string          // such as ORDER
	AggregateID   string          // such as 123
	TenantID      int64           // 0 if the event has none
	StoreID       int64           // 0 if the event has none
	SchemaVersion int             // version of the stored payload
	Data          json.RawMessage // the stored payload, before upcasting
	Metadata      Metadata        // never nil for a handler
	CreatedAt     time.Time       // when it was saved, UTC, by the database's clock
	MaxAttempts   int             // max_retry_count of the row, for consumers without their own limit

	// Malformed says why the row could not be read; empty for a good one.
	Malformed string
}

// envelopeOf is a row as handlers see it.
func envelopeOf(r *eventrow.Row) Envelope {
	return Envelope{
		OutboxID: r.OutboxID, ID: r.ID, Type: r.Type, AggregateType: r.AggregateType, AggregateID: r.AggregateID,
		TenantID: r.TenantID, StoreID: r.StoreID, SchemaVersion: max(r.SchemaVersion, 1), Data: r.Payload,
		Metadata: r.Metadata, CreatedAt: r.CreatedAt, MaxAttempts: r.MaxAttempts, Malformed: r.Malformed,
	}
}

// Message is one event on its way to one consumer.
type Message[E Event] struct {
	Envelope
	// Payload is the decoded event. It is this call's own: what a handler changes in it nobody else sees.
	Payload E
	// Consumer is the name of the consumer that handles it. [Message.Key] uses its durable key instead.
	Consumer string
	// Attempt is 1 and the counted attempts before this run, since the last retry by an operator. Runs that ended with
	// [RetryAfter] or [Unavailable] do not count.
	Attempt int
	// Replay says that an operator has this event delivered again although it has succeeded before.
	Replay bool

	consumer string // its durable key; empty for a message that a test has made
	record   *handler.Record
}

// Key is a stable idempotency key for effects outside the database:
// the same for every attempt of this delivery, and different for every other. A replay has the
// key of the delivery that it repeats. Renaming the consumer does not change it, as long as the
// consumer keeps its [ConsumerConfig.Key].
func (m Message[E]) Key() string { return cmp.Or(m.consumer, m.Consumer) + ":" + m.ID }

// RecordKey writes the business idempotency key under which the handler acted
// (at most 255 bytes) into bc_event_consume_log.idempotency_key, if the delivery succeeds.
// A key that is longer, not valid UTF-8, or has control characters or white space at its ends fails the delivery, as an error of
// the handler would: that of a handler of [OnExternal] after its effect.
func (m Message[E]) RecordKey(key string) {
	if m.record != nil {
		m.record.Key = key
	}
}

// RecordResult writes v as JSON into bc_event_consume_log.consume_result, if the delivery succeeds.
// A string such as "NO_COUPON" is a result too. A v that cannot be encoded fails the delivery, like a key that is too long.
func (m Message[E]) RecordResult(v any) {
	if m.record != nil {
		m.record.Result = v
	}
}
