package store

import (
	"context"
	"database/sql"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// Queue is the deliveries of one consumer in one state: one place of idx_consumer_due.
type Queue struct {
	Consumer string // its key, or a name that only deliveries know
	Status   string
}

const (
	// mostQueues is how many queues are listed: those of 2,000 consumers and their replays, in five states each.
	mostQueues = 20_000
	// MostParts is how many queues one statement of [Union] may ask about: SQLite takes 500, and servers open the
	// table once for each.
	MostParts = 100
)

// QueuedQuery is a SELECT, without arguments, of the consumers and states of all queues that are not empty, but for SUCCESS.
// However many deliveries there are, it jumps along idx_consumer_due from one queue to the next. MySQL and MariaDB do that
// for a GROUP BY, the latter when it knows by its statistics that reading all is dearer.
func QueuedQuery(d dialect.Dialect) string {
	next := "SELECT %s FROM " + deliveryTable + " AS n%s WHERE n.status <> 'SUCCESS'%s ORDER BY n.consumer_name, n.status LIMIT 1"
	const after = " AND (n.consumer_name, n.status) > (q.consumer_name, q.status)"
	walk := "WITH RECURSIVE q AS (%s UNION ALL %s) SELECT consumer_name, status FROM q LIMIT " + fmt.Sprint(mostQueues)
	switch d.Name {
	case "mysql":
		return "SELECT consumer_name, status FROM (SELECT consumer_name, status FROM " + d.DueDeliveries(deliveryTable) +
			" GROUP BY consumer_name, status LIMIT " + fmt.Sprint(2*mostQueues) + ") AS q WHERE status <> 'SUCCESS' LIMIT " + fmt.Sprint(mostQueues)
	case "postgres":
		const columns = "n.consumer_name, n.status"
		return fmt.Sprintf(walk, "("+fmt.Sprintf(next, columns, "", "")+")",
			"SELECT l.consumer_name, l.status FROM q CROSS JOIN LATERAL ("+fmt.Sprintf(next, columns, "", after)+") AS l")
	}
	const row, index = "SELECT l.consumer_name, l.status FROM %s" + deliveryTable + " AS l WHERE l.id = (%s)",
		" INDEXED BY bc_event_consume_log_idx_consumer_due"
	return fmt.Sprintf(walk, fmt.Sprintf(row, "", fmt.Sprintf(next, "n.id", index, "")),
		fmt.Sprintf(row, "q CROSS JOIN ", fmt.Sprintf(next, "n.id", index, after)))
}

// Queued lists the queues that are not empty, but for those of SUCCESS.
func Queued(ctx context.Context, idb bun.IDB, d dialect.Dialect) ([]Queue, error) {
	rows, err := idb.QueryContext(ctx, QueuedQuery(d))
	if err != nil {
		return nil, fmt.Errorf("look for what waits for consumers: %w", err)
	}
	defer rows.Close()
	var found []Queue
	for rows.Next() {
		q, err := ScanQueue(rows)
		if err != nil {
			return nil, fmt.Errorf("look for what waits for consumers: %w", err)
		}
		found = append(found, q)
	}
	return found, rows.Err()
}

// ScanQueue reads a row of [QueuedQuery].
func ScanQueue(rows *sql.Rows) (q Queue, err error) {
	err = rows.Scan(&q.Consumer, &q.Status)
	return q, err
}

// In keeps the queues of some states.
func In(queues []Queue, states ...string) []Queue {
	return slices.DeleteFunc(slices.Clone(queues), func(q Queue) bool { return !slices.Contains(states, q.Status) })
}

// Union makes the statements, and their arguments, that ask the same of each queue: part is the SELECT for one of them, with
// the arguments that args answers. A statement asks about at most so many queues.
func Union(part string, queues []Queue, most int, args func(Queue) []any) iter.Seq2[string, []any] {
	return func(yield func(string, []any) bool) {
		for chunk := range slices.Chunk(queues, min(most, MostParts)) {
			var all []any
			for _, q := range chunk {
				all = append(all, args(q)...)
			}
			if !yield(strings.Repeat(part+" UNION ALL ", len(chunk)-1)+part, all) {
				return
			}
		}
	}
}

// OfQueue is a FROM and WHERE of the deliveries of one queue, whose consumer and state are the arguments, by idx_consumer_due.
// PostgreSQL and SQLite have no SUCCESS rows there, and SQLite has to be told so in these very words.
func OfQueue(d dialect.Dialect) string {
	return d.DueDeliveries(deliveryTable) + " WHERE consumer_name = ? AND status = ? AND status <> 'SUCCESS'"
}
