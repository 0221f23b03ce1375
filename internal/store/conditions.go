package store

import (
	"context"
	"database/sql"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// Conditions are the questions by which an alerter finds what is wrong. Each statement looks at a bounded number of rows. Times
// are microseconds since the epoch by the database's clock, 0 for none.
type Conditions struct{ d dialect.Dialect }

// NewConditions returns the questions in the words of a database.
func NewConditions(d dialect.Dialect) Conditions { return Conditions{d} }

// Tally is how many there are, and when the first of them began.
type Tally struct{ Count, Since int64 }

// OpenKind says why an event is open.
type OpenKind string

// The kinds of open events.
const (
	OpenNew    OpenKind = "new"    // nobody has leased it
	OpenLeased OpenKind = "leased" // since it was saved; if it was never leased in vain, since its claim
	OpenDue    OpenKind = "due"    // its producer has delayed it, and it is due
	OpenParked OpenKind = "parked" // no consumer takes its type
	OpenDead   OpenKind = "dead"   // it is DEAD, and no delivery of it is
)

// OpenOfType is how many events of a type are open for one reason.
type OpenOfType struct {
	Kind      OpenKind
	EventType string

	Tally
}

// OpenEvents counts the open events of each kind along idx_status_next_retry, so many of a kind at most.
func (c Conditions) OpenEvents(ctx context.Context, idb bun.IDB, most int) (found []OpenOfType, err error) {
	since := c.d.Micros("created_at")
	kind := func(kind OpenKind, where, since string) string {
		return "SELECT '" + string(kind) + "' AS kind, event_type, COUNT(*), MIN(since) FROM (SELECT event_type, " + since + " AS since FROM " +
			c.d.Due(eventTable) + " WHERE status <> 'SENT' AND " + where + " LIMIT ?) AS t GROUP BY event_type"
	}
	query := kind(OpenNew, "status = 'NEW'", since) + " UNION ALL " +
		// When a delayed event was due is no longer known after its claim: then the claim counts.
		kind(OpenLeased, "status = 'DISPATCHING'", "CASE WHEN retry_count = 0 THEN "+c.d.Micros("updated_at")+" ELSE "+since+" END") +
		" UNION ALL " +
		kind(OpenDue, "status = 'SCHEDULED' AND last_error IS NULL AND next_retry_at <= "+c.d.Now, c.d.Micros("next_retry_at")) +
		" UNION ALL " + kind(OpenParked, "status = 'SCHEDULED' AND last_error IS NOT NULL", since) + " UNION ALL " +
		kind(OpenDead, "status = 'DEAD' AND NOT EXISTS (SELECT 1 FROM "+deliveryTable+" c WHERE c.event_id = e.event_id AND c.status = 'DEAD')",
			c.d.Micros("updated_at"))
	err = EachRow(ctx, idb, func(rows *sql.Rows) error {
		var o OpenOfType
		err := rows.Scan(&o.Kind, &o.EventType, &o.Count, &o.Since)
		found = append(found, o)
		return err
	}, query, most, most, most, most, most)
	return found, err
}

// TalliedType is how many there are of an event type.
type TalliedType struct {
	EventType string

	Tally
}

// Unanswered counts the reservations whose time to live is over, so many at most, since it is over. They are looked for among those
// whose producers are asked next, along idx_next_check.
func (c Conditions) Unanswered(ctx context.Context, idb bun.IDB, most int) (found []TalliedType, err error) {
	err = EachRow(ctx, idb, func(rows *sql.Rows) error {
		var t TalliedType
		err := rows.Scan(&t.EventType, &t.Count, &t.Since)
		found = append(found, t)
		return err
	}, "SELECT event_type, COUNT(*), MIN(since) FROM (SELECT event_type, "+c.d.Micros("expires_at")+" AS since, "+
		"CASE WHEN expires_at <= "+c.d.Now+" THEN 1 ELSE 0 END AS is_over FROM bc_reservation WHERE next_check_at IS NOT NULL "+
		"ORDER BY next_check_at LIMIT ?) AS t WHERE is_over = 1 GROUP BY event_type", most)
	return found, err
}

// LastDelivered is when the last of so many of the newest deliveries ended well, by the primary key.
func (c Conditions) LastDelivered(ctx context.Context, idb bun.IDB, among int) (last int64, err error) {
	err = idb.QueryRowContext(ctx, "SELECT COALESCE(MAX(consumed), 0) FROM (SELECT status, "+c.d.Micros("consumed_at")+" AS consumed FROM "+
		deliveryTable+" ORDER BY id DESC LIMIT ?) AS t WHERE status IN ('SUCCESS', 'SKIPPED')", among).Scan(&last)
	return last, err
}

// ConsumerState is what the registry says of a consumer.
type ConsumerState struct {
	Name     string
	IsPaused bool
	PausedBy string
	Seen     int64 // when an instance last had it
}

// Consumers reads the registry by its primary key.
func (c Conditions) Consumers(ctx context.Context, idb bun.IDB) (found []ConsumerState, err error) {
	err = EachRow(ctx, idb, func(rows *sql.Rows) error {
		var s ConsumerState
		err := rows.Scan(&s.Name, &s.IsPaused, &s.PausedBy, &s.Seen)
		found = append(found, s)
		return err
	}, "SELECT name, CASE WHEN paused_until > "+c.d.Now+" THEN 1 ELSE 0 END, COALESCE(paused_by, ''), "+
		c.d.Micros("seen_at")+" FROM bc_consumer ORDER BY name")
	return found, err
}

// PausedSince tells when consumers were last paused, by idx_target of the audit log.
func (c Conditions) PausedSince(ctx context.Context, idb bun.IDB, consumers []string) (map[string]int64, error) {
	since := make(map[string]int64)
	err := EachRow(ctx, idb, func(rows *sql.Rows) error {
		var name string
		var at int64
		err := rows.Scan(&name, &at)
		since[name] = at
		return err
	}, "SELECT target, MAX("+c.d.Micros("created_at")+") FROM bc_audit_log WHERE target IN (?) AND action = 'pause' GROUP BY target",
		bun.List(consumers))
	return since, err
}

// QueueState is what waits in a queue, or is DEAD, of one event type.
type QueueState struct {
	Queue

	EventType string
	All       Tally
	Uncounted Tally // that have failed, and whose attempts do not count
	Left      Tally // that wait for an instance that knows their schema version, since they were left
	Changed   int64 // when the first of them became what it is
}

// QueueStates measures queues by idx_consumer_due, so many deliveries of each at most.
func (c Conditions) QueueStates(ctx context.Context, idb bun.IDB, queues []Queue, most int) (found []QueueState, err error) {
	uncounted, left := "CASE WHEN status = 'FAILED' AND attempts = 0 THEN ", "CASE WHEN status = 'PENDING' AND due = "+c.d.Never+" THEN "
	part := "SELECT consumer_name, event_type, status, COUNT(*), MIN(created), MIN(changed), COUNT(" + uncounted + "1 END), COALESCE(MIN(" +
		uncounted + "created END), 0), COUNT(" + left + "1 END), COALESCE(MIN(" + left + "changed END), 0) FROM " +
		"(SELECT consumer_name, event_type, status, attempts, next_retry_at AS due, " + c.d.Micros("created_at") + " AS created, " +
		c.d.Micros("updated_at") + " AS changed FROM " + OfQueue(c.d) + " LIMIT ?) AS t GROUP BY consumer_name, event_type, status"
	for query, args := range Union(part, queues, MostParts, func(q Queue) []any { return []any{q.Consumer, q.Status, most} }) {
		err := EachRow(ctx, idb, func(rows *sql.Rows) error {
			var q QueueState
			err := rows.Scan(&q.Consumer, &q.EventType, &q.Status, &q.All.Count, &q.All.Since, &q.Changed, &q.Uncounted.Count, &q.Uncounted.Since,
				&q.Left.Count, &q.Left.Since)
			found = append(found, q)
			return err
		}, query, args...)
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// FailedAttempts counts, by consumer, the attempts within a time that did not succeed, so many of the newest at most, along
// idx_created_at.
func (c Conditions) FailedAttempts(ctx context.Context, idb bun.IDB, within time.Duration, most int) (map[string]Tally, error) {
	failed := make(map[string]Tally)
	err := EachRow(ctx, idb, func(rows *sql.Rows) error {
		var name string
		var t Tally
		err := rows.Scan(&name, &t.Count, &t.Since)
		failed[name] = t
		return err
	}, "SELECT consumer_name, COUNT(*), MIN(created) FROM (SELECT consumer_name, "+c.d.Micros("created_at")+
		" AS created FROM bc_delivery_attempt WHERE created_at > "+c.d.After+" ORDER BY created_at DESC LIMIT ?) AS t GROUP BY consumer_name",
		-dialect.Micro(within), most)
	return failed, err
}

// NewestDeliveries are those of a consumer among the newest of all.
type NewestDeliveries struct {
	Consumer  string
	Count     int64
	Succeeded int64 // those of them that have succeeded since the time that was asked for
	Oldest    int64 // when the first of them was made
}

// NewestDeliveries counts, by consumer, so many of the newest deliveries, by the primary key.
func (c Conditions) NewestDeliveries(ctx context.Context, idb bun.IDB, since int64, among int) (found []NewestDeliveries, err error) {
	err = EachRow(ctx, idb, func(rows *sql.Rows) error {
		var n NewestDeliveries
		err := rows.Scan(&n.Consumer, &n.Count, &n.Succeeded, &n.Oldest)
		found = append(found, n)
		return err
	}, "SELECT consumer_name, COUNT(*), COUNT(CASE WHEN status = 'SUCCESS' AND consumed > ? THEN 1 END), MIN(created) FROM "+
		"(SELECT consumer_name, status, "+c.d.Micros("consumed_at")+" AS consumed, "+c.d.Micros("created_at")+" AS created "+
		"FROM "+deliveryTable+" ORDER BY id DESC LIMIT ?) AS t GROUP BY consumer_name",
		since, among)
	return found, err
}
