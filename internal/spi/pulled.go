package spi

import (
	"context"
	"errors"
	"fmt"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/contain"
	"github.com/bluecone-go/bluecone/internal/engine/flow"
	"github.com/bluecone-go/bluecone/internal/engine/pulled"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/handler"
)

// PulledConsumer runs deliveries that come from a ledger.
type PulledConsumer = pulled.Consumer

// PulledMessage is one of them.
type PulledMessage = handler.Message

// PulledAnswer is what to say of it.
type PulledAnswer = pulled.Answer

// Bucket says how many deliveries may start at a rate.
type Bucket = flow.Bucket

// NewBucket is a full bucket of so many deliveries a second; 0 is no limit.
func NewBucket(perSecond float64) Bucket { return flow.NewBucket(perSecond) }

// The outcomes of a pulled delivery.
const (
	PulledSuccess   = pulled.Success
	PulledSkipped   = pulled.Skipped
	PulledFailed    = pulled.Failed
	PulledPermanent = pulled.Permanent
	PulledLater     = pulled.Later
)

// PulledConsumers are those of a bus, to which nothing can be registered any more.
func PulledConsumers(b *bus.Bus) []*PulledConsumer { return pulled.Consumers(b) }

// NewPulledMessage is a delivery of an event, in its run number attempt.
func NewPulledMessage(e Event, attempt int) *PulledMessage {
	return &PulledMessage{Attempt: attempt, Event: &eventrow.Row{
		ID: e.ID, Type: e.Type, AggregateType: e.AggregateType, AggregateID: e.AggregateID, TenantID: e.TenantID,
		SchemaVersion: e.SchemaVersion, Payload: e.Payload, Metadata: e.Metadata,
	}}
}

// DeadLetter tells the hook of the bus, if there is one, of a delivery that is DEAD. It reports a panic of the hook.
func DeadLetter(ctx context.Context, b *bus.Bus, consumer string, m *PulledMessage, why string) error {
	tell := handler.Of(b).OnDeadLetter
	if tell == nil {
		return nil
	}
	err := contain.Call("Config.OnDeadLetter", func() error {
		tell(ctx, handler.DeadLetter{Event: m.Event, Consumer: consumer, Key: consumer, Attempts: m.Attempt, Error: why})
		return nil
	})
	if p, ok := errors.AsType[*contain.PanicError](err); ok {
		return fmt.Errorf("bus.Config.OnDeadLetter panicked with a %T", p.Value)
	}
	return nil
}
