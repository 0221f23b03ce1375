package store

import (
	"context"
	"database/sql"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// Irregular are the questions by which a check finds rows that are not as they should be. A finding is its key: the values of
// a row, the consumer or the status before the event id.
type Irregular struct{ d dialect.Dialect }

// NewIrregular returns the questions in the words of a database.
func NewIrregular(d dialect.Dialect) Irregular { return Irregular{d} }

// Stretch is a part of the events, by their ids.
type Stretch struct {
	From, Before int64
	Recent       int64 // how many of them were saved within the time that was asked for
}

// Stretch is so many events before an id, by the primary key, and how many of them were saved within the last microseconds.
func (i Irregular) Stretch(ctx context.Context, idb bun.IDB, before, within int64, length int) (Stretch, error) {
	s := Stretch{Before: before}
	err := idb.QueryRowContext(ctx, "SELECT COALESCE(MIN(id), 0), COUNT(CASE WHEN created_at > "+i.d.After+" THEN 1 END) FROM "+
		"(SELECT id, created_at FROM "+eventTable+" WHERE id < ? ORDER BY id DESC LIMIT ?) AS e",
		-within, before, length).Scan(&s.From, &s.Recent)
	return s, err
}

// RegisteredFor is since when a consumer c has been registered for an event type t. A release before migration 0015 does not say it of
// the type: then it is since the consumer was registered.
func RegisteredFor(c, t string) string {
	return "COALESCE(" + t + ".registered_at, " + c + ".registered_at)"
}

// Undelivered lists consumers with events of a stretch that are SENT, were saved within the last microseconds, when the consumer was
// registered for their type, and have no delivery to it, the newest first: events by the primary key, deliveries by uk_event_consumer.
func (i Irregular) Undelivered(ctx context.Context, idb bun.IDB, s Stretch, within int64, most int) ([][]string, error) {
	return readCells(idb.QueryContext(ctx, "SELECT c.name, e.event_id FROM "+eventTable+" e JOIN bc_consumer_type t "+
		"ON t.event_type = e.event_type JOIN bc_consumer c ON c.name = t.consumer_name AND "+RegisteredFor("c", "t")+" < e.created_at "+
		"LEFT JOIN "+deliveryTable+" l ON l.event_id = e.event_id AND l.consumer_name = c.name "+
		"WHERE e.id >= ? AND e.id < ? AND e.status = 'SENT' AND e.created_at > "+i.d.After+" AND l.id IS NULL ORDER BY e.id DESC LIMIT ?",
		s.From, s.Before, -within, most))
}

// ConsumersSeen lists the consumers that an instance has had within the last microseconds, by the primary key.
func (i Irregular) ConsumersSeen(ctx context.Context, idb bun.IDB, within int64) ([]string, error) {
	return readTexts(idb.QueryContext(ctx, "SELECT name FROM bc_consumer WHERE seen_at > "+i.d.After, -within))
}

// EventsOfUnknownStatus lists the statuses that no release knows with their events, along idx_status_next_retry.
func (Irregular) EventsOfUnknownStatus(ctx context.Context, idb bun.IDB, most int) ([][]string, error) {
	return readCells(idb.QueryContext(ctx, "SELECT status, event_id FROM "+eventTable+" WHERE status <> 'SENT' "+
		"AND status NOT IN ('NEW', 'SCHEDULED', 'DISPATCHING', 'SENT', 'FAILED', 'DEAD') LIMIT ?", most))
}

// Deliveries lists consumers with the events of their deliveries in queues, by idx_consumer_due.
func (i Irregular) Deliveries(ctx context.Context, idb bun.IDB, queues []Queue, most int) ([][]string, error) {
	return i.ofQueues(ctx, idb, queues, "consumer_name, event_id", "", nil, most)
}

// DeliveriesUnchanged lists those that nobody has changed within the last microseconds.
func (i Irregular) DeliveriesUnchanged(ctx context.Context, idb bun.IDB, queues []Queue, within int64, most int) ([][]string, error) {
	return i.ofQueues(ctx, idb, queues, "consumer_name, event_id", " AND updated_at < "+i.d.After, []any{-within}, most)
}

// DeliveriesByStatus lists statuses with consumers and the events of their deliveries in queues, by idx_consumer_due.
func (i Irregular) DeliveriesByStatus(ctx context.Context, idb bun.IDB, queues []Queue, most int) ([][]string, error) {
	return i.ofQueues(ctx, idb, queues, "status, consumer_name, event_id", "", nil, most)
}

// ofQueues lists deliveries of queues of which a further condition holds, at most so many.
func (i Irregular) ofQueues(ctx context.Context, idb bun.IDB, queues []Queue, columns, and string, arg []any, most int,
) (found [][]string, err error) {
	part := "SELECT " + columns + " FROM (SELECT " + columns + " FROM " + OfQueue(i.d) + and + " LIMIT ?) AS t"
	for query, args := range Union(part, queues, MostParts, func(q Queue) []any {
		return append(append([]any{q.Consumer, q.Status}, arg...), most)
	}) {
		rows, err := readCells(idb.QueryContext(ctx, query, args...))
		if err != nil {
			return nil, err
		}
		if found = append(found, rows...); len(found) >= most {
			return found[:most], nil
		}
	}
	return found, nil
}

// readCells reads rows of texts.
func readCells(rows *sql.Rows, err error) (out [][]string, _ error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	for rows.Next() {
		cells, dest := make([]string, len(columns)), make([]any, len(columns))
		for i := range cells {
			dest[i] = &cells[i]
		}
		if err := rows.Scan(dest...); err != nil {
			return nil, err
		}
		out = append(out, cells)
	}
	return out, rows.Err()
}
