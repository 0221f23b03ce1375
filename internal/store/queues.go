package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/prepared"
)

// Queues answers questions about what waits for the registered consumers, each in one statement whatever their number:
// the statement goes along the registry, and looks for each consumer at the places of idx_consumer_due where the
// deliveries of a state begin.
type Queues struct {
	d     dialect.Dialect
	stmts *prepared.Statements
}

// NewQueues returns the questions in the words of a database, sent by way of its prepared statements.
func NewQueues(d dialect.Dialect, stmts *prepared.Statements) Queues { return Queues{d, stmts} }

// Due is a SELECT, without arguments, of the keys of the consumers for which a delivery is due. Of each state it reads
// the delivery that has been due for longest: with EXISTS, MySQL would read all that are due later.
func (q Queues) Due() string { return q.dueBy(q.d.Now) }

func (q Queues) dueBy(moment string) string {
	return "SELECT c.name FROM bc_consumer c WHERE " + q.isDue("c.name", moment)
}

// isDue is a condition that a delivery to a consumer has been due at a moment.
func (q Queues) isDue(consumer, moment string) string {
	var due []string
	for _, status := range []string{"FAILED", "PENDING", "PROCESSING"} {
		due = append(due, "(SELECT l.next_retry_at FROM "+q.waitingFor(consumer, status)+" AND l.next_retry_at IS NOT NULL"+q.first()+
			") <= "+moment)
	}
	return strings.Join(due, " OR ")
}

// DueConsumers are the keys of the consumers for which a delivery is due.
func (q Queues) DueConsumers(ctx context.Context, idb bun.IDB) ([]string, error) {
	keys, err := readTexts(idb.QueryContext(ctx, q.Due()))
	if err != nil {
		return nil, fmt.Errorf("look for due deliveries: %w", err)
	}
	return keys, nil
}

// IsDue reports whether a delivery to one consumer is due, registered or not.
func (q Queues) IsDue(ctx context.Context, idb bun.IDB, consumer string) (isDue bool, err error) {
	err = idb.QueryRowContext(ctx, "SELECT CASE WHEN "+q.isDue("?", q.d.Now)+" THEN 1 ELSE 0 END", consumer, consumer, consumer).Scan(&isDue)
	if err != nil {
		return false, fmt.Errorf("look for due deliveries of %s: %w", consumer, err)
	}
	return isDue, nil
}

// DueFor are the keys of the consumers for which a delivery has been due for so long.
func (q Queues) DueFor(ctx context.Context, idb bun.IDB, d time.Duration) ([]string, error) {
	ago := -dialect.Micro(d)
	keys, err := readTexts(idb.QueryContext(ctx, q.dueBy(q.d.After), ago, ago, ago))
	if err != nil {
		return nil, fmt.Errorf("look for due deliveries: %w", err)
	}
	return keys, nil
}

// Leased are the keys of the consumers of which somebody has leased a waiting delivery. It does not say EXISTS: MySQL would
// make a join of it, and read the whole index.
func (q Queues) Leased(ctx context.Context, idb bun.IDB) ([]string, error) {
	keys, err := readTexts(idb.QueryContext(ctx,
		"SELECT c.name FROM bc_consumer c WHERE (SELECT 1 FROM "+q.waitingOf("PROCESSING")+q.first()+") = 1"))
	if err != nil {
		return nil, fmt.Errorf("look for leased deliveries: %w", err)
	}
	return keys, nil
}

// SoonDue is how soon a delivery that was put off falls due again for nobody to have to wake it.
const SoonDue = time.Second

// PutOff are the keys of the consumers of which a delivery is put off for longer than [SoonDue].
func (q Queues) PutOff(ctx context.Context, idb bun.IDB) ([]string, error) {
	keys, err := readTexts(idb.QueryContext(ctx, "SELECT c.name FROM bc_consumer c WHERE (SELECT 1 FROM "+q.waitingOf("PENDING")+
		" AND l.next_retry_at > "+q.d.After+" AND l.next_retry_at < "+q.d.Never+q.first()+") = 1", dialect.Micro(SoonDue)))
	if err != nil {
		return nil, fmt.Errorf("look for deliveries that are put off: %w", err)
	}
	return keys, nil
}

// Timeless are the keys of the consumers for which a delivery waits for a time that it does not have.
func (q Queues) Timeless(ctx context.Context, idb bun.IDB) ([]string, error) {
	order := " LIMIT 1"
	if q.d.Name == "postgres" { // MariaDB, which needs none here, would sort
		order = q.first()
	}
	var some []string
	for _, status := range []string{"FAILED", "PENDING", "PROCESSING"} {
		some = append(some, "(SELECT 1 FROM "+q.waitingOf(status)+" AND l.next_retry_at IS NULL"+order+") = 1")
	}
	keys, err := readTexts(idb.QueryContext(ctx, "SELECT c.name FROM bc_consumer c WHERE "+strings.Join(some, " OR ")))
	if err != nil {
		return nil, fmt.Errorf("look for deliveries without a time: %w", err)
	}
	return keys, nil
}

// Backlog is what a consumer has before it.
type Backlog struct {
	Waiting int64         // deliveries that are PENDING, FAILED or PROCESSING
	Oldest  time.Duration // age of the oldest of them
	Dead    int64         // deliveries that wait for an operator
}

// Backlogs measures what waits for each registered consumer, by its key.
func (q Queues) Backlogs(ctx context.Context, idb bun.IDB) (map[string]Backlog, error) {
	waiting := []string{"PENDING", "FAILED", "PROCESSING"}
	columns := []string{"c.name", "(SELECT COUNT(*) FROM " + q.waitingOf("DEAD") + ")"}
	for _, status := range waiting {
		columns = append(columns, "(SELECT COUNT(*) FROM "+q.waitingOf(status)+")",
			"COALESCE((SELECT MAX("+q.d.Micros(q.d.Now)+" - "+q.d.Micros("l.created_at")+") FROM "+q.waitingOf(status)+"), 0)")
	}
	rows, err := idb.QueryContext(ctx, "SELECT "+strings.Join(columns, ", ")+" FROM bc_consumer c")
	if err != nil {
		return nil, fmt.Errorf("measure what waits for consumers: %w", err)
	}
	defer rows.Close()
	found := make(map[string]Backlog)
	for rows.Next() {
		var key string
		var b Backlog
		counts, ages := make([]int64, len(waiting)), make([]int64, len(waiting))
		if err := rows.Scan(&key, &b.Dead, &counts[0], &ages[0], &counts[1], &ages[1], &counts[2], &ages[2]); err != nil {
			return nil, fmt.Errorf("measure what waits for consumers: %w", err)
		}
		for i := range waiting {
			b.Waiting += counts[i]
			b.Oldest = max(b.Oldest, time.Duration(ages[i])*time.Microsecond)
		}
		found[key] = b
	}
	return found, rows.Err()
}

// waitingOf is a FROM and WHERE of the deliveries l of the consumer c in one state, by idx_consumer_due. PostgreSQL and
// SQLite have no SUCCESS rows there, and SQLite has to be told so in these very words.
func (q Queues) waitingOf(status string) string { return q.waitingFor("c.name", status) }

// first ends a look for one of what [Queues.waitingOf] gives. It names the order of the index: PostgreSQL would take the whole table
// for the quicker way, if it believes that many are in that state.
func (q Queues) first() string {
	return " ORDER BY " + q.d.MySQLOnly("l.consumer_name, l.status, ") + "l.next_retry_at LIMIT 1"
}

// waitingFor is the same for another expression of a consumer.
func (q Queues) waitingFor(consumer, status string) string {
	from := deliveryTable + " AS l"
	if q.d.Name == "mysql" {
		from += " FORCE INDEX (idx_consumer_due)"
	}
	return from + " WHERE l.consumer_name = " + consumer + " AND l.status = '" + status + "' AND l.status <> 'SUCCESS'"
}
