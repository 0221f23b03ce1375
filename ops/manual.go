package ops

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/text"
	"github.com/bluecone-go/bluecone/outbox"
)

// Manual is an event as somebody types it.
type Manual struct {
	EventType string `json:"eventType"` // one of Config.Publishable
	Payload   string `json:"payload"`   // JSON. It says which aggregate, key and version the event has
	TenantID  int64  `json:"tenantId,string,omitempty"`
	StoreID   int64  `json:"storeId,string,omitempty"`
}

// Published is what a manual event became, or would become.
type Published struct {
	EventID        string `json:"eventId,omitempty"` // empty if nothing was saved and the type has no idempotency key
	EventType      string `json:"eventType"`
	AggregateType  string `json:"aggregateType"`
	AggregateID    string `json:"aggregateId"`
	IdempotencyKey string `json:"idempotencyKey,omitempty"`
	Exists         bool   `json:"exists"`  // there was such an event already
	Created        bool   `json:"created"` // it was saved now
}

// PublishableTypes lists the event types that may be published by hand, sorted.
func (o *Ops) PublishableTypes() []string { return o.manual.types() }

// Sample is a JSON payload of a publishable type with empty values, for whoever has to type one.
func (o *Ops) Sample(eventType string) (string, error) {
	e, err := o.manual.named(eventType)
	if err != nil {
		return "", err
	}
	doc, err := json.MarshalIndent(reflect.Zero(reflect.TypeOf(e)).Interface(), "", "  ")
	return string(doc), err
}

// CheckManual tells what [Ops.Publish] would save, and whether it exists already. It validates as
// Publish does.
func (o *Ops) CheckManual(ctx context.Context, m Manual) (Published, error) {
	return o.manual.check(ctx, m)
}

// Publish saves an event that should have been saved: validated as Save would, audited, under its
// deterministic id if its type has an idempotency key; to publish such an event again changes
// nothing. An event without a key is a new one every time.
func (o *Ops) Publish(ctx context.Context, op Operation, m Manual) (Published, error) {
	return o.manual.publish(ctx, op, m)
}

// publishable are the types that may be published by hand.
type publishable []bus.Event

func (p publishable) types() []string {
	types := make([]string, 0, len(p))
	for _, e := range p {
		types = append(types, e.EventType())
	}
	slices.Sort(types)
	return types
}

func (p publishable) named(eventType string) (bus.Event, error) {
	for _, e := range p {
		if e.EventType() == eventType {
			return e, nil
		}
	}
	types := "none"
	if len(p) > 0 {
		types = strings.Join(p.types(), ", ")
	}
	return nil, invalidf("ops: events of type %s cannot be published by hand: ops.Config.Publishable has %s", text.Quote(eventType), types)
}

// manualEvent is an event whose type has no key, with an id that is known before it is saved.
type manualEvent struct {
	bus.Event
	key string
}

// IdempotencyKey makes the id known.
func (e manualEvent) IdempotencyKey() string { return e.key }

// SchemaVersion is the event's own.
func (e manualEvent) SchemaVersion() int { return handler.VersionOf(e.Event) }

// MarshalJSON encodes the event itself.
func (e manualEvent) MarshalJSON() ([]byte, error) { return json.Marshal(e.Event) }

// decode makes an event of what somebody has typed. A field that the type does not have is an error.
func (p publishable) decode(m Manual) (bus.Event, Published, error) {
	sample, err := p.named(m.EventType)
	if err != nil {
		return nil, Published{}, err
	}
	typed := reflect.New(reflect.TypeOf(sample))
	dec := json.NewDecoder(bytes.NewReader([]byte(m.Payload)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(typed.Interface()); err != nil {
		return nil, Published{}, invalidf("ops: the payload is not one of %s: %w", m.EventType, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, Published{}, invalidf("ops: something follows the payload: it must be one JSON value")
	}
	e := typed.Elem().Interface().(bus.Event)
	out := Published{EventType: m.EventType}
	out.AggregateType, out.AggregateID = e.Aggregate()
	if k, ok := e.(bus.Keyed); ok && k.IdempotencyKey() != "" {
		out.IdempotencyKey = k.IdempotencyKey()
		out.EventID = outbox.EventID(m.TenantID, m.EventType, out.IdempotencyKey)
	}
	return e, out, nil
}

// manuals publishes events by hand.
type manuals struct {
	publishable

	ob   *outbox.Outbox
	acts *acts
}

var errOnlyChecked = errors.New("only checked")

func (m *manuals) check(ctx context.Context, typed Manual) (Published, error) {
	if !CallerOf(ctx).Sees(typed.TenantID) {
		return Published{}, fmt.Errorf("ops: publish for the tenant %d: %w", typed.TenantID, ErrForbidden)
	}
	e, p, err := m.decode(typed)
	if err != nil {
		return Published{}, err
	}
	err = m.acts.db.RunInTx(ctx, m.acts.d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) error {
		if p.Exists, err = m.exists(ctx, tx, p.EventID); err != nil {
			return err
		}
		if err := m.save(ctx, tx, typed, e); err != nil {
			return err
		}
		return errOnlyChecked // so that nothing is saved
	})
	if errors.Is(err, errOnlyChecked) {
		return p, nil
	}
	return Published{}, fmt.Errorf("ops: publish %s: %w", typed.EventType, err)
}

func (m *manuals) save(ctx context.Context, tx bun.Tx, typed Manual, e bus.Event) error {
	err := m.ob.Save(ctx, tx, outbox.With(e, outbox.Tenant(typed.TenantID, typed.StoreID), outbox.Meta("source", "manual")))
	if errors.Is(err, outbox.ErrInvalidEvent) {
		return asInvalid(err)
	}
	return err
}

func (m *manuals) exists(ctx context.Context, idb bun.IDB, eventID string) (bool, error) {
	if eventID == "" {
		return false, nil
	}
	missing, err := m.ob.Missing(ctx, idb, []string{eventID})
	return len(missing) == 0, err
}

func (m *manuals) publish(ctx context.Context, op Operation, typed Manual) (Published, error) {
	if !CallerOf(ctx).Sees(typed.TenantID) {
		return Published{}, fmt.Errorf("ops: publish for the tenant %d: %w", typed.TenantID, ErrForbidden)
	}
	e, p, err := m.decode(typed)
	if err != nil {
		return Published{}, err
	}
	if err := asInvalid(op.Validate()); err != nil {
		return Published{}, fmt.Errorf("ops: publish %s: %w", typed.EventType, err)
	}
	if p.EventID == "" {
		keyed := manualEvent{Event: e, key: "manual:" + uuid.NewString()}
		e, p.EventID = keyed, outbox.EventID(typed.TenantID, typed.EventType, keyed.key)
	}
	err = m.acts.db.RunInTx(ctx, m.acts.d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) (err error) {
		if p.Exists, err = m.exists(ctx, tx, p.EventID); err != nil || p.Exists {
			return err
		}
		if err := m.save(ctx, tx, typed, e); err != nil {
			return err
		}
		return store.WriteAudit(ctx, tx, m.acts.d, store.AuditEntry{
			Actor: op.Actor, Action: "publish", Target: p.EventID, Reason: op.Reason,
			Details: typed.EventType + " of " + store.AggregateTarget(p.AggregateType, p.AggregateID),
		})
	})
	if err != nil {
		return Published{}, fmt.Errorf("ops: publish %s: %w", typed.EventType, err)
	}
	if p.Created = !p.Exists; p.Created {
		m.acts.done(ctx, op, "publish", p.EventID)
	}
	return p, nil
}
