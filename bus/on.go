package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/personal"
	"github.com/bluecone-go/bluecone/internal/text"
)

// On registers a handler that works in the transaction it is handed: its effect
// happens exactly once. E is inferred from fn. E must be a type by value that can be encoded as JSON, with a valid
// event type that this consumer does not handle yet: whatever is wrong is returned by outbox.NewPublisher.
// c is what [Bus.Consumer] returned: On, [OnBatch], [OnSQL], [OnSQLBatch], [OnExternal] and [OnExternalBatch] panic with any other,
// nil or zero, because there is no bus from which the mistake could be returned.
//
// tx is bun's: it writes each value into the text of the statement where a ? stands, on every database. A statement with the
// database's own placeholders ($1 on PostgreSQL) compiles all the same, reaches the database without its values, and is refused:
// the delivery fails, and its error says so. Write ? with a bun.Tx; register code that brings its own SQL (of sqlc, say) with [OnSQL].
//
// Do not call tx.Commit or tx.Rollback: the bus commits when fn returns nil and rolls back when it returns an error. What fn commits
// itself has taken effect, whatever it returns then; a rollback is a failed attempt. After a handler has done so, each of its events
// runs in a transaction of its own.
func On[E Event](c *Consumer, fn func(ctx context.Context, tx bun.Tx, m Message[E]) error) {
	register[E](c, "On", fn == nil, &handler.Handler{Run: func(ctx context.Context, tx handler.Transaction, ms []*handler.Message) error {
		return fn(ctx, tx.Bun, messageOf[E](c.c, ms[0]))
	}})
}

// OnBatch registers a handler that receives many events in one call and one
// transaction, in commit order. An error sends them back to be handled one by one,
// so that only the failing one is retried. What it saves belongs to the tenant and store that all events of the call
// have in common. Where these differ, and to hand on the metadata and the trace of one of them, save with [Message.Context].
func OnBatch[E Event](c *Consumer, fn func(ctx context.Context, tx bun.Tx, ms []Message[E]) error) {
	register[E](c, "OnBatch", fn == nil,
		&handler.Handler{Batch: true, Run: func(ctx context.Context, tx handler.Transaction, ms []*handler.Message) error {
			return fn(ctx, tx.Bun, messagesOf[E](c.c, ms))
		}})
}

// OnExternal registers a handler whose effect lies outside the database. It runs at
// least once; hand [Message.Key] to whatever it calls. It has 25 attempts within about nine days, where other handlers
// have 10, unless its consumer says otherwise ([ConsumerConfig.MaxAttempts], [ConsumerConfig.Backoff]).
func OnExternal[E Event](c *Consumer, fn func(ctx context.Context, m Message[E]) error) {
	register[E](c, "OnExternal", fn == nil,
		&handler.Handler{External: true, Run: func(ctx context.Context, _ handler.Transaction, ms []*handler.Message) error {
			return fn(ctx, messageOf[E](c.c, ms[0]))
		}})
}

// OnExternalBatch is [OnExternal] for many events in one call: a mail service or a message broker that takes many at a time, say. fn
// returns one error for each message, nil for what has succeeded, and each event is settled by its own: what an error of
// [OnExternal] means for one event, such as [Permanent] or [Unavailable], it means here. If fn panics, exceeds its timeout or returns
// another number of errors, all events of the call fail.
//
// No two messages of a call are of one aggregate, and no other call with an event of these aggregates runs beside it, unless the
// consumer is Unordered: so one event of an aggregate is under way at a time. A call holds at most [ConsumerConfig.Batch] messages, and
// Concurrency calls run side by side. To middleware ([Bus.Use]) a call of which some events have failed ends with one error: if
// it returns that, or one that wraps it, each event is settled by its own; what else it returns counts for all.
func OnExternalBatch[E Event](c *Consumer, fn func(ctx context.Context, ms []Message[E]) []error) {
	register[E](c, "OnExternalBatch", fn == nil,
		&handler.Handler{External: true, Batch: true, Run: func(ctx context.Context, _ handler.Transaction, ms []*handler.Message) error {
			return handler.Each(fn(ctx, messagesOf[E](c.c, ms)), len(ms))
		}})
}

// register gives h, of which only how to run it is known, to the consumer, or notes what is wrong with it.
func register[E Event](c *Consumer, verb string, isNil bool, h *handler.Handler) {
	if c == nil || c.bus == nil {
		panic("bus." + verb + ": the consumer was not made by Bus.Consumer, so there is no bus that could return this mistake: " +
			"write bus." + verb + "(b.Consumer(\"Points\", bus.ConsumerConfig{}), …)")
	}
	b := c.bus
	b.all.Lock()
	defer b.all.Unlock()
	if b.isLate(fmt.Sprintf("bus.%s of consumer %q", verb, c.Name())) {
		return
	}
	var zero E
	err := describe(h, reflect.TypeFor[E](), zero)
	switch {
	case err != nil:
	case isNil:
		err = errors.New("the handler is nil")
	case c.Handles(h.EventType):
		err = fmt.Errorf("the consumer has two handlers for %s, the other by bus.%s: one event type has one handler in a consumer; give the "+
			"other to a consumer of its own", h.EventType, c.c.Handler(h.EventType).Verb)
	}
	if err != nil {
		c.refused = true
		b.refuse(fmt.Errorf("bus.%s of consumer %q: %w", verb, c.Name(), err))
		return
	}
	h.Verb, h.Decode = verb, decoder[E](h.EventType)
	personal.Learn(h.EventType, h.Type)
	c.c.Add(h)
}

// describe fills in what the event type says, and refuses a type that cannot be an event.
func describe(h *handler.Handler, t reflect.Type, e Event) error {
	if t.Kind() == reflect.Pointer || t.Kind() == reflect.Interface {
		return fmt.Errorf("the event type %v must be a value type, not a pointer or an interface: bus.Message[OrderPaid], not "+
			"bus.Message[*OrderPaid]", t)
	}
	if err := text.EventType(fmt.Sprintf("%v.EventType()", t), e.EventType()); err != nil {
		return err
	}
	if _, err := json.Marshal(e); err != nil {
		return fmt.Errorf("%v cannot be encoded as JSON: %w", t, err)
	}
	if err := text.CheckFields(t); err != nil {
		return err
	}
	h.EventType, h.Version, h.Type = e.EventType(), handler.VersionOf(e), t
	return nil
}

// decoder makes a pointer to an E of a payload.
func decoder[E Event](name string) func(payload json.RawMessage) (any, error) {
	return func(payload json.RawMessage) (any, error) {
		e := new(E)
		if err := json.Unmarshal(payload, e); err != nil {
			return nil, fmt.Errorf("payload of %s does not decode into %v: %w", name, reflect.TypeFor[E](), err)
		}
		return e, nil
	}
}

func messageOf[E Event](c *handler.Consumer, m *handler.Message) Message[E] {
	return messageWith(c, m, *m.Payload.(*E))
}

// messageWith is m with its payload as a handler, or middleware, knows it.
func messageWith[E Event](c *handler.Consumer, m *handler.Message, payload E) Message[E] {
	return Message[E]{
		Envelope: envelopeOf(m.Event), Payload: payload, Consumer: c.Name, consumer: c.Key, Attempt: m.Attempt, Replay: m.Replay,
		record: &m.Record,
	}
}

func messagesOf[E Event](c *handler.Consumer, ms []*handler.Message) []Message[E] {
	all := make([]Message[E], len(ms))
	for i, m := range ms {
		all[i] = messageOf[E](c, m)
	}
	return all
}

// Decode is the payload of a stored event as a handler of E gets it: brought to the version of E by the upcasters of b, and
// decoded. It is for tests and tools: a handler has it in [Message.Payload]. It returns an error if the row is malformed, the event
// has a newer version than E, an upcaster is missing or fails, or the payload does not decode into an E.
func Decode[E Event](b *Bus, env *Envelope) (E, error) {
	var e E
	if env.Malformed != "" {
		return e, errors.New("the event's row is malformed: " + env.Malformed)
	}
	payload, err := b.all.Upcast(env.Type, env.SchemaVersion, handler.VersionOf(e), env.Data)
	if err == nil {
		err = json.Unmarshal(payload, &e)
	}
	if err != nil {
		return e, fmt.Errorf("payload of %s does not decode into %T: %w", env.Type, e, err)
	}
	return e, nil
}
