package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/kind"
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

// ErrInvalidEvent means that [Outbox.Save] refused an event before it spoke to the database. The
// error's text says which event, and what is wrong with it.
var ErrInvalidEvent = errors.New("invalid event")

// Save stores the events in the caller's transaction. Nothing is stored, and the
// transaction is still usable, if one of them is not valid; the error is an
// [ErrInvalidEvent] and says which and why.
// Saving a keyed event that exists already, or has existed ([RetentionConfig.KeepKeys]), is a no-op.
//
// A publisher of this process gets the events within milliseconds after the commit. Give Save the context that db.RunInTx of
// bun gives its function: then the commit is seen. The commits of other transactions are looked for, every 2 ms, for 2 s; after
// that the events are left to the poll ([PublisherConfig.Poll]).
//
// It never waits for the engine. It waits for another transaction only if that one is saving the same keyed event; several
// keyed events of one call are taken in one order, so that such calls do not deadlock. Transactions that save the same
// keys by several calls, in opposite orders, do, as if they changed the same rows: the database ends one of them.
//
// Events of one aggregate are delivered in the order of their commits if the
// transaction has locked the aggregate (by changing its row, say) before it saves.
//
// The transaction may be any [Tx]: one of the outbox's pool, or of another pool on its database. Save neither commits it nor
// rolls it back. It refuses, and says what to do, a transaction that is nil or was never begun, one that has ended, and one that
// bun has begun on another kind of database.
func (o *Outbox) Save(ctx context.Context, tx Tx, events ...bus.Event) (err error) {
	if len(events) == 0 {
		return nil
	}
	in, err := o.transaction(tx)
	if err != nil {
		return err
	}
	ctx, span := o.tracer.Start(ctx, "save "+typeOf(events[0]), trace.WithSpanKind(trace.SpanKindProducer))
	defer func() { telemetry.End(span, err) }()
	rows := make([]store.NewEvent, len(events))
	for i, e := range events {
		if rows[i], err = o.prepare(ctx, e); err != nil {
			return kind.Of(fmt.Errorf("outbox: event %d of %d (%s): %w", i+1, len(events), typeOf(e), err), ErrInvalidEvent)
		}
	}
	span.SetAttributes(telemetry.String(telemetry.EventID, rows[0].ID), telemetry.String(telemetry.EventType, rows[0].Type),
		telemetry.String(telemetry.AggregateType, rows[0].AggregateType), telemetry.String(telemetry.AggregateID, rows[0].AggregateID))
	if in.formats != nil {
		if err := o.quoting.Check(ctx, in.formats); err != nil {
			return refusal(o.db.Dialect(), rows[0].Type, err)
		}
	}
	m := o.hook.markOf(ctx, in)
	stored, err := o.saving.Save(ctx, o.notify.by(in.Tx, m != nil), rows)
	if err != nil {
		return refusal(o.db.Dialect(), rows[0].Type, err)
	}
	if len(stored) > 0 {
		o.hook.saved(m, stored)
	}
	o.countSaved(ctx, rows, len(stored))
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

func (o *Outbox) countSaved(ctx context.Context, rows []store.NewEvent, stored int) {
	telemetry.Add(ctx, o.metrics.Created, int64(stored), telemetry.EventType, rows[0].Type)
	telemetry.Add(ctx, o.metrics.Repeated, int64(len(rows)-stored), telemetry.EventType, rows[0].Type)
	for _, r := range rows {
		o.logger.DebugContext(ctx, "event saved", telemetry.EventID, r.ID, telemetry.EventType, r.Type,
			telemetry.AggregateType, r.AggregateType, telemetry.AggregateID, r.AggregateID,
			telemetry.TraceID, trace.SpanContextFromContext(ctx).TraceID().String(), telemetry.RequestID, bus.MetadataFrom(ctx)[bus.MetaRequestID])
	}
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

// EventID is the event_id under which a keyed event of the tenant (0 for none) is or
// would be saved.
func EventID(tenantID int64, eventType, idempotencyKey string) string {
	return uuid.NewSHA1(namespace, fmt.Appendf(nil, "%s|%d|%s|%s", keyedNamespace, tenantID, eventType, idempotencyKey)).String()
}
