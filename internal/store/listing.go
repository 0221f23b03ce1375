package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// EventFilter selects events.
type EventFilter struct {
	EventID       string // by uk_event_id
	AggregateType string // together with AggregateID, by idx_aggregate
	AggregateID   string
	EventType     string // narrows one of the others
	Status        string // by idx_status_next_retry, but for SENT
	After         int64  // id after which to go on
	Limit         int
}

// ErrUnindexed means that a filter names nothing that an index serves.
var ErrUnindexed = errors.New("no index serves this")

// where is the condition of the filter, and its arguments.
func (f EventFilter) where() (where string, args []any, indexed bool) {
	where, args = "id > ?", []any{f.After}
	add := func(cond string, ok bool, isIndexed bool, vals ...any) {
		if ok {
			where += " AND " + cond
			args = append(args, vals...)
			indexed = indexed || isIndexed
		}
	}
	add("event_id = ?", f.EventID != "", true, f.EventID)
	add("aggregate_type = ? AND aggregate_id = ?", f.AggregateType != "" && f.AggregateID != "", true, f.AggregateType, f.AggregateID)
	add("status = ?", f.Status != "", true, f.Status)
	add("status <> 'SENT'", f.Status != "" && f.Status != "SENT", true) // PostgreSQL and SQLite have no others in idx_status_next_retry
	add("event_type = ?", f.EventType != "", false, f.EventType)
	return where, args, indexed
}

// EventRow is one row of the outbox, for people.
type EventRow struct {
	ID                         int64
	EventID, EventType         string
	AggregateType, AggregateID string
	TenantID                   int64 // 0 for none
	Status                     string
	Payload, Metadata          string // as JSON; no metadata is ""
	LastError, LockedBy        string
	CreatedAt, SentAt          int64 // in microseconds since the epoch, 0 for never
	NextRetryAt                int64
}

// ListEvents lists events in the order in which they were saved. A filter that no index serves is refused with [ErrUnindexed].
func ListEvents(ctx context.Context, idb bun.IDB, d dialect.Dialect, f EventFilter) ([]EventRow, error) {
	where, args, indexed := f.where()
	if !indexed {
		return nil, ErrUnindexed
	}
	rows, err := idb.QueryContext(ctx, "SELECT id, event_id, event_type, aggregate_type, aggregate_id, COALESCE(tenant_id, 0), status, "+
		d.Text("event_payload")+", COALESCE("+d.Text("event_metadata")+", ''), COALESCE(last_error, ''), COALESCE(locked_by, ''), "+
		d.Micros("created_at")+", COALESCE("+d.Micros("sent_at")+", 0), COALESCE("+d.Micros("next_retry_at")+", 0)"+
		" FROM "+eventTable+" WHERE "+where+" ORDER BY id LIMIT ?", append(args, f.Limit)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []EventRow
	for rows.Next() {
		var r EventRow
		err := rows.Scan(&r.ID, &r.EventID, &r.EventType, &r.AggregateType, &r.AggregateID, (*tenant)(&r.TenantID), &r.Status,
			&r.Payload, &r.Metadata, &r.LastError, &r.LockedBy, &r.CreatedAt, &r.SentAt, &r.NextRetryAt)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, rows.Err()
}

// CountEvents tells how many events are in each state that any is in. It reads the whole of idx_status_next_retry, or the table
// where that index has no SENT events.
func CountEvents(ctx context.Context, idb bun.IDB) (map[string]int64, error) {
	rows, err := idb.QueryContext(ctx, "SELECT status, COUNT(*) FROM "+eventTable+" GROUP BY status")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	counts := make(map[string]int64)
	for rows.Next() {
		var status string
		var n int64
		if err := rows.Scan(&status, &n); err != nil {
			return nil, err
		}
		counts[status] = n
	}
	return counts, rows.Err()
}

// Open tells how many events of an aggregate wait, and how many are DEAD.
type Open struct{ Waiting, Dead int }

// OpenEvents counts the events of an aggregate that are not SENT, by idx_aggregate or idx_open_aggregate: for a consumer, whose
// key is given, by what has become of its own deliveries, or else for anybody. Of a consumer it also counts the past events, SENT
// or not, that an open backfill still has to give to it.
func OpenEvents(ctx context.Context, idb bun.IDB, d dialect.Dialect, a Aggregate, consumer string) (o Open, err error) {
	// One aggregate has few events that are not SENT, and each at most one row of the consumer. An event may be in flight because of
	// other consumers when the consumer's own delivery has ended.
	const unfinished = "(l.status IN ('PENDING', 'FAILED', 'PROCESSING') OR (e.status IN ('NEW', 'SCHEDULED', 'DISPATCHING')" +
		" AND COALESCE(l.status, '') NOT IN ('SUCCESS', 'SKIPPED', 'DEAD')))"
	past := 0
	if consumer != "" {
		if past, err = openPast(ctx, idb, d, a, consumer); err != nil {
			return o, err
		}
	}
	join, args := " LEFT JOIN "+deliveryTable+" l ON l.event_id = e.event_id AND l.consumer_name = ?", []any{consumer}
	wait, buried := unfinished, "l.status = 'DEAD' AND NOT "+unfinished
	if consumer == "" {
		join, args, wait, buried = "", nil, "e.status <> 'DEAD'", "e.status = 'DEAD'"
	}
	err = idb.QueryRowContext(ctx, "SELECT COUNT(CASE WHEN "+wait+" THEN 1 END), COUNT(CASE WHEN "+buried+" THEN 1 END)"+
		" FROM "+eventTable+" e"+join+" WHERE e.aggregate_type = ? AND e.aggregate_id = ?"+
		" AND COALESCE(e.tenant_id, 0) = ? AND e.status <> 'SENT'",
		append(args, a.Type, a.ID, a.Tenant)...).Scan(&o.Waiting, &o.Dead)
	o.Waiting += past
	return o, err
}

// Known tells which of the events exist in the outbox or in its archive, by uk_event_id, or, if that is asked for, as finished
// deliveries in the consume log or in its archive, by uk_event_consumer.
func Known(ctx context.Context, idb bun.IDB, eventIDs []string, orDelivered bool) (map[string]bool, error) {
	looks := []string{eventTable + " WHERE event_id IN (?)", eventTable + "_archive WHERE event_id IN (?)"}
	if orDelivered {
		const finished = " WHERE event_id IN (?) GROUP BY event_id" +
			" HAVING MIN(CASE WHEN status IN ('SUCCESS', 'SKIPPED') THEN 1 ELSE 0 END) = 1"
		looks = append(looks, deliveryTable+finished, deliveryTable+"_archive"+finished)
	}
	known := make(map[string]bool, len(eventIDs))
	for _, from := range looks {
		found, err := readTexts(idb.QueryContext(ctx, "SELECT event_id FROM "+from, bun.List(eventIDs)))
		if err != nil {
			return nil, fmt.Errorf("look for events: %w", err)
		}
		for _, id := range found {
			known[id] = true
		}
	}
	return known, nil
}

// EventBacklog is how much the engine has before it.
type EventBacklog struct {
	Pending int64         // events that are NEW, SCHEDULED, DISPATCHING or FAILED
	Dead    int64         // events that wait for an operator
	Oldest  time.Duration // for how long the oldest event has been due that is not SENT, as [DueSince] tells
}

// DueSince is since when an event e that is not SENT has been due, in microseconds: since it was saved, or fell due if its producer has
// delayed it. When that was is known no more after its claim: then the claim counts, and after it the first of its deliveries that waits,
// by uk_event_consumer.
func DueSince(d dialect.Dialect, e string) string {
	return "CASE WHEN " + e + ".status = 'SCHEDULED' AND " + e + ".last_error IS NULL THEN " + d.Micros(e+".next_retry_at") +
		" WHEN " + e + ".status = 'DISPATCHING' AND " + e + ".retry_count = 0 THEN " + d.Micros(e+".updated_at") +
		" WHEN " + e + ".status = 'FAILED' THEN COALESCE((SELECT MIN(" + d.Micros("w.created_at") + ") FROM " + deliveryTable +
		" w WHERE w.event_id = " + e + ".event_id AND w.status IN ('PENDING', 'FAILED', 'PROCESSING')), " + d.Micros(e+".created_at") + ")" +
		" ELSE " + d.Micros(e+".created_at") + " END"
}

// oldestFailed is how many FAILED events are asked for their deliveries, in the order of their ids: only one that was delayed may have
// been due for less long than those behind it.
const oldestFailed = 1000

// MeasureBacklog measures what is pending, by idx_status_next_retry.
func MeasureBacklog(ctx context.Context, idb bun.IDB, d dialect.Dialect) (b EventBacklog, err error) {
	var oldest int64
	first := "SELECT MIN(" + DueSince(d, "e") + ") FROM " + eventTable + " e WHERE e.status <> 'SENT' AND " +
		"(e.status IN ('NEW', 'DISPATCHING') OR (e.status = 'SCHEDULED' AND e.next_retry_at <= " + d.Now + "))"
	failed := "SELECT MIN(" + DueSince(d, "x") + ") FROM (SELECT e.event_id, e.status, e.last_error, e.retry_count, e.next_retry_at, " +
		"e.created_at, e.updated_at FROM " + d.Due(eventTable) + " WHERE e.status = 'FAILED' AND e.status <> 'SENT' ORDER BY " +
		d.MySQLOnly("e.status, ") + "e.next_retry_at, e.id LIMIT " + strconv.Itoa(oldestFailed) + ") x"
	err = idb.QueryRowContext(ctx, "SELECT "+
		"(SELECT COUNT(*) FROM "+eventTable+" WHERE status <> 'SENT' AND status IN ('NEW', 'SCHEDULED', 'DISPATCHING', 'FAILED')), "+
		"(SELECT COUNT(*) FROM "+eventTable+" WHERE status <> 'SENT' AND status = 'DEAD'), "+
		"COALESCE((SELECT "+d.Micros(d.Now)+" - MIN(o.since) FROM (SELECT ("+first+") AS since UNION ALL SELECT ("+failed+")) o), 0)").
		Scan(&b.Pending, &b.Dead, &oldest)
	if err != nil {
		return EventBacklog{}, err
	}
	b.Oldest = max(time.Duration(oldest)*time.Microsecond, 0)
	return b, nil
}
