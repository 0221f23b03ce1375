package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// Left answers questions about deliveries that instances have left to others, because they did not know the schema version
// of the event. Such a delivery is PENDING and never due, so claims do not see it; an instance that knows the version looks
// for it. All of a consumer are one place of idx_consumer_due.
type Left struct{ d dialect.Dialect }

// NewLeft returns the questions in the words of a database.
func NewLeft(d dialect.Dialect) Left { return Left{d} }

// LeftDelivery is a delivery that was left to others.
type LeftDelivery struct {
	ID            int64  // of its row
	Consumer      string // its key
	EventID       string
	EventType     string
	SchemaVersion int           // 0 if the event's row is gone
	For           time.Duration // how long ago it was left
}

// IsLeft is the condition on the deliveries of a consumer, from its AND on, that they were left.
func (f Left) IsLeft() string {
	return " AND status = 'PENDING' AND status <> 'SUCCESS' AND next_retry_at = " + f.d.Never
}

// Any is a condition, and its arguments, that holds when a delivery of one of the consumers was left.
func (f Left) Any(consumers []string) (cond string, args []any) {
	parts := make([]string, len(consumers))
	for i, consumer := range consumers {
		parts[i] = "EXISTS (SELECT 1 FROM " + f.d.DueDeliveries(deliveryTable) + " WHERE consumer_name = ?" + f.IsLeft() + ")"
		args = append(args, consumer)
	}
	return strings.Join(parts, " OR "), args
}

// Page lists deliveries of a consumer that were left, by the ids of their rows, from the one after the given id on.
func (f Left) Page(ctx context.Context, idb bun.IDB, consumer string, after int64, most int) ([]LeftDelivery, error) {
	return f.read(ctx, idb, f.d.DueDeliveries(deliveryTable)+" WHERE consumer_name = ?"+f.IsLeft()+" AND id > ? ORDER BY id LIMIT ?",
		consumer, after, most)
}

// Long lists, for each consumer of the registry, a delivery that was left longer ago than grace.
func (f Left) Long(ctx context.Context, idb bun.IDB, grace time.Duration) ([]LeftDelivery, error) {
	first := "SELECT id FROM " + f.d.DueDeliveries(deliveryTable) + " WHERE consumer_name = c.name" + f.IsLeft() + " AND updated_at < " +
		f.d.After + " LIMIT 1"
	var ids []int64
	err := idb.NewRaw("SELECT first FROM (SELECT ("+first+") AS first FROM bc_consumer c) AS f WHERE first IS NOT NULL",
		-dialect.Micro(grace)).Scan(ctx, &ids)
	if err != nil {
		return nil, fmt.Errorf("look for deliveries that were left: %w", err)
	}
	var found []LeftDelivery
	for len(ids) > 0 {
		n := min(len(ids), dialect.MostIDs)
		page, err := f.read(ctx, idb, deliveryTable+" WHERE id IN (?) ORDER BY id", bun.List(ids[:n]))
		if err != nil {
			return nil, err
		}
		found, ids = append(found, page...), ids[n:]
	}
	return found, nil
}

// read reads deliveries. The event is looked at in a subquery of its own: PostgreSQL without statistics would join whole
// tables otherwise.
func (f Left) read(ctx context.Context, idb bun.IDB, from string, args ...any) ([]LeftDelivery, error) {
	rows, err := idb.QueryContext(ctx, "SELECT id, consumer_name, event_id, event_type, "+
		"COALESCE((SELECT e.schema_version FROM "+eventTable+" e WHERE e.id = "+deliveryTable+".outbox_id), 0), "+
		f.d.Micros(f.d.Now)+" - "+f.d.Micros("updated_at")+" FROM "+from, args...)
	if err != nil {
		return nil, fmt.Errorf("look for deliveries that were left: %w", err)
	}
	defer rows.Close()
	var found []LeftDelivery
	for rows.Next() {
		var d LeftDelivery
		var micros int64
		if err := rows.Scan(&d.ID, &d.Consumer, &d.EventID, &d.EventType, &d.SchemaVersion, &micros); err != nil {
			return nil, fmt.Errorf("look for deliveries that were left: %w", err)
		}
		d.For = time.Duration(micros) * time.Microsecond
		found = append(found, d)
	}
	return found, rows.Err()
}
