package consistency

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
)

// BuiltIn are checks of bluecone's own tables that every deployment wants. They report and
// repair nothing:
//
//	bluecone.undelivered   SENT events that a registered consumer of their type never got
//	bluecone.unregistered  deliveries that wait for a consumer that no instance runs
//	bluecone.dead          deliveries that have been DEAD for more than a day
//	bluecone.unknown       rows whose status is none of those documented
func BuiltIn() []Checker {
	return []Checker{
		finding("bluecone.undelivered", undelivered),
		finding("bluecone.unregistered", unregistered),
		finding("bluecone.dead", deadForLong),
		finding("bluecone.unknown", unknownStatus),
	}
}

// finding is a check whose facts are keys, found in one page.
func finding(name string, find func(ctx context.Context, db bun.IDB, d dialect.Dialect, q Query) ([]string, error)) Checker {
	return Check[string]{
		Name: name, ReportOnly: true, Key: func(key string) string { return key },
		Find: func(ctx context.Context, db bun.IDB, q Query) ([]string, error) {
			if q.After != "" {
				return nil, nil
			}
			d, err := dialectOf(db)
			if err != nil {
				return nil, err
			}
			keys, err := find(ctx, db, d, q)
			slices.Sort(keys)
			return keys, err
		},
	}
}

func dialectOf(db bun.IDB) (dialect.Dialect, error) {
	whole, ok := db.(*bun.DB)
	if !ok {
		return dialect.Dialect{}, fmt.Errorf("a *bun.DB is needed, not %T", db)
	}
	return dialect.Of(whole)
}

// eventsAtOnce is how many events a statement looks at, by primary key.
const eventsAtOnce = 1000

// undelivered looks at the SENT events of the window, the newest first, as far as it has found enough.
func undelivered(ctx context.Context, db bun.IDB, d dialect.Dialect, q Query) (keys []string, err error) {
	window := -dialect.Micro(q.From)
	for before := int64(math.MaxInt64); len(keys) < q.Limit; {
		var from, recent int64
		err := db.QueryRowContext(ctx, "SELECT COALESCE(MIN(id), 0), COUNT(CASE WHEN created_at > "+d.After+" THEN 1 END) FROM "+
			"(SELECT id, created_at FROM bc_outbox_event WHERE id < ? ORDER BY id DESC LIMIT ?) AS e",
			window, before, eventsAtOnce).Scan(&from, &recent)
		if err != nil {
			return nil, err
		}
		if recent == 0 {
			break
		}
		found, err := texts(ctx, db, "SELECT c.name, e.event_id FROM bc_outbox_event e JOIN bc_consumer_type t "+
			"ON t.event_type = e.event_type JOIN bc_consumer c ON c.name = t.consumer_name AND c.registered_at < e.created_at "+
			"LEFT JOIN bc_event_consume_log l ON l.event_id = e.event_id AND l.consumer_name = c.name "+
			"WHERE e.id >= ? AND e.id < ? AND e.status = 'SENT' AND e.created_at > "+d.After+" AND l.id IS NULL ORDER BY e.id DESC LIMIT ?", 2,
			from, before, window, q.Limit-len(keys))
		if err != nil {
			return nil, err
		}
		keys, before = append(keys, joined(found)...), from
	}
	return keys, nil
}

func unregistered(ctx context.Context, db bun.IDB, d dialect.Dialect, q Query) ([]string, error) {
	rows, err := texts(ctx, db, "SELECT name FROM bc_consumer WHERE seen_at > "+d.After, 1, -dialect.Micro(24*time.Hour))
	if err != nil {
		return nil, err
	}
	seen := make(map[string]bool, len(rows))
	for _, r := range rows {
		seen[r[0]] = true
	}
	queues, err := store.Queued(ctx, db, d)
	queues = slices.DeleteFunc(store.In(queues, "PENDING", "FAILED", "PROCESSING"), func(q store.Queue) bool { return seen[q.Consumer] })
	if err != nil {
		return nil, err
	}
	found, err := ofQueues(ctx, db, d, queues, "consumer_name, event_id", 2, "", nil, q.Limit)
	return joined(found), err
}

func deadForLong(ctx context.Context, db bun.IDB, d dialect.Dialect, q Query) ([]string, error) {
	queues, err := store.Queued(ctx, db, d)
	if err != nil {
		return nil, err
	}
	found, err := ofQueues(ctx, db, d, store.In(queues, "DEAD"), "consumer_name, event_id", 2, " AND updated_at < "+d.After,
		[]any{-dialect.Micro(24 * time.Hour)}, q.Limit)
	return joined(found), err
}

func unknownStatus(ctx context.Context, db bun.IDB, d dialect.Dialect, q Query) ([]string, error) {
	events, err := texts(ctx, db, "SELECT status, event_id FROM bc_outbox_event WHERE status <> 'SENT' "+
		"AND status NOT IN ('NEW', 'SCHEDULED', 'DISPATCHING', 'SENT', 'FAILED', 'DEAD') LIMIT ?", 2, q.Limit)
	if err != nil {
		return nil, err
	}
	queues, err := store.Queued(ctx, db, d)
	if err != nil {
		return nil, err
	}
	queues = slices.DeleteFunc(queues, func(q store.Queue) bool {
		return slices.Contains([]string{"PENDING", "PROCESSING", "FAILED", "DEAD", "SKIPPED"}, q.Status)
	})
	log, err := ofQueues(ctx, db, d, queues, "status, consumer_name, event_id", 3, "", nil, q.Limit)
	return append(joined(events), joined(log)...), err
}

// ofQueues lists deliveries of some queues of which a further condition holds, at most so many.
func ofQueues(ctx context.Context, db bun.IDB, d dialect.Dialect, queues []store.Queue, columns string, n int, and string, arg []any,
	most int,
) (found [][]string, err error) {
	part := "SELECT " + columns + " FROM (SELECT " + columns + " FROM " + store.OfQueue(d) + and + " LIMIT ?) AS t"
	for query, args := range store.Union(part, queues, store.MostParts, func(q store.Queue) []any {
		return append(append([]any{q.Consumer, q.Status}, arg...), most)
	}) {
		rows, err := texts(ctx, db, query, n, args...)
		if err != nil {
			return nil, err
		}
		if found = append(found, rows...); len(found) >= most {
			return found[:most], nil
		}
	}
	return found, nil
}

func joined(rows [][]string) []string {
	out := make([]string, len(rows))
	for i, r := range rows {
		out[i] = strings.Join(r, " ")
	}
	return out
}

func texts(ctx context.Context, db bun.IDB, query string, columns int, args ...any) ([][]string, error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out [][]string
	for rows.Next() {
		row, dest := make([]string, columns), make([]any, columns)
		for i := range row {
			dest[i] = &row[i]
		}
		if err := rows.Scan(dest...); err != nil {
			return nil, err
		}
		out = append(out, row)
	}
	return out, rows.Err()
}
