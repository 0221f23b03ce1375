package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/uptrace/bun"
)

// Record is one row of the outbox, for people.
type Record struct {
	OutboxID      int64           `json:"outboxId,string"`
	EventID       string          `json:"eventId"`
	EventType     string          `json:"eventType"`
	AggregateType string          `json:"aggregateType"`
	AggregateID   string          `json:"aggregateId"`
	TenantID      int64           `json:"tenantId,omitempty"`
	Status        Status          `json:"status"`
	Payload       json.RawMessage `json:"payload"`
	Metadata      string          `json:"metadata"` // JSON text
	LastError     string          `json:"lastError,omitempty"`
	LockedBy      string          `json:"lockedBy,omitempty"`
	CreatedAt     time.Time       `json:"createdAt"`
	SentAt        time.Time       `json:"sentAt,omitzero"`
	NextRetryAt   time.Time       `json:"nextRetryAt,omitzero"`
}

// Filter selects events. At least one of EventID, the aggregate and Status must be set:
// each of them is served by an index.
type Filter struct {
	EventID       string
	AggregateType string // together with AggregateID
	AggregateID   string
	EventType     string // narrows one of the others
	Status        Status
	After         int64 // outbox id after which to go on, for the next page
	Limit         int   // Default: 100, at most 1000.
}

// Events lists events in the order they were saved.
func (o *Outbox) Events(ctx context.Context, f Filter) ([]Record, error) {
	where, args := "id > ?", []any{f.After}
	indexed := false
	add := func(cond string, ok bool, isIndexed bool, vals ...any) {
		if ok {
			where += " AND " + cond
			args = append(args, vals...)
			indexed = indexed || isIndexed
		}
	}
	add("event_id = ?", f.EventID != "", true, f.EventID)
	add("aggregate_type = ? AND aggregate_id = ?", f.AggregateType != "" && f.AggregateID != "", true, f.AggregateType, f.AggregateID)
	add("status = ?", f.Status != "", true, string(f.Status))
	add("status <> 'SENT'", f.Status != "" && f.Status != StatusSent, true) // as in inDueIndex
	add("event_type = ?", f.EventType != "", false, f.EventType)
	if !indexed {
		return nil, fmt.Errorf("outbox: list events: set EventID, AggregateType with AggregateID, or Status: anything else would read the whole table")
	}
	limit := min(max(f.Limit, 0), 1000)
	if limit == 0 {
		limit = 100
	}
	query := "SELECT id, event_id, event_type, aggregate_type, aggregate_id, COALESCE(tenant_id, 0), status, " + o.d.Text("event_payload") + ", COALESCE(" + o.d.Text("event_metadata") + ", ''), COALESCE(last_error, ''), COALESCE(locked_by, ''), " +
		o.d.Micros("created_at") + ", COALESCE(" + o.d.Micros("sent_at") + ", 0), COALESCE(" + o.d.Micros("next_retry_at") + ", 0) FROM " + table + " WHERE " + where + " ORDER BY id LIMIT ?"
	rows, err := o.db.QueryContext(ctx, query, append(args, limit)...)
	if err != nil {
		return nil, fmt.Errorf("outbox: list events: %w", err)
	}
	defer rows.Close()
	var out []Record
	for rows.Next() {
		var r Record
		var payload string
		var created, sent, next int64
		if err := rows.Scan(&r.OutboxID, &r.EventID, &r.EventType, &r.AggregateType, &r.AggregateID, &r.TenantID, &r.Status, &payload, &r.Metadata, &r.LastError, &r.LockedBy, &created, &sent, &next); err != nil {
			return nil, fmt.Errorf("outbox: list events: %w", err)
		}
		r.Payload, r.CreatedAt, r.SentAt, r.NextRetryAt = json.RawMessage(payload), instant(created), instant(sent), instant(next)
		out = append(out, r)
	}
	return out, rows.Err()
}

func instant(micros int64) time.Time {
	if micros == 0 {
		return time.Time{}
	}
	return time.UnixMicro(micros).UTC()
}

// Counts tells how many events are in each state.
func (o *Outbox) Counts(ctx context.Context) (map[Status]int64, error) {
	rows, err := o.db.QueryContext(ctx, "SELECT status, COUNT(*) FROM "+table+" GROUP BY status")
	if err != nil {
		return nil, fmt.Errorf("outbox: count events: %w", err)
	}
	defer rows.Close()
	counts := map[Status]int64{StatusNew: 0, StatusScheduled: 0, StatusDispatching: 0, StatusSent: 0, StatusFailed: 0, StatusDead: 0}
	for rows.Next() {
		var st string
		var n int64
		if err := rows.Scan(&st, &n); err != nil {
			return nil, fmt.Errorf("outbox: count events: %w", err)
		}
		counts[Status(st)] = n
	}
	return counts, rows.Err()
}

// OpenEvents tells how many events of the aggregate (tenant 0 for none) are unfinished for a consumer, whose durable key is
// given, and how many deliveries of them to it are DEAD. An event is unfinished for everybody until it is fanned out; then
// for the consumer until its own delivery has ended. Without a consumer it counts the events that are unfinished for
// anybody. The reaper asks it before it releases a lock.
func (o *Outbox) OpenEvents(ctx context.Context, idb bun.IDB, tenantID int64, aggregateType, aggregateID, consumer string) (waiting, dead int, err error) {
	// One aggregate has few events that are not SENT, and each at most one row of the consumer.
	const unfinished = "(e.status IN ('NEW', 'SCHEDULED', 'DISPATCHING') OR l.status IN ('PENDING', 'FAILED', 'PROCESSING'))"
	join, args := " LEFT JOIN bc_event_consume_log l ON l.event_id = e.event_id AND l.consumer_name = ?", []any{consumer}
	wait, buried := unfinished, "l.status = 'DEAD' AND NOT "+unfinished
	if consumer == "" {
		join, args, wait, buried = "", nil, "e.status <> 'DEAD'", "e.status = 'DEAD'"
	}
	err = idb.QueryRowContext(ctx, "SELECT COUNT(CASE WHEN "+wait+" THEN 1 END), COUNT(CASE WHEN "+buried+" THEN 1 END) FROM "+table+" e"+join+
		" WHERE e.aggregate_type = ? AND e.aggregate_id = ? AND COALESCE(e.tenant_id, 0) = ? AND e.status <> 'SENT'",
		append(args, aggregateType, aggregateID, tenantID)...).Scan(&waiting, &dead)
	if err != nil {
		return 0, 0, fmt.Errorf("outbox: open events of %s %s: %w", aggregateType, aggregateID, err)
	}
	return waiting, dead, nil
}

// Missing returns those of the event ids that exist neither in the outbox nor in its archive, nor,
// with Config.DeleteSent, as finished deliveries in the consume log or its archive.
func (o *Outbox) Missing(ctx context.Context, idb bun.IDB, eventIDs []string) ([]string, error) {
	if len(eventIDs) == 0 {
		return nil, nil
	}
	there := make(map[string]bool, len(eventIDs))
	looks := []string{table + " WHERE event_id IN (?)", table + "_archive WHERE event_id IN (?)"}
	if o.cfg.DeleteSent {
		const finished = " WHERE event_id IN (?) GROUP BY event_id HAVING MIN(CASE WHEN status IN ('SUCCESS', 'SKIPPED') THEN 1 ELSE 0 END) = 1"
		looks = append(looks, "bc_event_consume_log"+finished, "bc_event_consume_log_archive"+finished)
	}
	for _, from := range looks {
		found, err := o.strings(ctx, idb, "SELECT event_id FROM "+from, bun.List(eventIDs))
		if err != nil {
			return nil, fmt.Errorf("outbox: look for events: %w", err)
		}
		for _, id := range found {
			there[id] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(eventIDs), func(id string) bool { return there[id] }), nil
}

// Backlog is how much the engine has before it.
type Backlog struct {
	Pending int64         // events that are NEW, SCHEDULED, DISPATCHING or FAILED
	Dead    int64         // events that wait for an operator
	Oldest  time.Duration // age of the oldest event that is due and not SENT
}

// Backlog measures what is pending, by index.
func (o *Outbox) Backlog(ctx context.Context) (Backlog, error) {
	var b Backlog
	var oldest int64
	open := "status <> 'SENT' AND (status IN ('NEW', 'DISPATCHING', 'FAILED') OR (status = 'SCHEDULED' AND next_retry_at <= " + o.d.Now + "))"
	err := o.db.QueryRowContext(ctx, "SELECT (SELECT COUNT(*) FROM "+table+" WHERE status <> 'SENT' AND status IN ('NEW', 'SCHEDULED', 'DISPATCHING', 'FAILED')), (SELECT COUNT(*) FROM "+table+" WHERE status <> 'SENT' AND status = 'DEAD'), "+
		"COALESCE((SELECT MAX("+o.d.Micros(o.d.Now)+" - "+o.d.Micros("created_at")+") FROM "+table+" WHERE "+open+"), 0)").Scan(&b.Pending, &b.Dead, &oldest)
	if err != nil {
		return Backlog{}, fmt.Errorf("outbox: measure the backlog: %w", err)
	}
	b.Oldest = max(time.Duration(oldest)*time.Microsecond, 0)
	return b, nil
}
