package view

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
)

// Open is how many events there are in a state that is not SENT.
type Open struct {
	At     time.Time // by the database's clock
	Looked int64     // events that were looked at
	Count  int64     // those of them that belong to the tenants
	First  time.Time // since when the one has been due that has been due for longest; zero for none
}

// CountOpen counts the events in a state, and stops after so many. An empty list of tenants means all.
func CountOpen(ctx context.Context, r Reader, status string, tenants []int64, most int) (n Open, err error) {
	isDue := func(string) string { return "" }
	if status == "SCHEDULED" {
		isDue = func(x string) string { return " AND " + x + ".next_retry_at <= " + r.D.Now }
	}
	// The first in the index is the one that has been due for longest.
	const along = " ORDER BY e.next_retry_at, e.id LIMIT "
	from := " FROM " + r.D.Due(string(Events)) + " WHERE e.status = ? AND e.status <> 'SENT'"
	var at, first int64
	if len(tenants) == 0 {
		firstOf := "SELECT " + store.DueSince(r.D, "e") + from + isDue("e") + along + "1"
		err = r.row(ctx, []any{&at, &n.Count, &first}, "SELECT "+r.D.Micros(r.D.Now)+
			", (SELECT COUNT(*) FROM (SELECT id FROM "+string(Events)+" WHERE status = ? AND status <> 'SENT' LIMIT ?) x), "+
			"COALESCE(("+firstOf+"), 0)", status, most, status)
		n.Looked = n.Count
	} else {
		owns, arg := owned("x", tenants)
		err = r.row(ctx, []any{&at, &n.Looked, &n.Count, &first}, "SELECT "+r.D.Micros(r.D.Now)+
			", COUNT(*), COALESCE(SUM(CASE WHEN "+owns+" THEN 1 ELSE 0 END), 0), "+
			"COALESCE(MIN(CASE WHEN "+owns+isDue("x")+" THEN x.since END), 0) FROM "+
			"(SELECT e.tenant_id, e.next_retry_at, "+store.DueSince(r.D, "e")+" AS since"+from+along+"?) x", arg, arg, status, most)
	}
	n.At, n.First = Instant(at), Instant(first)
	return n, err
}

// Queues lists the queues of consumers that are not empty, but for those of SUCCESS.
func Queues(ctx context.Context, r Reader) (queues []store.Queue, err error) {
	err = r.Rows(ctx, func(rows *sql.Rows) error {
		q, err := store.ScanQueue(rows)
		queues = append(queues, q)
		return err
	}, store.QueuedQuery(r.D))
	return queues, err
}

// QueueCount is how many deliveries a queue holds.
type QueueCount struct {
	store.Queue

	Looked int64         // deliveries that were looked at
	Count  int64         // those of them that belong to the tenants
	Oldest time.Duration // age of the oldest of these
}

// CountQueues counts the deliveries of each queue, and stops after so many. An empty list of tenants means all.
func CountQueues(ctx context.Context, r Reader, queues []store.Queue, tenants []int64, most int) (counts []QueueCount, err error) {
	part, args := countOf(r.D, tenants, most)
	for query, args := range store.Union(part, queues, store.MostParts, args) {
		err := r.Rows(ctx, func(rows *sql.Rows) error {
			var c QueueCount
			var oldest int64
			err := rows.Scan(&c.Consumer, &c.Status, &c.Looked, &c.Count, &oldest)
			c.Oldest = time.Duration(oldest) * time.Microsecond
			counts = append(counts, c)
			return err
		}, query, args...)
		if err != nil {
			return nil, err
		}
	}
	return counts, nil
}

// countOf is a SELECT for one queue, and its arguments.
func countOf(d dialect.Dialect, tenants []int64, most int) (part string, args func(store.Queue) []any) {
	if len(tenants) == 0 {
		// The oldest is the one with the smallest id: the rows themselves, which lie far apart, are not read.
		return "SELECT ?, ?, y.n, y.n, COALESCE((SELECT " + d.Micros(d.Now) + " - " + d.Micros("l.created_at") + " FROM " + string(Deliveries) +
				" l WHERE l.id = y.first), 0) FROM (SELECT COUNT(*) AS n, MIN(x.id) AS first FROM (SELECT id FROM " +
				store.OfQueue(d) + " LIMIT ?) x) y", func(q store.Queue) []any {
				return []any{q.Consumer, q.Status, q.Consumer, q.Status, most}
			}
	}
	owns, arg := owned("x", tenants)
	return "SELECT ?, ?, COUNT(*), COALESCE(SUM(CASE WHEN " + owns + " THEN 1 ELSE 0 END), 0), " +
			"COALESCE(MAX(CASE WHEN " + owns + " THEN " + d.Micros(d.Now) + " - " + d.Micros("x.created_at") + " END), 0) FROM " +
			"(SELECT tenant_id, created_at FROM " + store.OfQueue(d) + " LIMIT ?) x", func(q store.Queue) []any {
			return []any{q.Consumer, q.Status, arg, arg, q.Consumer, q.Status, most}
		}
}

// Failed is a delivery that has failed.
type Failed struct {
	store.Queue

	EventID, EventType string
	Error              string
	At                 time.Time
	TenantID           int64
}

// FailedOf reads the newest deliveries of queues, so many of each and so many characters of their errors, in one statement.
func FailedOf(ctx context.Context, r Reader, queues []store.Queue, each, texts int, add func(Failed)) error {
	columns := r.name("consumer_name") + " AS consumer, status, " + r.name("event_id") + " AS event, " + r.name("event_type") + " AS type, " +
		orEmpty(cut("error_message", texts)) + " AS said, " + r.D.Micros("updated_at") + " AS at, " + orZero(r.number("tenant_id")) + " AS tenant"
	part := "SELECT consumer, status, event, type, said, at, tenant FROM (SELECT " + columns + " FROM " + store.OfQueue(r.D) +
		" ORDER BY next_retry_at DESC, id DESC LIMIT ?) AS t"
	for query, args := range store.Union(part, queues, len(queues), func(q store.Queue) []any { return []any{q.Consumer, q.Status, each} }) {
		err := r.Rows(ctx, func(rows *sql.Rows) error {
			var f Failed
			var at int64
			if err := rows.Scan(&f.Consumer, &f.Status, &f.EventID, &f.EventType, &f.Error, &at, &f.TenantID); err != nil {
				return err
			}
			f.At = Instant(at)
			add(f)
			return nil
		}, query, args...)
		if err != nil {
			return err
		}
	}
	return nil
}

// LatestSuccesses tells when consumers last succeeded, among so many of the newest deliveries.
func LatestSuccesses(ctx context.Context, r Reader, among int) (map[string]time.Time, error) {
	latest := make(map[string]time.Time)
	err := r.Rows(ctx, func(rows *sql.Rows) error {
		var name string
		var at int64
		err := rows.Scan(&name, &at)
		latest[name] = Instant(at)
		return err
	}, fmt.Sprintf("SELECT x.consumer_name, COALESCE(MAX(%s), 0) FROM (SELECT consumer_name, status, consumed_at FROM %s "+
		"ORDER BY id DESC LIMIT %d) x WHERE x.status = 'SUCCESS' GROUP BY x.consumer_name", r.D.Micros("x.consumed_at"), Deliveries, among))
	return latest, err
}

// LatestErrors tells the last failed attempts of consumers, among so many of the newest.
func LatestErrors(ctx context.Context, r Reader, among, texts int) (latest []Attempt, err error) {
	err = r.Rows(ctx, func(rows *sql.Rows) error {
		var a Attempt
		var at int64
		err := rows.Scan(&a.Consumer, &a.Error, &at)
		a.At = Instant(at)
		latest = append(latest, a)
		return err
	}, fmt.Sprintf("SELECT a.consumer_name, %s, %s FROM (SELECT MAX(x.id) AS id FROM (SELECT id, consumer_name FROM bc_delivery_attempt "+
		"ORDER BY id DESC LIMIT %d) x GROUP BY x.consumer_name) y JOIN bc_delivery_attempt a ON a.id = y.id",
		orEmpty(cut("a.error_message", texts-1)), r.D.Micros("a.created_at"), among))
	return latest, err
}

// Growth is how far the large tables have grown at a moment.
type Growth struct {
	At                      int64 // microseconds by the database's clock
	LastEvent, LastDelivery int64 // their ids
	Open                    int64 // events that are not SENT, as far as they were counted
}

// Grown looks at the ends of the primary keys, and counts so many open events.
func Grown(ctx context.Context, r Reader, most int) (g Growth, err error) {
	err = r.row(ctx, []any{&g.At, &g.LastEvent, &g.LastDelivery, &g.Open}, "SELECT "+r.D.Micros(r.D.Now)+
		", COALESCE((SELECT MAX(id) FROM "+string(Events)+"), 0), COALESCE((SELECT MAX(id) FROM "+string(Deliveries)+"), 0), "+
		"(SELECT COUNT(*) FROM (SELECT id FROM "+string(Events)+
		" WHERE status <> 'SENT' AND status IN ('NEW', 'SCHEDULED', 'DISPATCHING', 'FAILED', 'DEAD') LIMIT ?) x)", most)
	return g, err
}
