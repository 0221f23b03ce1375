package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/personal"
	"github.com/bluecone-go/bluecone/internal/text"
)

// On registers a handler that works in the transaction it is handed: its effect
// happens exactly once. E is inferred from fn. It panics if E is not a struct by
// value, if its event type is not valid or handled already by this consumer, or if
// it cannot be encoded as JSON.
func On[E Event](c *Consumer, fn func(ctx context.Context, tx bun.Tx, m Message[E]) error) {
	mustHaveFunc(c, "On", fn == nil)
	c.add(newHandler[E](c, "On", func(ctx context.Context, tx bun.Tx, ds []*delivery) error {
		return fn(ctx, tx, messageOf[E](c, ds[0]))
	}))
}

// OnBatch registers a handler that receives many events in one call and one
// transaction, in commit order. An error sends them back to be handled one by one,
// so that only the failing one is retried. What it saves belongs to the tenant and store that all of them have in common;
// [Message.Context] says of which one it speaks, where they differ and for the sake of metadata and trace.
// It panics as [On] does.
func OnBatch[E Event](c *Consumer, fn func(ctx context.Context, tx bun.Tx, ms []Message[E]) error) {
	mustHaveFunc(c, "OnBatch", fn == nil)
	h := newHandler[E](c, "OnBatch", func(ctx context.Context, tx bun.Tx, ds []*delivery) error {
		ms := make([]Message[E], len(ds))
		for i, d := range ds {
			ms[i] = messageOf[E](c, d)
		}
		return fn(ctx, tx, ms)
	})
	h.batch = true
	c.add(h)
}

// OnExternal registers a handler whose effect lies outside the database. It runs at
// least once; hand [Message.Key] to whatever it calls. It panics as [On] does.
func OnExternal[E Event](c *Consumer, fn func(ctx context.Context, m Message[E]) error) {
	mustHaveFunc(c, "OnExternal", fn == nil)
	h := newHandler[E](c, "OnExternal", func(ctx context.Context, _ bun.Tx, ds []*delivery) error {
		return fn(ctx, messageOf[E](c, ds[0]))
	})
	h.external = true
	c.add(h)
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

func newHandler[E Event](c *Consumer, verb string, run func(context.Context, bun.Tx, []*delivery) error) *handler {
	t := reflect.TypeFor[E]()
	if t.Kind() == reflect.Pointer || t.Kind() == reflect.Interface {
		panic(fmt.Sprintf("bus.%s %s: the event type %v must be a value type, not a pointer or an interface", verb, c.name, t))
	}
	var zero E
	name := zero.EventType()
	if err := text.EventType(fmt.Sprintf("bus.%s %s: %v.EventType()", verb, c.name, t), name); err != nil {
		panic(err.Error())
	}
	if _, err := json.Marshal(zero); err != nil {
		panic(fmt.Sprintf("bus.%s %s: %v cannot be encoded as JSON: %v", verb, c.name, t, err))
	}
	h := &handler{
		eventType: name, spanName: "consume " + name, version: VersionOf(zero), run: run,
		tooLong: fmt.Errorf("the handler of %s in %s exceeded its timeout of %v", name, c.name, c.cfg.Timeout),
		decode: func(payload json.RawMessage) (any, error) {
			e := new(E)
			if err := json.Unmarshal(payload, e); err != nil {
				return nil, fmt.Errorf("payload of %s does not decode into %v: %w", name, t, err)
			}
			return e, nil
		},
	}
	if immutable(t) {
		h.shared = t
	}
	personal.Learn(name, t)
	return h
}

// VersionOf is the schema version that code saving e writes, at least 1.
func VersionOf(e Event) int {
	if v, ok := e.(Versioned); ok {
		return max(v.SchemaVersion(), 1)
	}
	return 1
}

func (c *Consumer) add(h *handler) {
	c.bus.mu.Lock()
	defer c.bus.mu.Unlock()
	c.bus.mustBeClosed("a handler of " + c.name)
	if c.handlers[h.eventType] != nil {
		panic(fmt.Sprintf("bus: consumer %s has two handlers for %s", c.name, h.eventType))
	}
	c.handlers[h.eventType] = h
}

func mustHaveFunc(c *Consumer, verb string, isNil bool) {
	if c == nil {
		panic("bus." + verb + ": the consumer is nil")
	}
	if isNil {
		panic("bus." + verb + " " + c.name + ": the handler is nil")
	}
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
	payload, err := d.payloads.of(h.shared, func() (any, error) {
		payload, err := c.bus.upcast(d.env, h.version)
		if err != nil {
			return nil, err
		}
		return h.decode(payload)
	})
	if err != nil {
		return Permanent(err)
	}
	d.payload = payload
	return nil
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
