// Package rawevent is an event whose payload another program has encoded: no Go type of this one stands for it.
package rawevent

import "encoding/json"

// Event is saved by outbox.Save as it is. Its payload keeps its numbers, however long.
type Event struct {
	ID                         string // its event_id, so that it is saved once; "" for a new one, or that of its key
	Type                       string
	AggregateType, AggregateID string
	Key                        string // the idempotency key, "" for none
	Version                    int    // of the schema, 0 for 1
	Payload                    json.RawMessage
}

// EventType is the event's type.
func (e *Event) EventType() string { return e.Type }

// Aggregate is the event's aggregate.
func (e *Event) Aggregate() (aggregateType, aggregateID string) {
	return e.AggregateType, e.AggregateID
}

// IdempotencyKey is the event's key.
func (e *Event) IdempotencyKey() string { return e.Key }

// SchemaVersion is the version of the payload.
func (e *Event) SchemaVersion() int { return e.Version }

// MarshalJSON is the payload.
func (e *Event) MarshalJSON() ([]byte, error) { return e.Payload, nil }
