package view

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
)

// Broken is an event that breaks a rule, for a consumer or for none, and a word on how.
type Broken struct{ EventID, Consumer, Says string }

// Question asks which events break a rule. Unless its function names an index it reads whole tables: nobody asks it while
// the deployment has better things to do.
type Question struct {
	query string // columns event_id, consumer, says
	args  []any
}

// Ask lists what breaks a rule, so many events at most.
func Ask(ctx context.Context, r Reader, q Question, most int) (found []Broken, err error) {
	err = r.Rows(ctx, func(rows *sql.Rows) error {
		var b Broken
		err := rows.Scan(&b.EventID, &b.Consumer, &b.Says)
		if err == nil {
			found = append(found, b)
		}
		return err
	}, "SELECT event_id, consumer, says FROM ("+q.query+") AS v LIMIT ?", append(slices.Clone(q.args), most)...)
	return found, err
}

// What questions call the tables, and the condition that a delivery waits.
const (
	logL    = string(Deliveries) + " l"
	eventsE = string(Events) + " e"
	waiting = "l.status IN ('PENDING', 'FAILED', 'PROCESSING')"
)

// SentTooEarly asks for SENT events with a delivery that is not over.
func SentTooEarly() Question {
	return Question{query: "SELECT l.event_id, l.consumer_name AS consumer, l.status AS says FROM " + logL + " JOIN " + eventsE +
		" ON e.event_id = l.event_id WHERE e.status = 'SENT' AND l.status NOT IN ('SUCCESS', 'SKIPPED')"}
}

// OpenEvents asks for events that have not come to their end.
func OpenEvents() Question {
	return Question{query: "SELECT e.event_id, '' AS consumer, e.status AS says FROM " + eventsE + " WHERE e.status NOT IN ('SENT', 'DEAD')"}
}

// OpenDeliveries asks for deliveries that have not come to their end.
func OpenDeliveries() Question {
	return Question{query: "SELECT l.event_id, l.consumer_name AS consumer, l.status AS says FROM " + logL +
		" WHERE l.status NOT IN ('SUCCESS', 'SKIPPED', 'DEAD')"}
}

// LeftOut asks for SENT events without a delivery to a consumer that was registered for their type before they were saved.
func LeftOut() Question {
	return Question{query: "SELECT e.event_id, t.consumer_name AS consumer, 'has never got it' AS says FROM " + eventsE +
		" JOIN bc_consumer_type t ON t.event_type = e.event_type " +
		"JOIN bc_consumer c ON c.name = t.consumer_name AND " + store.RegisteredFor("c", "t") + " < e.created_at " +
		"LEFT JOIN " + logL + " ON l.event_id = e.event_id AND l.consumer_name = t.consumer_name WHERE e.status = 'SENT' AND l.id IS NULL"}
}

// OutOfOrder asks for deliveries that have succeeded although an earlier one of the same aggregate and consumer waits, but for
// consumers to whom the order does not matter. It reads the log once: a join of the log with itself would take for ever.
func OutOfOrder(unordered []string) Question {
	return Question{"SELECT event_id, consumer_name AS consumer, 'an earlier one waits' AS says FROM (SELECT l.event_id, l.consumer_name, " +
		"l.status, l.outbox_id, MIN(CASE WHEN " + waiting + " THEN l.outbox_id END) " +
		"OVER (PARTITION BY l.consumer_name, COALESCE(l.tenant_id, 0), l.aggregate_type, l.aggregate_id) AS first_waiting FROM " + logL +
		" WHERE l.aggregate_id IS NOT NULL AND l.consumer_name NOT IN (?) AND l.consumer_name NOT LIKE '%@replay') AS o WHERE status = " +
		"'SUCCESS' AND outbox_id > first_waiting", []any{bun.List(append([]string{""}, unordered...))}}
}

// StuckEvents asks for events whose lease ended longer ago than this.
func StuckEvents(d dialect.Dialect, ago time.Duration) Question {
	return Question{"SELECT e.event_id, '' AS consumer, COALESCE(e.locked_by, '') AS says FROM " + eventsE +
		" WHERE e.status = 'DISPATCHING' AND e.next_retry_at < " + d.After, []any{-dialect.Micro(ago)}}
}

// StuckDeliveries asks for deliveries whose lease ended longer ago than this.
func StuckDeliveries(d dialect.Dialect, ago time.Duration) Question {
	return Question{"SELECT l.event_id, l.consumer_name AS consumer, COALESCE(l.locked_by, '') AS says FROM " + logL +
		" WHERE l.status = 'PROCESSING' AND l.next_retry_at < " + d.After, []any{-dialect.Micro(ago)}}
}

// UnknownEventStatus asks for events with a status that nobody knows.
func UnknownEventStatus() Question {
	return Question{query: "SELECT e.event_id, '' AS consumer, e.status AS says FROM " + eventsE +
		" WHERE e.status NOT IN ('NEW', 'SCHEDULED', 'DISPATCHING', 'SENT', 'FAILED', 'DEAD')"}
}

// UnknownDeliveryStatus asks for deliveries with a status that nobody knows.
func UnknownDeliveryStatus() Question {
	return Question{query: "SELECT l.event_id, l.consumer_name AS consumer, l.status AS says FROM " + logL +
		" WHERE l.status NOT IN ('PENDING', 'PROCESSING', 'FAILED', 'SUCCESS', 'DEAD', 'SKIPPED')"}
}

// Orphans asks for deliveries that are not over and whose event is gone.
func Orphans() Question {
	return Question{query: "SELECT l.event_id, l.consumer_name AS consumer, l.status AS says FROM " + logL + " LEFT JOIN " + eventsE +
		" ON e.event_id = l.event_id WHERE e.id IS NULL AND (" + waiting + " OR l.status = 'DEAD')"}
}

// Existing lists which events there are in a table, by uk_event_id, or idx_event_id of an archive.
func Existing(ctx context.Context, r Reader, in Table, eventIDs []string) ([]string, error) {
	return r.texts(ctx, "SELECT event_id FROM "+string(in)+" WHERE event_id IN (?)", bun.List(eventIDs))
}
