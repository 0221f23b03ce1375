package spi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/text"
)

// Message is an event as it is stored, on its way to one consumer.
type Message struct {
	bus.Envelope
	// Replay says that an operator has had it delivered again.
	Replay bool
}

// stored is the payload that middleware sees of such a message.
type stored struct{ eventType string }

// EventType is the type of the stored event.
func (s stored) EventType() string { return s.eventType }

// Aggregate is in the envelope only.
func (s stored) Aggregate() (kind, id string) { return "", "" }

// OnExternalBatch registers fn as [bus.OnExternalBatch] does, for several event types, which share calls, in whatever schema version they
// are stored. c is a consumer of b. It returns what is wrong with the types.
func OnExternalBatch(b *bus.Bus, c *bus.Consumer, types []string, fn func(ctx context.Context, ms []Message) []error) error {
	all := handler.Of(b)
	all.Lock()
	defer all.Unlock()
	of := registered(all, c.Key())
	if of == nil || all.Closed {
		return fmt.Errorf("consumer %q is not registered, or a publisher has started before: register everything first", c.Name())
	}
	run := func(ctx context.Context, _ handler.Transaction, ms []*handler.Message) error {
		out := make([]Message, len(ms))
		for i, m := range ms {
			out[i] = Message{Envelope: envelopeOf(m.Event), Replay: m.Replay}
		}
		return handler.Each(fn(ctx, out), len(ms))
	}
	var errs []error
	for _, eventType := range types {
		if err := text.EventType("event type", eventType); err != nil {
			errs = append(errs, err)
			continue
		}
		if of.Handler(eventType) != nil {
			errs = append(errs, fmt.Errorf("event type %q is there twice", eventType))
			continue
		}
		of.Add(&handler.Handler{
			EventType: eventType, Version: 1, External: true, Batch: true, Raw: true, Group: of, Run: run, Verb: "OnExternalBatch",
			Type: reflect.TypeFor[stored](), Decode: func(json.RawMessage) (any, error) { return &stored{eventType}, nil },
		})
	}
	return errors.Join(errs...)
}

// registered needs the lock of all.
func registered(all *handler.Registrations, key string) *handler.Consumer {
	for _, c := range all.Consumers {
		if c.Key == key {
			return c
		}
	}
	return nil
}

func envelopeOf(r *eventrow.Row) bus.Envelope {
	return bus.Envelope{
		OutboxID: r.OutboxID, ID: r.ID, Type: r.Type, AggregateType: r.AggregateType, AggregateID: r.AggregateID,
		TenantID: r.TenantID, StoreID: r.StoreID, SchemaVersion: max(r.SchemaVersion, 1), Data: r.Payload,
		Metadata: r.Metadata, CreatedAt: r.CreatedAt, MaxAttempts: r.MaxAttempts, Malformed: r.Malformed,
	}
}
