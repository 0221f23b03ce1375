package ops

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/outbox"
)

const (
	eventTable   = "bc_outbox_event"
	logTable     = "bc_event_consume_log"
	archiveTable = eventTable + "_archive"
)

// eventColumns are those of the row e that make an [Event]: all but the payload.
func (o *Ops) eventColumns() string {
	return "e.id, e.event_id, e.event_type, e.schema_version, e.aggregate_type, e.aggregate_id, COALESCE(e.tenant_id, 0), COALESCE(e.store_id, 0), e.status, COALESCE(e.trace_id, ''), COALESCE(e.event_key, ''), " +
		"COALESCE(" + o.d.Text("e.event_metadata") + ", ''), COALESCE(e.last_error, ''), COALESCE(e.locked_by, ''), e.retry_count, " +
		o.d.Micros("e.created_at") + ", " + o.d.Micros("e.updated_at") + ", COALESCE(" + o.d.Micros("e.sent_at") + ", 0), COALESCE(" + o.d.Micros("e.next_retry_at") + ", 0)"
}

func (o *Ops) scanEvent(rows *sql.Rows) (Event, error) {
	e := Event{Deliveries: []Delivery{}}
	var metadata string
	var created, updated, sent, next int64
	err := rows.Scan(&e.OutboxID, &e.EventID, &e.EventType, &e.SchemaVersion, &e.AggregateType, &e.AggregateID, &e.TenantID, &e.StoreID, &e.Status, &e.TraceID, &e.IdempotencyKey,
		&metadata, &e.LastError, &e.LockedBy, &e.Expired, &created, &updated, &sent, &next)
	e.CreatedAt, e.UpdatedAt, e.SentAt, e.NextRetryAt = instant(created), instant(updated), instant(sent), instant(next)
	if e.Status == outbox.StatusNew {
		e.NextRetryAt = time.Time{} // of no meaning
	}
	e.IdempotencyKey = o.redactor.entry(e.EventType, "idempotencyKey", e.IdempotencyKey)
	if md, mdErr := eventrow.Metadata([]byte(metadata)); mdErr == nil {
		shown := func(name string) string { return o.redactor.entry(e.EventType, name, md[name]) }
		e.RequestID, e.UserID, e.Source, e.Instance = shown(bus.MetaRequestID), shown(bus.MetaUserID), shown("source"), shown("instance")
		if e.TraceID == "" {
			e.TraceID = md[bus.MetaTraceID]
		}
	}
	e.TraceURL = o.traceURL(e.TraceID)
	return e, err
}

func (o *Ops) traceURL(id string) string {
	if id == "" || o.cfg.TraceURL == nil {
		return ""
	}
	return o.cfg.TraceURL(id)
}

// eventsByID loads events by event id: from the outbox, its archive, or what the consume log still
// knows of them. The order is that of their outbox ids.
func (o *Ops) eventsByID(ctx context.Context, eventIDs []string) ([]Event, error) {
	if len(eventIDs) == 0 {
		return nil, nil
	}
	found := make(map[string]bool, len(eventIDs))
	var out []Event
	for _, from := range []string{eventTable, archiveTable} {
		missing := slices.DeleteFunc(slices.Clone(eventIDs), func(id string) bool { return found[id] })
		if len(missing) == 0 {
			break
		}
		err := o.rows(ctx, func(rows *sql.Rows) error {
			e, err := o.scanEvent(rows)
			e.Archived = from == archiveTable
			found[e.EventID] = true
			out = append(out, e)
			return err
		}, "SELECT "+o.eventColumns()+" FROM "+from+" e WHERE e.event_id IN (?)", bun.List(missing))
		if err != nil {
			return nil, fmt.Errorf("ops: read events: %w", err)
		}
	}
	slices.SortFunc(out, func(a, b Event) int { return int(a.OutboxID - b.OutboxID) })
	return out, nil
}

// eventsByRow loads events by primary key, in the given order.
func (o *Ops) eventsByRow(ctx context.Context, table string, ids []int64) ([]Event, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	pairs := make([]dialect.Pair, len(ids))
	place := make(map[int64]int, len(ids))
	for i, id := range ids {
		pairs[i].ID, place[id] = id, i
	}
	var out []Event
	err := o.rows(ctx, func(rows *sql.Rows) error {
		e, err := o.scanEvent(rows)
		e.Archived = table == archiveTable
		out = append(out, e)
		return err
	}, "SELECT "+o.eventColumns()+" FROM "+o.d.Keyed(table)+" WHERE "+dialect.IDs(pairs))
	if err != nil {
		return nil, fmt.Errorf("ops: read events: %w", err)
	}
	slices.SortFunc(out, func(a, b Event) int { return place[a.OutboxID] - place[b.OutboxID] })
	return out, nil
}

// logRow is a row of the consume log, with the event it belongs to.
type logRow struct {
	Delivery
	eventID, eventType         string
	outboxID, tenantID         int64
	aggregateType, aggregateID string
}

func (o *Ops) logColumns() string {
	return "l.consumer_name, l.event_id, l.event_type, l.status, l.attempts, COALESCE(l.error_message, ''), COALESCE(l.idempotency_key, ''), COALESCE(" + o.d.Text("l.consume_result") + ", ''), COALESCE(l.locked_by, ''), " +
		o.d.Micros("l.created_at") + ", " + o.d.Micros("l.consumed_at") + ", " + o.d.Micros("l.updated_at") + ", COALESCE(" + o.d.Micros("l.next_retry_at") + ", 0), " +
		"COALESCE(l.outbox_id, 0), COALESCE(l.tenant_id, 0), COALESCE(l.aggregate_type, ''), COALESCE(l.aggregate_id, '')"
}

func scanLog(rows *sql.Rows) (logRow, error) {
	var r logRow
	var created, consumed, updated, next int64
	err := rows.Scan(&r.Consumer, &r.eventID, &r.eventType, &r.Status, &r.Attempts, &r.Error, &r.IdempotencyKey, &r.Result, &r.LockedBy,
		&created, &consumed, &updated, &next, &r.outboxID, &r.tenantID, &r.aggregateType, &r.aggregateID)
	r.CreatedAt, r.UpdatedAt, r.NextRetryAt = instant(created), instant(updated), instant(next)
	if r.Left = next == dialect.NeverMicro; r.Left {
		r.NextRetryAt = time.Time{}
	}
	if r.Status == consumelog.Success {
		r.ConsumedAt = instant(consumed)
	}
	r.Replay = consumelog.IsReplay(r.Consumer)
	return r, err
}

// deliveries reads the deliveries of events, from the log and its archive.
func (o *Ops) deliveries(ctx context.Context, eventIDs []string) (map[string][]logRow, error) {
	out := make(map[string][]logRow)
	if len(eventIDs) == 0 {
		return out, nil
	}
	for _, from := range []string{logTable, logTable + "_archive"} {
		missing := slices.DeleteFunc(slices.Clone(eventIDs), func(id string) bool { return len(out[id]) > 0 })
		if len(missing) == 0 {
			break
		}
		err := o.rows(ctx, func(rows *sql.Rows) error {
			r, err := scanLog(rows)
			out[r.eventID] = append(out[r.eventID], r)
			return err
		}, "SELECT "+o.logColumns()+" FROM "+from+" l WHERE l.event_id IN (?)", bun.List(missing))
		if err != nil {
			return nil, fmt.Errorf("ops: read deliveries: %w", err)
		}
	}
	return out, nil
}

// complete adds to events their deliveries: those of the log, and those that the registry expects.
func (o *Ops) complete(ctx context.Context, events []Event) error {
	k, err := o.registry(ctx)
	if err != nil {
		return err
	}
	return o.completeWith(ctx, k, events)
}

func (o *Ops) completeWith(ctx context.Context, k known, events []Event) error {
	ids := make([]string, len(events))
	for i, e := range events {
		ids[i] = e.EventID
	}
	log, err := o.deliveries(ctx, ids)
	if err != nil {
		return err
	}
	for i := range events {
		e := &events[i]
		e.Deliveries = []Delivery{} // events may be shared
		for _, r := range log[e.EventID] {
			d := r.Delivery
			d.Registered = k.has(d.Consumer)
			d.Result, _ = o.redactor.result(e.EventType, d.Result)
			e.Deliveries = append(e.Deliveries, d)
		}
		if e.Status != outbox.StatusSent {
			e.Deliveries = append(e.Deliveries, k.expected(*e)...)
		}
		slices.SortStableFunc(e.Deliveries, func(a, b Delivery) int { return strings.Compare(a.Consumer, b.Consumer) })
	}
	return nil
}

// remember makes events of those ids that have left no row but their deliveries.
func (o *Ops) remember(ctx context.Context, eventIDs []string) ([]Event, error) {
	log, err := o.deliveries(ctx, eventIDs)
	if err != nil {
		return nil, err
	}
	var out []Event
	for _, id := range eventIDs {
		if len(log[id]) == 0 {
			continue
		}
		r := log[id][0]
		e := Event{
			OutboxID: r.outboxID, EventID: id, EventType: r.eventType, SchemaVersion: 1, AggregateType: r.aggregateType, AggregateID: r.aggregateID,
			TenantID: r.tenantID, Status: outbox.StatusSent, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, Deleted: true, Deliveries: []Delivery{},
		}
		out = append(out, e)
	}
	return out, nil
}

// histories adds to events the attempts that did not succeed.
func (o *Ops) histories(ctx context.Context, events []Event) error {
	ids := make([]string, len(events))
	for i, e := range events {
		ids[i] = e.EventID
	}
	if len(ids) == 0 {
		return nil
	}
	type key struct{ event, consumer string }
	found := make(map[key][]Attempt)
	err := o.rows(ctx, func(rows *sql.Rows) error {
		var k key
		var a Attempt
		var us, at int64
		err := rows.Scan(&k.event, &k.consumer, &a.Attempt, &a.Outcome, &a.Error, &a.Instance, &us, &at)
		a.Duration, a.At = time.Duration(us)*time.Microsecond, instant(at)
		found[k] = append(found[k], a)
		return err
	}, "SELECT event_id, consumer_name, attempt, outcome, COALESCE(error_message, ''), instance, duration_us, "+o.d.Micros("created_at")+
		" FROM bc_delivery_attempt WHERE event_id IN (?) ORDER BY event_id, id LIMIT 5000", bun.List(ids))
	if err != nil {
		return fmt.Errorf("ops: read attempts: %w", err)
	}
	for i := range events {
		for j := range events[i].Deliveries {
			d := &events[i].Deliveries[j]
			d.History = found[key{events[i].EventID, d.Consumer}]
		}
	}
	return nil
}
