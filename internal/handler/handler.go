// Package handler holds what is registered with a bus, its consumers and their handlers, and calls the handlers: it decodes the
// payloads, watches the statements of the transaction, contains panics, and knows the answers that a handler can give. Package bus
// registers here what its users hand it; the engine takes it from here.
package handler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/bluecone-go/bluecone/internal/eventrow"
)

// Handler is a function of the user's, without its event's Go type.
type Handler struct {
	// EventType is the type that it handles, in schema version Version and in those that upcasters bring there.
	EventType string
	Version   int
	// Batch says that it gets many messages in one call, External that it gets no transaction. A handler that is both answers
	// each message by its own error: [AnswersError].
	Batch, External bool
	// Raw says that it takes payloads of any schema version as they are stored.
	Raw bool
	// Group is what handlers of one consumer have in common that take messages of several types in one call; nil for none.
	Group any
	// Type is the Go type of the payload; Decode makes a pointer to one.
	Type   reflect.Type
	Decode func(payload json.RawMessage) (any, error)
	// Run calls the function, for one message if it is not a batch handler.
	Run func(ctx context.Context, tx Transaction, ms []*Message) error
	// Verb is the function of package bus that registered it, such as OnBatch.
	Verb string

	spanName string
	tooLong  error       // the cause of a context that ends with the timeout
	alone    atomic.Bool // its SQL may end the transaction, in which no other delivery shall be then
}

// Message is one event on its way to one handler.
type Message struct {
	Event   *eventrow.Row
	Attempt int  // counts the runs of the delivery, this one included, from 1
	Replay  bool // the handler has succeeded with the event before
	Payload any  // what Decode has made of the event's, for this delivery alone: a handler may write to it
	Record  Record
	Started time.Time // when the handler was called; zero if it was not
}

// Record is what a handler said about its delivery.
type Record struct {
	Key    string
	Result any
}

// Decode upcasts and decodes the payload of m, unless that is done. Its errors are permanent.
func (c *Consumer) Decode(m *Message) error {
	if m.Payload != nil {
		return nil
	}
	if m.Event.Malformed != "" {
		return Permanent(errors.New("the event's row is malformed: " + m.Event.Malformed))
	}
	h := c.handlers[m.Event.Type]
	if h == nil {
		return fmt.Errorf("consumer %s has no handler for %s", c.Name, m.Event.Type)
	}
	payload, err := c.of.decode(m.Event, h)
	if err != nil {
		return Permanent(err)
	}
	m.Payload = payload
	return nil
}
