package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"time"

	"github.com/google/uuid"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/origin"
	"github.com/bluecone-go/bluecone/internal/rawevent"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/text"
)

const (
	metaInstance   = settle.MetaInstance
	keyedNamespace = "bluecone event"
)

// namespace is the UUID namespace of keyed events.
var namespace = uuid.NewSHA1(uuid.NameSpaceURL, //nolint:gochecknoglobals // a constant
	[]byte("https://github.com/bluecone-go/bluecone#event"))

// EventID is the event_id under which a keyed event of the tenant (0 for none) is or
// would be saved.
func EventID(tenantID int64, eventType, idempotencyKey string) string {
	return uuid.NewSHA1(namespace, fmt.Appendf(nil, "%s|%d|%s|%s", keyedNamespace, tenantID, eventType, idempotencyKey)).String()
}

// Option says about one event what its type cannot know.
type Option func(*configured)

// With adds options to an event. The result is saved like the event itself.
func With(e bus.Event, opts ...Option) bus.Event {
	c := configured{Event: e}
	if inner, ok := e.(configured); ok {
		c = inner
		c.meta = maps.Clone(inner.meta)
	}
	for _, o := range opts {
		if o != nil {
			o(&c)
		}
	}
	return c
}

// DeliverAt delays the event until t. Only then does it take its place among the
// events of its aggregate. The zero time means not delayed. Save refuses any other t that is not between the years 2000 and 9000.
func DeliverAt(t time.Time) Option { return func(c *configured) { c.deliverAt = t } }

// Tenant sets tenant_id and store_id; 0 stores NULL, and Save refuses a negative number. The tenant is part of the
// identity of a keyed event. Without it an event belongs to nobody, and one that a handler saves to the
// tenant and store of the handler's message.
func Tenant(tenantID, storeID int64) Option {
	return func(c *configured) { c.tenantID, c.storeID, c.hasTenant = tenantID, storeID, true }
}

// Meta adds one metadata entry. Its key has at most 64 bytes, and all metadata of an event together, as JSON, at most 16 KiB: Save
// refuses more.
func Meta(key, value string) Option {
	return func(c *configured) {
		if c.meta == nil {
			c.meta = make(bus.Metadata)
		}
		c.meta[key] = value
	}
}

// configured is an event with its options.
type configured struct {
	bus.Event
	deliverAt         time.Time
	tenantID, storeID int64
	hasTenant         bool // said by Tenant
	meta              bus.Metadata
}

// Parts takes the event apart, for those who send it elsewhere.
func (c configured) Parts() rawevent.Parts {
	return rawevent.Parts{Event: c.Event, TenantID: c.tenantID, StoreID: c.storeID, DeliverAt: c.deliverAt, Metadata: c.meta}
}

// inherit gives the event the tenant of the message on whose behalf it is saved.
func (c *configured) inherit(ctx context.Context) error {
	o := origin.Of(ctx)
	switch {
	case c.hasTenant:
		return nil
	case o.Mixed:
		return errors.New("the handler's call is for messages of several tenants or stores, and the event would lose its own: " +
			"save it with m.Context(ctx) of the message m that it follows from, or say outbox.With(e, outbox.Tenant(tenant, store))")
	}
	c.tenantID, c.storeID = o.TenantID, o.StoreID
	return nil
}

// prepare validates an event and encodes it.
func (o *Outbox) prepare(ctx context.Context, e bus.Event) (r store.NewEvent, err error) {
	if isNil(e) {
		return r, errors.New("the event is nil")
	}
	c, ok := e.(configured)
	if !ok {
		c = configured{Event: e}
	}
	if isNil(c.Event) {
		return r, errors.New("the event is nil")
	}
	if err := c.inherit(ctx); err != nil {
		return r, err
	}
	r = store.NewEvent{
		Type: c.Event.EventType(), SchemaVersion: handler.VersionOf(c.Event), TenantID: c.tenantID, StoreID: c.storeID,
		DeliverAt: c.deliverAt, MaxAttempts: o.cfg.MaxRetryCount,
	}
	r.AggregateType, r.AggregateID = c.Event.Aggregate()
	key := ""
	if k, ok := c.Event.(bus.Keyed); ok {
		key = k.IdempotencyKey()
	}
	err = errors.Join(
		text.EventType("event type", r.Type),
		text.AggregateType("aggregate type", r.AggregateType),
		text.Key("aggregate id", r.AggregateID, 128),
		checkTenant(c),
		o.cfg.encode(ctx, c, &r),
	)
	return r, errors.Join(err, identify(c, key, &r))
}

// identify gives an event its id: the one that it brings, that of its key, or a new one.
func identify(c configured, key string, r *store.NewEvent) error {
	r.IsKeyed, r.Key = key != "", key
	if raw, ok := c.Event.(*rawevent.Event); ok && raw.ID != "" {
		r.IsKeyed, r.ID = true, raw.ID
		return errors.Join(text.Key("event id", r.ID, 64), keyError(key))
	}
	if key != "" {
		r.ID = EventID(c.tenantID, r.Type, key)
		return keyError(key)
	}
	id, err := uuid.NewV7()
	r.ID = id.String()
	return err
}

func keyError(key string) error {
	if key == "" {
		return nil
	}
	return text.Key("idempotency key", key, 255)
}

func checkTenant(c configured) error {
	if c.tenantID < 0 || c.storeID < 0 {
		return fmt.Errorf("tenant %d, store %d: they must not be negative", c.tenantID, c.storeID)
	}
	if !c.deliverAt.IsZero() && (c.deliverAt.Year() < 2000 || c.deliverAt.Year() > 9000) {
		return fmt.Errorf("delivery time %v is not between the years 2000 and 9000", c.deliverAt)
	}
	return nil
}

// encode fills in payload and metadata, and checks what the databases could not store alike.
func (c Config) encode(ctx context.Context, e configured, r *store.NewEvent) error {
	payload, err := json.Marshal(e.Event)
	if err != nil {
		return fmt.Errorf("payload cannot be encoded: %w", err)
	}
	if err := text.CheckFields(reflect.TypeOf(e.Event)); err != nil {
		return err
	}
	if len(payload) > c.MaxPayload {
		return fmt.Errorf("payload has %d bytes, the limit is %d: save a reference instead", len(payload), c.MaxPayload)
	}
	n, replaced := text.Inspect(payload)
	if n > maxDepth {
		return fmt.Errorf("payload is nested %d deep, the limit is %d", n, maxDepth)
	}
	if replaced {
		return errors.New("payload has a string that is not valid UTF-8: it would not be stored as it is")
	}
	md := make(bus.Metadata)
	maps.Copy(md, bus.MetadataFrom(ctx))
	maps.Copy(md, e.meta)
	md[metaInstance] = c.Instance
	if id := telemetry.Inject(ctx, md); id != "" {
		md[bus.MetaTraceID] = id
	}
	for k, v := range md {
		if err := text.Key("metadata key", k, 64); err != nil {
			return err
		}
		if clean := text.Clean(v, len(v)+1); clean != v {
			return fmt.Errorf("metadata %s %s is not valid UTF-8 or contains NUL", k, text.Quote(v))
		}
	}
	metadata, err := json.Marshal(md)
	if err != nil {
		return fmt.Errorf("metadata cannot be encoded: %w", err)
	}
	if len(metadata) > maxMetadata {
		return fmt.Errorf("metadata has %d bytes, the limit is %d", len(metadata), maxMetadata)
	}
	r.Payload, r.Metadata = string(payload), string(metadata)
	if id := md[bus.MetaTraceID]; len(id) <= maxTraceID {
		r.TraceID = id
	}
	return nil
}

func typeOf(e bus.Event) string {
	if isNil(e) {
		return "nil"
	}
	if c, ok := e.(configured); ok && isNil(c.Event) {
		return "nil"
	}
	return text.Clean(e.EventType(), 128)
}

func isNil(e bus.Event) bool {
	if e == nil {
		return true
	}
	v := reflect.ValueOf(e)
	return v.Kind() == reflect.Pointer && v.IsNil()
}
