package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/personal"
	"github.com/bluecone-go/bluecone/internal/text"
)

// On registers a handler that works in the transaction it is handed: its effect
// happens exactly once. E is inferred from fn. E must be a type by value that can be encoded as JSON, with a valid
// event type that this consumer does not handle yet: whatever is wrong is returned by outbox.NewPublisher.
// c is what [Bus.Consumer] returned.
func On[E Event](c *Consumer, fn func(ctx context.Context, tx bun.Tx, m Message[E]) error) {
	register[E](c, "On", fn == nil, &handler{run: func(ctx context.Context, tx bun.Tx, ds []*delivery) error {
		return fn(ctx, tx, messageOf[E](c, ds[0]))
	}})
}

// OnBatch registers a handler that receives many events in one call and one
// transaction, in commit order. An error sends them back to be handled one by one,
// so that only the failing one is retried. What it saves belongs to the tenant and store that all of them have in common;
// [Message.Context] says of which one it speaks, where they differ and for the sake of metadata and trace.
func OnBatch[E Event](c *Consumer, fn func(ctx context.Context, tx bun.Tx, ms []Message[E]) error) {
	register[E](c, "OnBatch", fn == nil, &handler{batch: true, run: func(ctx context.Context, tx bun.Tx, ds []*delivery) error {
		ms := make([]Message[E], len(ds))
		for i, d := range ds {
			ms[i] = messageOf[E](c, d)
		}
		return fn(ctx, tx, ms)
	}})
}

// OnExternal registers a handler whose effect lies outside the database. It runs at
// least once; hand [Message.Key] to whatever it calls.
func OnExternal[E Event](c *Consumer, fn func(ctx context.Context, m Message[E]) error) {
	register[E](c, "OnExternal", fn == nil, &handler{external: true, run: func(ctx context.Context, _ bun.Tx, ds []*delivery) error {
		return fn(ctx, messageOf[E](c, ds[0]))
	}})
}

// handler is the part of a registration that does not know its event's Go type.
type handler struct {
	eventType string
	spanName  string
	version   int
	batch     bool
	external  bool
	tooLong   error // the cause of a context that ends with the timeout
	decode    func(payload json.RawMessage) (any, error)
	shared    reflect.Type // what decode makes a pointer to, if consumers may have it in common
	run       func(ctx context.Context, tx bun.Tx, ds []*delivery) error
}

// register gives h, of which only how to run it is known, to the consumer, or notes what is wrong with it.
func register[E Event](c *Consumer, verb string, isNil bool, h *handler) {
	if c == nil || c.bus == nil {
		panic("bus." + verb + ": the consumer was not made by Bus.Consumer, so there is no bus that could return this mistake")
	}
	b := c.bus
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isLate(fmt.Sprintf("bus.%s of consumer %q", verb, c.name)) {
		return
	}
	var zero E
	err := h.describe(reflect.TypeFor[E](), zero)
	switch {
	case err != nil:
	case isNil:
		err = errors.New("the handler is nil")
	case c.handlers[h.eventType] != nil:
		err = fmt.Errorf("the consumer has two handlers for %s: one event type has one handler in a consumer; give the other to a consumer of its own", h.eventType)
	}
	if err != nil {
		c.refused = true
		b.refuse(fmt.Errorf("bus.%s of consumer %q: %w", verb, c.name, err))
		return
	}
	h.decode = decoder[E](h.eventType)
	h.tooLong = fmt.Errorf("the handler of %s in %s exceeded its timeout of %v", h.eventType, c.name, c.cfg.Timeout)
	personal.Learn(h.eventType, reflect.TypeFor[E]())
	c.handlers[h.eventType] = h
}

// describe fills in what the event type says, and refuses a type that cannot be an event.
func (h *handler) describe(t reflect.Type, e Event) error {
	if t.Kind() == reflect.Pointer || t.Kind() == reflect.Interface {
		return fmt.Errorf("the event type %v must be a value type, not a pointer or an interface: bus.Message[OrderPaid], not bus.Message[*OrderPaid]", t)
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
	h.eventType, h.spanName, h.version = e.EventType(), "consume "+e.EventType(), VersionOf(e)
	if immutable(t) {
		h.shared = t
	}
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

// VersionOf is the schema version that code saving e writes, at least 1.
func VersionOf(e Event) int {
	if v, ok := e.(Versioned); ok {
		return max(v.SchemaVersion(), 1)
	}
	return 1
}

func messageOf[E Event](c *Consumer, d *delivery) Message[E] {
	return Message[E]{Envelope: *d.env, Payload: *d.payload.(*E), Consumer: c.name, consumer: c.key, Attempt: d.attempt, Replay: d.replay(), record: &d.record}
}

// decode upcasts and decodes the payload of d. Its errors are permanent.
func (c *Consumer) decode(d *delivery) error {
	if d.payload != nil {
		return nil
	}
	if d.env.Malformed != "" {
		return Permanent(errors.New("the event's row is malformed: " + d.env.Malformed))
	}
	h := c.handlers[d.env.Type]
	if h == nil {
		return fmt.Errorf("consumer %s has no handler for %s", c.name, d.env.Type)
	}
	payload, err := d.payloads.of(h.shared, func() (any, error) { return c.bus.decode(d.env, h) })
	if err != nil {
		return Permanent(err)
	}
	d.payload = payload
	return nil
}

// Decode is the payload of a stored event as a handler of E gets it: brought to the version of E by the upcasters of b, and
// decoded. It is for tests and tools: a handler has it in [Message.Payload].
func Decode[E Event](b *Bus, env *Envelope) (E, error) {
	var e E
	if env.Malformed != "" {
		return e, errors.New("the event's row is malformed: " + env.Malformed)
	}
	payload, err := b.upcast(env, VersionOf(e))
	if err == nil {
		err = json.Unmarshal(payload, &e)
	}
	if err != nil {
		return e, fmt.Errorf("payload of %s does not decode into %T: %w", env.Type, e, err)
	}
	return e, nil
}

// decode upcasts and decodes a payload. Both call code of the user's, whose panic would end the process, again after each start.
func (b *Bus) decode(env *Envelope, h *handler) (payload any, err error) {
	defer func() {
		if v := recover(); v != nil {
			said := fmt.Sprintf("decoding it, with a %T", v) // the value itself may be of the payload
			payload, err = nil, fmt.Errorf("payload of %s does not decode: %w", env.Type, &PanicError{Value: said, Stack: string(debug.Stack())})
		}
	}()
	upcast, err := b.upcast(env, h.version)
	if err != nil {
		return nil, err
	}
	return h.decode(upcast)
}

// upcast is the event's payload in the schema version that this code knows.
func (b *Bus) upcast(env *Envelope, known int) (json.RawMessage, error) {
	payload, version := env.Data, env.SchemaVersion
	for version < known {
		up := b.upcasters[env.Type][version]
		if up == nil {
			return nil, fmt.Errorf("%s has schema version %d, this code knows version %d and has no upcaster from %d", env.Type, env.SchemaVersion, known, version)
		}
		var err error
		if payload, err = up(payload); err != nil {
			return nil, fmt.Errorf("upcast %s from version %d: %w", env.Type, version, err)
		}
		version++
	}
	if version > known {
		return nil, fmt.Errorf("%s has schema version %d, newer than version %d of this code", env.Type, version, known)
	}
	return payload, nil
}
