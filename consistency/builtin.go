package consistency

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
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

// undelivered looks at the newest SENT events of the window.
func undelivered(ctx context.Context, db bun.IDB, d dialect.Dialect, q Query) ([]string, error) {
	consumers, err := texts(ctx, db, "SELECT name, event_types FROM bc_consumer", 2)
	if err != nil {
		return nil, err
	}
	var keys []string
	for _, c := range consumers {
		var types []string
		if err := json.Unmarshal([]byte(c[1]), &types); err != nil || len(types) == 0 {
			continue
		}
		found, err := texts(ctx, db, "SELECT e.event_id FROM bc_outbox_event e JOIN bc_consumer c ON c.name = ? LEFT JOIN bc_event_consume_log l ON l.consumer_name = c.name AND l.event_id = e.event_id "+
			"WHERE e.status = 'SENT' AND e.event_type IN (?) AND e.created_at > c.registered_at AND e.created_at > "+d.After+" AND l.id IS NULL ORDER BY e.id DESC LIMIT ?", 1,
			c[0], bun.List(types), -dialect.Micro(q.From), q.Limit)
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			keys = append(keys, c[0]+" "+f[0])
		}
	}
	return keys, nil
}

func unregistered(ctx context.Context, db bun.IDB, d dialect.Dialect, q Query) ([]string, error) {
	rows, err := texts(ctx, db, "SELECT l.consumer_name, l.event_id FROM bc_event_consume_log l LEFT JOIN bc_consumer c ON c.name = l.consumer_name AND c.seen_at > "+d.After+
		" WHERE l.status IN ('PENDING', 'FAILED', 'PROCESSING') AND c.name IS NULL ORDER BY l.id LIMIT ?", 2, -dialect.Micro(24*time.Hour), q.Limit)
	return joined(rows), err
}

func deadForLong(ctx context.Context, db bun.IDB, d dialect.Dialect, q Query) ([]string, error) {
	rows, err := texts(ctx, db, "SELECT consumer_name, event_id FROM bc_event_consume_log WHERE status = 'DEAD' AND updated_at < "+d.After+" ORDER BY id LIMIT ?", 2, -dialect.Micro(24*time.Hour), q.Limit)
	return joined(rows), err
}

func unknownStatus(ctx context.Context, db bun.IDB, _ dialect.Dialect, q Query) ([]string, error) {
	events, err := texts(ctx, db, "SELECT status, event_id FROM bc_outbox_event WHERE status <> 'SENT' AND status NOT IN ('NEW', 'SCHEDULED', 'DISPATCHING', 'SENT', 'FAILED', 'DEAD') LIMIT ?", 2, q.Limit)
	if err != nil {
		return nil, err
	}
	log, err := texts(ctx, db, "SELECT status, consumer_name, event_id FROM bc_event_consume_log WHERE status NOT IN ('PENDING', 'PROCESSING', 'FAILED', 'SUCCESS', 'DEAD', 'SKIPPED') LIMIT ?", 3, q.Limit)
	return append(joined(events), joined(log)...), err
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
