package consumelog

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// States tells the state of the events' deliveries to the consumers, or to all if there are none: event id → consumer →
// status. Of more than a thousand consumers it may tell of others too.
func (l *Log) States(ctx context.Context, idb bun.IDB, eventIDs []string, consumers ...string) (map[string]map[string]Status, error) {
	if len(eventIDs) == 0 {
		return map[string]map[string]Status{}, nil
	}
	and, args := "", []any{bun.List(eventIDs)}
	if len(consumers) > 0 && len(consumers) <= dialect.MostIDs { // of more, all are read
		and, args = " AND consumer_name IN (?)", append(args, bun.List(consumers))
	}
	rows, err := idb.QueryContext(ctx, "SELECT l.event_id, l.consumer_name, l.status FROM "+l.d.Each(table, "event_id", and), args...)
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

// Summaries sums up the deliveries of the events, however many each has. Those without any are missing.
func (l *Log) Summaries(ctx context.Context, idb bun.IDB, eventIDs []string) (map[string]Summary, error) {
	rows, err := idb.QueryContext(ctx, "SELECT l.event_id, COUNT(*), COUNT(CASE WHEN l.status IN ('PENDING', 'PROCESSING', 'FAILED') THEN 1 END), COUNT(CASE WHEN l.status = 'DEAD' THEN 1 END) FROM "+
		l.d.Each(table, "event_id", "")+" GROUP BY l.event_id", bun.List(eventIDs))
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

// Counts tells how many deliveries are in each state.
func (l *Log) Counts(ctx context.Context) (map[Status]int64, error) {
	rows, err := l.db.QueryContext(ctx, "SELECT status, COUNT(*) FROM "+table+" GROUP BY status")
	if err != nil {
		return nil, fmt.Errorf("consume log: count: %w", err)
	}
	defer rows.Close()
	counts := map[Status]int64{Pending: 0, Processing: 0, Failed: 0, Success: 0, Dead: 0, Skipped: 0}
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

// Lag is what waits in the retry queue of a consumer.
type Lag struct {
	Waiting int64         // PENDING, FAILED and PROCESSING deliveries
	Oldest  time.Duration // age of the oldest of them
	Dead    int64         // deliveries that wait for an operator
}

// Lag measures the retry queue of a consumer, by its key.
func (l *Log) Lag(ctx context.Context, consumer string) (Lag, error) {
	var lag Lag
	var oldest int64
	err := l.db.QueryRowContext(ctx, "SELECT COUNT(*), COALESCE(MAX("+l.d.Micros(l.d.Now)+" - "+l.d.Micros("created_at")+"), 0), (SELECT COUNT(*) FROM "+table+" WHERE consumer_name = ? AND status = 'DEAD'"+inDueIndex+") FROM "+table+
		" WHERE consumer_name = ? AND status IN ('PENDING', 'FAILED', 'PROCESSING')"+inDueIndex, consumer, consumer).Scan(&lag.Waiting, &oldest, &lag.Dead)
	if err != nil {
		return Lag{}, fmt.Errorf("consume log: measure the lag: %w", err)
	}
	lag.Oldest = max(time.Duration(oldest)*time.Microsecond, 0)
	return lag, nil
}

// Record is one row of the consume log, for people.
type Record struct {
	ID             int64     `json:"id"`
	Consumer       string    `json:"consumer"`
	EventID        string    `json:"eventId"`
	EventType      string    `json:"eventType"`
	Status         Status    `json:"status"`
	Attempts       int       `json:"attempts"`
	IdempotencyKey string    `json:"idempotencyKey,omitempty"`
	Result         string    `json:"result,omitempty"` // JSON text
	Error          string    `json:"error,omitempty"`
	CreatedAt      time.Time `json:"createdAt"`
	ConsumedAt     time.Time `json:"consumedAt"`
	NextRetryAt    time.Time `json:"nextRetryAt,omitzero"` // zero for one that waits for an instance that knows its schema version
}

// ByEvents lists the deliveries of the events, oldest first.
func (l *Log) ByEvents(ctx context.Context, eventIDs ...string) ([]Record, error) {
	if len(eventIDs) == 0 {
		return nil, nil
	}
	query := "SELECT id, consumer_name, event_id, event_type, status, attempts, COALESCE(idempotency_key, ''), COALESCE(" + l.d.Text("consume_result") + ", ''), COALESCE(error_message, ''), " +
		l.d.Micros("created_at") + ", " + l.d.Micros("consumed_at") + ", COALESCE(" + l.d.Micros("next_retry_at") + ", 0) FROM " + table + " WHERE event_id IN (?) ORDER BY id"
	rows, err := l.db.QueryContext(ctx, query, bun.List(eventIDs))
	if err != nil {
		return nil, fmt.Errorf("consume log: list deliveries: %w", err)
	}
	defer rows.Close()
	var out []Record
	for rows.Next() {
		var r Record
		var created, consumed, next int64
		if err := rows.Scan(&r.ID, &r.Consumer, &r.EventID, &r.EventType, &r.Status, &r.Attempts, &r.IdempotencyKey, &r.Result, &r.Error, &created, &consumed, &next); err != nil {
			return nil, fmt.Errorf("consume log: list deliveries: %w", err)
		}
		r.CreatedAt, r.ConsumedAt = time.UnixMicro(created).UTC(), time.UnixMicro(consumed).UTC()
		if next != 0 && next != dialect.NeverMicro {
			r.NextRetryAt = time.UnixMicro(next).UTC()
		}
		out = append(out, r)
	}
	return out, rows.Err()
}
