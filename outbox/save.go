package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
	"go.opentelemetry.io/otel/trace"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/kind"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/text"
)

const (
	maxTraceID     = 64
	metaInstance   = "instance"
	plainColumns   = "aggregate_type, aggregate_id, event_type, event_id, event_payload, event_metadata, next_retry_at"
	otherColumns   = ", tenant_id, store_id, schema_version, status, max_retry_count"
	keyedNamespace = "bluecone event"
)

// namespace is the UUID namespace of keyed events.
var namespace = uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://github.com/bluecone-go/bluecone#event")) //nolint:gochecknoglobals // a constant

// ErrInvalidEvent means that [Outbox.Save] refused an event before it spoke to the database. The
// error's text says which event, and what is wrong with it.
var ErrInvalidEvent = errors.New("invalid event")

// Save stores the events in the caller's transaction. Nothing is stored, and the
// transaction is still usable, if one of them is not valid; the error is an
// [ErrInvalidEvent] and says which and why.
// Saving a keyed event that exists already, or has existed ([RetentionConfig.KeepKeys]), is a no-op.
//
// It never waits for the engine. It waits for another transaction only if that one is saving the same keyed event; several
// keyed events of one call are taken in one order, so that such calls do not deadlock. Transactions that save the same
// keys by several calls, in opposite orders, do, as if they changed the same rows: the database ends one of them.
//
// Events of one aggregate are delivered in the order of their commits if the
// transaction has locked the aggregate (by changing its row, say) before it saves.
func (o *Outbox) Save(ctx context.Context, tx bun.Tx, events ...bus.Event) (err error) {
	if len(events) == 0 {
		return nil
	}
	if tx.Tx == nil {
		return errors.New("outbox: Save needs an open transaction, got the zero bun.Tx")
	}
	ctx, span := o.tracer.Start(ctx, "save "+typeOf(events[0]), trace.WithSpanKind(trace.SpanKindProducer))
	defer func() { telemetry.End(span, err) }()
	rows := make([]newRow, len(events))
	for i, e := range events {
		if rows[i], err = o.prepare(ctx, e); err != nil {
			return kind.Of(fmt.Errorf("outbox: event %d of %d (%s): %w", i+1, len(events), typeOf(e), err), ErrInvalidEvent)
		}
	}
	span.SetAttributes(telemetry.String(telemetry.EventID, rows[0].eventID), telemetry.String(telemetry.EventType, rows[0].eventType),
		telemetry.String(telemetry.AggregateType, rows[0].aggregateType), telemetry.String(telemetry.AggregateID, rows[0].aggregateID))
	if err := o.checkQuoting(ctx, tx); err != nil {
		return err
	}
	stored, err := o.store(ctx, tx, rows)
	if err != nil {
		return fmt.Errorf("outbox: save %s: %w", typeOf(events[0]), err)
	}
	if len(stored) > 0 {
		o.hook.saved(ctx, stored)
	}
	o.countSaved(ctx, rows, len(stored))
	return nil
}

// store inserts the rows, but not those of keyed events that have been saved, and returns what it inserted.
func (o *Outbox) store(ctx context.Context, tx bun.Tx, rows []newRow) ([]newRow, error) {
	var ids []string
	for _, r := range rows {
		if r.keyed {
			ids = append(ids, r.eventID)
		}
	}
	if len(ids) > 0 {
		absent, err := o.keys.Claim(ctx, tx, ids)
		if err != nil {
			return nil, err
		}
		rows = slices.DeleteFunc(slices.Clone(rows), func(r newRow) bool {
			repeated := r.keyed && !absent[r.eventID]
			if r.keyed {
				absent[r.eventID] = false // a second one of the same call is a repetition too
			}
			return repeated
		})
	}
	if len(rows) == 0 {
		return nil, nil
	}
	err := o.insertAll(ctx, tx, rows)
	if len(ids) == 0 || dialect.Classify(err) != dialect.Duplicate {
		return rows, err
	}
	// MySQL: an instance of a release that did not know bc_event_key has saved one of them meanwhile.
	var stored []newRow
	for _, r := range rows {
		switch err := o.insertAll(ctx, tx, []newRow{r}); {
		case err == nil:
			stored = append(stored, r)
		case !r.keyed || dialect.Classify(err) != dialect.Duplicate:
			return nil, err
		}
	}
	return stored, nil
}

// insertAll inserts the rows by one statement.
func (o *Outbox) insertAll(ctx context.Context, tx bun.Tx, rows []newRow) error {
	query, args := o.insert(rows)
	exec := tx.ExecContext
	if len(rows) == 1 { // the text of more is a different one for each number
		exec = o.stmts.On(tx).ExecContext
	}
	_, err := exec(ctx, query, args...)
	return err
}

// newRow is an event ready to be inserted.
type newRow struct {
	configured
	aggregateType, aggregateID string
	eventType, eventID         string
	payload, metadata          string
	traceID                    string // "" for none
	key                        string // "" for none
	version                    int
	keyed                      bool
}

// prepare validates an event and encodes it.
func (o *Outbox) prepare(ctx context.Context, e bus.Event) (newRow, error) {
	if isNil(e) {
		return newRow{}, errors.New("the event is nil")
	}
	c, ok := e.(configured)
	if !ok {
		c = configured{Event: e}
	}
	if isNil(c.Event) {
		return newRow{}, errors.New("the event is nil")
	}
	if err := c.inherit(ctx); err != nil {
		return newRow{}, err
	}
	r := newRow{configured: c, eventType: c.Event.EventType(), version: bus.VersionOf(c.Event)}
	r.aggregateType, r.aggregateID = c.Event.Aggregate()
	key := ""
	if k, ok := c.Event.(bus.Keyed); ok {
		key = k.IdempotencyKey()
	}
	err := errors.Join(
		text.EventType("event type", r.eventType),
		text.AggregateType("aggregate type", r.aggregateType),
		text.Key("aggregate id", r.aggregateID, 128),
		checkTenant(c),
		o.encode(ctx, &r),
	)
	if key != "" {
		r.keyed, r.key = true, key
		err = errors.Join(err, text.Key("idempotency key", key, 255))
		r.eventID = EventID(c.tenantID, r.eventType, key)
	} else {
		id, idErr := uuid.NewV7()
		r.eventID, err = id.String(), errors.Join(err, idErr)
	}
	return r, err
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
func (o *Outbox) encode(ctx context.Context, r *newRow) error {
	payload, err := json.Marshal(r.configured.Event)
	if err != nil {
		return fmt.Errorf("payload cannot be encoded: %w", err)
	}
	if err := text.CheckFields(reflect.TypeOf(r.configured.Event)); err != nil {
		return err
	}
	if len(payload) > o.cfg.MaxPayload {
		return fmt.Errorf("payload has %d bytes, the limit is %d: save a reference instead", len(payload), o.cfg.MaxPayload)
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
	maps.Copy(md, r.meta)
	md[metaInstance] = o.cfg.Instance
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
	r.payload, r.metadata = string(payload), string(metadata)
	if id := md[bus.MetaTraceID]; len(id) <= maxTraceID {
		r.traceID = id
	}
	return nil
}

// insert builds one INSERT of all rows. What is as the columns' defaults say is left to them:
// half the statement, which is what saving costs.
func (o *Outbox) insert(rows []newRow) (string, []any) {
	plain := !slices.ContainsFunc(rows, func(r newRow) bool { return !o.isPlain(r) })
	traced := slices.ContainsFunc(rows, func(r newRow) bool { return r.traceID != "" })
	keyed := slices.ContainsFunc(rows, func(r newRow) bool { return r.keyed })
	var b strings.Builder
	b.WriteString("INSERT INTO " + table + " (" + plainColumns)
	if !plain {
		b.WriteString(otherColumns)
	}
	if traced {
		b.WriteString(", trace_id")
	}
	if keyed {
		b.WriteString(", event_key")
	}
	b.WriteString(") VALUES ")
	args := make([]any, 0, len(rows)*14)
	for i, r := range rows {
		if i > 0 {
			b.WriteString(", ")
		}
		status, due := StatusNew, o.d.Now
		args = append(args, r.aggregateType, r.aggregateID, r.eventType, r.eventID, r.payload, r.metadata)
		if !r.deliverAt.IsZero() {
			status, due = StatusScheduled, o.d.At
			args = append(args, r.deliverAt.UnixMicro())
		}
		b.WriteString("(?, ?, ?, ?, ?, ?, " + due)
		if !plain {
			b.WriteString(", ?, ?, ?, ?, ?")
			args = append(args, orNull(r.tenantID), orNull(r.storeID), r.version, string(status), o.cfg.MaxRetryCount)
		}
		if traced {
			b.WriteString(", ?")
			args = append(args, orNullText(r.traceID))
		}
		if keyed {
			b.WriteString(", ?")
			args = append(args, orNullText(r.key))
		}
		b.WriteByte(')')
	}
	if keyed && o.d.Name != "mysql" { // there a duplicate is an error: the clause would lock the row that exists
		b.WriteString(o.d.Ignore("event_id"))
	}
	return b.String(), args
}

// isPlain reports whether a row needs none of the other columns.
func (o *Outbox) isPlain(r newRow) bool {
	return r.tenantID == 0 && r.storeID == 0 && r.version == 1 && r.deliverAt.IsZero() && o.cfg.MaxRetryCount == defaultMaxRetryCount
}

func (o *Outbox) countSaved(ctx context.Context, rows []newRow, stored int) {
	telemetry.Add(ctx, o.metrics.Created, int64(stored), telemetry.EventType, rows[0].eventType)
	telemetry.Add(ctx, o.metrics.Repeated, int64(len(rows)-stored), telemetry.EventType, rows[0].eventType)
	for _, r := range rows {
		o.logger.DebugContext(ctx, "event saved", telemetry.EventID, r.eventID, telemetry.EventType, r.eventType,
			telemetry.AggregateType, r.aggregateType, telemetry.AggregateID, r.aggregateID,
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

func orNullText(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func orNull(n int64) any {
	if n == 0 {
		return nil
	}
	return n
}

// EventID is the event_id under which a keyed event of the tenant (0 for none) is or
// would be saved.
func EventID(tenantID int64, eventType, idempotencyKey string) string {
	return uuid.NewSHA1(namespace, fmt.Appendf(nil, "%s|%d|%s|%s", keyedNamespace, tenantID, eventType, idempotencyKey)).String()
}
