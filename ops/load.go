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

// eventColumns are those of the row e that make an [Event]: all but the payload, and so much of its texts.
func (o *Ops) eventColumns(most int) string {
	return "e.id, " + o.name("e.event_id") + ", " + o.name("e.event_type") + ", e.schema_version, " + o.name("e.aggregate_type") + ", " + o.name("e.aggregate_id") +
		", COALESCE(e.tenant_id, 0), COALESCE(e.store_id, 0), " + o.name("e.status") + ", COALESCE(" + o.name("e.trace_id") + ", ''), COALESCE(" + o.name("e.event_key") + ", ''), " +
		"COALESCE(" + cut(o.d.Text("e.event_metadata"), metadataText) + ", ''), COALESCE(" + cut("e.last_error", most) + ", ''), COALESCE(" + o.name("e.locked_by") + ", ''), e.retry_count, " +
		o.d.Micros("e.created_at") + ", " + o.d.Micros("e.updated_at") + ", COALESCE(" + o.d.Micros("e.sent_at") + ", 0), COALESCE(" + o.d.Micros("e.next_retry_at") + ", 0)"
}

func (o *Ops) scanEvent(rows *sql.Rows, most int) (Event, error) {
	e := Event{Deliveries: []Delivery{}}
	var metadata string
	var created, updated, sent, next int64
	err := rows.Scan(&e.OutboxID, &e.EventID, &e.EventType, &e.SchemaVersion, &e.AggregateType, &e.AggregateID, &e.TenantID, &e.StoreID, &e.Status, &e.TraceID, &e.IdempotencyKey,
		&metadata, &e.LastError, &e.LockedBy, &e.Expired, &created, &updated, &sent, &next)
	e.LastError = shown(e.LastError, most)
	e.CreatedAt, e.UpdatedAt, e.SentAt, e.NextRetryAt = instant(created), instant(updated), instant(sent), instant(next)
	if e.Status == outbox.StatusNew {
		e.NextRetryAt = time.Time{} // of no meaning
	}
	e.IdempotencyKey = o.redactor.entry(e.EventType, "idempotencyKey", e.IdempotencyKey)
	if md, mdErr := eventrow.Metadata([]byte(metadata)); mdErr == nil {
		entry := func(name string) string { return shown(o.redactor.entry(e.EventType, name, md[name]), most) }
		e.RequestID, e.UserID, e.Source, e.Instance = entry(bus.MetaRequestID), entry(bus.MetaUserID), entry("source"), entry("instance")
		if e.TraceID == "" {
			e.TraceID = shown(md[bus.MetaTraceID], nameText)
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
func (o *Ops) eventsByID(ctx context.Context, eventIDs []string, most int) ([]Event, error) {
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
			e, err := o.scanEvent(rows, most)
			e.Archived = from == archiveTable
			found[e.EventID] = true
			out = append(out, e)
			return err
		}, "SELECT "+o.eventColumns(most)+" FROM "+from+" e WHERE e.event_id IN (?)", bun.List(missing))
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
		e, err := o.scanEvent(rows, listText)
		e.Archived = table == archiveTable
		out = append(out, e)
		return err
	}, "SELECT "+o.eventColumns(listText)+" FROM "+o.d.Keyed(table)+" WHERE "+dialect.IDs(pairs))
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

func (o *Ops) logColumns(most int) string {
	return o.name("l.consumer_name") + ", " + o.name("l.event_id") + ", " + o.name("l.event_type") + ", " + o.name("l.status") + ", l.attempts, COALESCE(" + cut("l.error_message", most) + ", ''), COALESCE(" +
		o.name("l.idempotency_key") + ", ''), COALESCE(" + cut(o.d.Text("l.consume_result"), most) + ", ''), COALESCE(" + o.name("l.locked_by") + ", ''), " +
		o.d.Micros("l.created_at") + ", " + o.d.Micros("l.consumed_at") + ", " + o.d.Micros("l.updated_at") + ", COALESCE(" + o.d.Micros("l.next_retry_at") + ", 0), " +
		"COALESCE(l.outbox_id, 0), COALESCE(l.tenant_id, 0), COALESCE(" + o.name("l.aggregate_type") + ", ''), COALESCE(" + o.name("l.aggregate_id") + ", '')"
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

// deliveries reads the deliveries of events, from the log and its archive, with so much of their texts. There may be more
// of them than may be read.
func (o *Ops) deliveries(ctx context.Context, eventIDs []string, most int) (out map[string][]logRow, more bool, err error) {
	out = make(map[string][]logRow)
	if len(eventIDs) == 0 {
		return out, false, nil
	}
	left, caller := budget(readBudget), CallerOf(ctx)
	for _, from := range []string{logTable, logTable + "_archive"} {
		missing := slices.DeleteFunc(slices.Clone(eventIDs), func(id string) bool { return len(out[id]) > 0 })
		if len(missing) == 0 || more {
			break
		}
		err := o.rows(ctx, func(rows *sql.Rows) error {
			r, err := scanLog(rows)
			if err != nil {
				return err
			}
			if err := left.take(r.eventID, r.Error, r.Result, r.IdempotencyKey); err != nil {
				more = true
				return err
			}
			r.Error = shown(r.Error, most)
			if caller.Sees(r.tenantID) {
				out[r.eventID] = append(out[r.eventID], r)
			}
			return nil
		}, "SELECT "+o.logColumns(most)+" FROM "+from+" l WHERE l.event_id IN (?)", bun.List(missing))
		if err != nil {
			return nil, false, fmt.Errorf("ops: read deliveries: %w", err)
		}
	}
	return out, more, nil
}

// complete adds to events their deliveries: those of the log, and those that the registry expects.
func (o *Ops) complete(ctx context.Context, events []Event) error {
	k, err := o.registry(ctx)
	if err != nil {
		return err
	}
	return o.completeWith(ctx, k, events, listText)
}

func (o *Ops) completeWith(ctx context.Context, k known, events []Event, most int) error {
	ids := make([]string, len(events))
	for i, e := range events {
		ids[i] = e.EventID
	}
	log, more, err := o.deliveries(ctx, ids, most)
	if err != nil {
		return err
	}
	for i := range events {
		e := &events[i]
		e.Truncated = more
		e.Deliveries = []Delivery{} // events may be shared
		for _, r := range log[e.EventID] {
			d := r.Delivery
			d.Registered = k.has(d.Consumer)
			d.Result, _ = o.redactor.result(e.EventType, d.Result) // what was cut is no JSON
			d.Result = shown(d.Result, most)
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
	log, _, err := o.deliveries(ctx, eventIDs, listText)
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
	left, more := budget(readBudget), false
	err := o.rows(ctx, func(rows *sql.Rows) error {
		var k key
		var a Attempt
		var us, at int64
		if err := rows.Scan(&k.event, &k.consumer, &a.Attempt, &a.Outcome, &a.Error, &a.Instance, &us, &at); err != nil {
			return err
		}
		if err := left.take(a.Error, k.event); err != nil {
			more = true
			return err
		}
		a.Error = shown(a.Error, pageText)
		a.Duration, a.At = time.Duration(us)*time.Microsecond, instant(at)
		found[k] = append(found[k], a)
		return nil
	}, "SELECT "+o.name("event_id")+", "+o.name("consumer_name")+", attempt, "+o.name("outcome")+", COALESCE("+cut("error_message", pageText)+", ''), "+o.name("instance")+", duration_us, "+o.d.Micros("created_at")+
		" FROM bc_delivery_attempt WHERE event_id IN (?) ORDER BY event_id, id LIMIT 5000", bun.List(ids))
	if err != nil {
		return fmt.Errorf("ops: read attempts: %w", err)
	}
	for i := range events {
		events[i].Truncated = events[i].Truncated || more
		for j := range events[i].Deliveries {
			d := &events[i].Deliveries[j]
			d.History = found[key{events[i].EventID, d.Consumer}]
		}
	}
	return nil
}
