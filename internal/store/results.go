package store

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// Results answers what has become of deliveries.
type Results struct{ d dialect.Dialect }

// NewResults returns the questions in the words of a database.
func NewResults(d dialect.Dialect) Results { return Results{d} }

// States tells the state of the events' deliveries to the consumers, or to all if there are none: event id → consumer →
// status. Of more than a thousand consumers it may tell of others too. It reads uk_event_consumer.
func (r Results) States(ctx context.Context, idb bun.IDB, eventIDs []string, consumers ...string) (map[string]map[string]Status, error) {
	if len(eventIDs) == 0 {
		return map[string]map[string]Status{}, nil
	}
	and, args := "", []any{bun.List(eventIDs)}
	if len(consumers) > 0 && len(consumers) <= dialect.MostIDs { // of more, all are read
		and, args = " AND consumer_name IN (?)", append(args, bun.List(consumers))
	}
	rows, err := idb.QueryContext(ctx, "SELECT l.event_id, l.consumer_name, l.status FROM "+r.d.Each(deliveryTable, "event_id", and), args...)
	if err != nil {
		return nil, fmt.Errorf("consume log: read states: %w", err)
	}
	defer rows.Close()
	states := make(map[string]map[string]Status, len(eventIDs))
	for rows.Next() {
		var id, consumer, status string
		if err := rows.Scan(&id, &consumer, &status); err != nil {
			return nil, fmt.Errorf("consume log: read states: %w", err)
		}
		if states[id] == nil {
			states[id] = make(map[string]Status)
		}
		states[id][consumer] = Status(status)
	}
	return states, rows.Err()
}

// Summary is what the deliveries of an event amount to.
type Summary struct{ Rows, Waiting, Dead int }

// Summaries sums up the deliveries of the events, however many each has. Those without any are missing. It reads
// uk_event_consumer.
func (r Results) Summaries(ctx context.Context, idb bun.IDB, eventIDs []string) (map[string]Summary, error) {
	rows, err := idb.QueryContext(ctx, "SELECT l.event_id, COUNT(*), "+
		"COUNT(CASE WHEN l.status IN ('PENDING', 'PROCESSING', 'FAILED') THEN 1 END), "+
		"COUNT(CASE WHEN l.status = 'DEAD' THEN 1 END) FROM "+r.d.Each(deliveryTable, "event_id", "")+" GROUP BY l.event_id", bun.List(eventIDs))
	if err != nil {
		return nil, fmt.Errorf("consume log: sum up deliveries: %w", err)
	}
	defer rows.Close()
	found := make(map[string]Summary, len(eventIDs))
	for rows.Next() {
		var id string
		var s Summary
		if err := rows.Scan(&id, &s.Rows, &s.Waiting, &s.Dead); err != nil {
			return nil, fmt.Errorf("consume log: sum up deliveries: %w", err)
		}
		found[id] = s
	}
	return found, rows.Err()
}

// Counts tells how many deliveries are in each state that a delivery has. It reads the whole log.
func (r Results) Counts(ctx context.Context, idb bun.IDB) (map[Status]int64, error) {
	rows, err := idb.QueryContext(ctx, "SELECT status, COUNT(*) FROM "+deliveryTable+" GROUP BY status")
	if err != nil {
		return nil, fmt.Errorf("consume log: count: %w", err)
	}
	defer rows.Close()
	counts := make(map[Status]int64)
	for rows.Next() {
		var s string
		var n int64
		if err := rows.Scan(&s, &n); err != nil {
			return nil, fmt.Errorf("consume log: count: %w", err)
		}
		counts[Status(s)] = n
	}
	return counts, rows.Err()
}

// Backlog measures what a consumer, by its key, has before it. It reads idx_consumer_due.
func (r Results) Backlog(ctx context.Context, idb bun.IDB, consumer string) (b Backlog, err error) {
	var oldest int64
	err = idb.QueryRowContext(ctx, "SELECT COUNT(*), COALESCE(MAX("+r.d.Micros(r.d.Now)+" - "+r.d.Micros("created_at")+"), 0), "+
		"(SELECT COUNT(*) FROM "+deliveryTable+" WHERE consumer_name = ? AND status = 'DEAD'"+inDueIndex+") FROM "+deliveryTable+
		" WHERE consumer_name = ? AND status IN ('PENDING', 'FAILED', 'PROCESSING')"+inDueIndex, consumer, consumer).
		Scan(&b.Waiting, &oldest, &b.Dead)
	if err != nil {
		return Backlog{}, fmt.Errorf("consume log: measure the lag: %w", err)
	}
	b.Oldest = max(time.Duration(oldest)*time.Microsecond, 0)
	return b, nil
}

// DeliveryRow is a row of the log, for people.
type DeliveryRow struct {
	ID                           int64
	Consumer, EventID, EventType string
	Status                       Status
	Attempts                     int
	IdempotencyKey               string
	Result                       string // JSON text
	Error                        string
	CreatedAt, ConsumedAt        time.Time
	NextRetryAt                  time.Time // zero for none, and for one that waits for an instance that knows its schema version
}

// OfEvents lists the deliveries of the events, oldest first. It reads uk_event_consumer.
func (r Results) OfEvents(ctx context.Context, idb bun.IDB, eventIDs []string) ([]DeliveryRow, error) {
	if len(eventIDs) == 0 {
		return nil, nil
	}
	rows, err := idb.QueryContext(ctx, "SELECT id, consumer_name, event_id, event_type, status, attempts, COALESCE(idempotency_key, ''), "+
		"COALESCE("+r.d.Text("consume_result")+", ''), COALESCE(error_message, ''), "+r.d.Micros("created_at")+", "+r.d.Micros("consumed_at")+
		", COALESCE("+r.d.Micros("next_retry_at")+", 0) FROM "+deliveryTable+" WHERE event_id IN (?) ORDER BY id", bun.List(eventIDs))
	if err != nil {
		return nil, fmt.Errorf("consume log: list deliveries: %w", err)
	}
	defer rows.Close()
	var out []DeliveryRow
	for rows.Next() {
		var row DeliveryRow
		var created, consumed, next int64
		if err := rows.Scan(&row.ID, &row.Consumer, &row.EventID, &row.EventType, &row.Status, &row.Attempts, &row.IdempotencyKey,
			&row.Result, &row.Error, &created, &consumed, &next); err != nil {
			return nil, fmt.Errorf("consume log: list deliveries: %w", err)
		}
		row.CreatedAt, row.ConsumedAt = time.UnixMicro(created).UTC(), time.UnixMicro(consumed).UTC()
		if next != 0 && next != dialect.NeverMicro {
			row.NextRetryAt = time.UnixMicro(next).UTC()
		}
		out = append(out, row)
	}
	return out, rows.Err()
}
