package alert

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
)

// look is one look at the tables. Every statement of it is served by an index, and reads at most
// countCap+1 rows of each kind.
type look struct {
	db  bun.IDB
	d   dialect.Dialect
	cfg Config
	now int64 // by the database's clock, in microseconds

	consumers []consumer
	queued    []store.Queue // that are not empty
	found     []signal
}

// all looks for every condition that all instances share.
func (l *look) all(ctx context.Context) ([]signal, error) {
	if err := l.db.QueryRowContext(ctx, "SELECT "+l.d.Micros(l.d.Now)).Scan(&l.now); err != nil {
		return nil, fmt.Errorf("read the time: %w", err)
	}
	for _, part := range []struct {
		what string
		do   func(ctx context.Context) error
	}{{"consumers", l.readConsumers}, {"deliveries", l.deliveries}, {"events", l.events}, {"attempts", l.attempts}, {"jobs", l.jobs}} {
		if err := part.do(ctx); err != nil {
			return nil, fmt.Errorf("look at the %s: %w", part.what, err)
		}
	}
	return l.found, nil
}

func (l *look) add(s signal) { l.found = append(l.found, s) }

// age is how long ago a time is.
func (l *look) age(since int64) time.Duration {
	return max(time.Duration(l.now-since)*time.Microsecond, 0)
}

// exceeds reports whether an age is over a limit that is not turned off.
func exceeds(age, limit time.Duration) bool { return limit >= 0 && age > limit }

// each runs a query and scans every row.
func (l *look) each(ctx context.Context, scan func(scan func(dest ...any) error) error, query string, args ...any) error {
	rows, err := l.db.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// events finds those that nobody has got yet, and those that wait for an operator.
func (l *look) events(ctx context.Context) error {
	const table = "bc_outbox_event"
	since := l.d.Micros("created_at")
	kind := func(kind, where, since string) string {
		return "SELECT '" + kind + "' AS kind, event_type, COUNT(*), MIN(since) FROM (SELECT event_type, " + since + " AS since FROM " +
			l.d.Due(table) + " WHERE status <> 'SENT' AND " + where + " LIMIT ?) AS t GROUP BY event_type"
	}
	query := kind("new", "status = 'NEW'", since) + " UNION ALL " +
		// of a delayed event nobody knows any more when it was due: for such, the claim counts
		kind("leased", "status = 'DISPATCHING'", "CASE WHEN retry_count = 0 THEN "+l.d.Micros("updated_at")+" ELSE "+since+" END") +
		" UNION ALL " +
		kind("due", "status = 'SCHEDULED' AND last_error IS NULL AND next_retry_at <= "+l.d.Now, l.d.Micros("next_retry_at")) + " UNION ALL " +
		kind("parked", "status = 'SCHEDULED' AND last_error IS NOT NULL", since) + " UNION ALL " +
		kind("dead", "status = 'DEAD' AND NOT EXISTS (SELECT 1 FROM bc_event_consume_log c WHERE c.event_id = e.event_id AND c.status = 'DEAD')",
			l.d.Micros("updated_at"))
	const most = countCap + 1
	waiting := make(map[string]tally)
	err := l.each(ctx, func(scan func(...any) error) error {
		var kind, eventType string
		var t tally
		if err := scan(&kind, &eventType, &t.count, &t.since); err != nil {
			return err
		}
		limits := l.cfg.limits("", eventType)
		switch kind {
		case "parked":
			if exceeds(l.age(t.since), limits.Unconsumed) {
				l.add(signal{
					rule: RuleUnconsumed, eventType: eventType, count: t.count, since: t.since,
					says: upTo(t.count, "event", "events") + " of the type " + eventType + " wait, and no consumer of that type is registered",
				})
			}
		case "dead":
			if limits.Dead > 0 && t.count >= limits.Dead {
				l.add(signal{
					rule: RuleDead, eventType: eventType, count: t.count, since: t.since,
					says: upTo(t.count, "event", "events") + " of the type " + eventType + " are DEAD without a DEAD delivery, and wait for an operator",
				})
			}
		default:
			waiting[eventType] = waiting[eventType].plus(t)
		}
		return nil
	}, query, most, most, most, most, most)
	if err != nil {
		return err
	}
	return l.waiting(ctx, waiting)
}

// tally is how many, since when.
type tally struct{ count, since int64 }

func (t tally) plus(o tally) tally {
	if t.count == 0 || (o.count > 0 && o.since < t.since) {
		t.since = o.since
	}
	t.count += o.count
	return t
}

// waiting judges events that are due and that no consumer has got, by type.
func (l *look) waiting(ctx context.Context, byType map[string]tally) error {
	var all tally
	for eventType, t := range byType {
		all = all.plus(t)
		if age := l.age(t.since); exceeds(age, l.cfg.limits("", eventType).OldestAge) {
			l.add(signal{
				rule: RuleLate, eventType: eventType, count: t.count, since: t.since,
				says: fmt.Sprintf("the oldest of %s of the type %s has been waiting for %s to be delivered", upTo(t.count, "event", "events"),
					eventType, span(age)),
			})
		}
	}
	limit := l.cfg.Limits.Stalled
	if all.count == 0 || !exceeds(l.age(all.since), limit) {
		return nil
	}
	var last int64 // what was delivered latest is among the newest rows, unless only retries succeed
	err := l.db.QueryRowContext(ctx,
		"SELECT COALESCE(MAX(consumed), 0) FROM (SELECT status, "+l.d.Micros("consumed_at")+" AS consumed FROM bc_event_consume_log ORDER BY "+
			"id DESC LIMIT 1000) AS t WHERE status IN ('SUCCESS', 'SKIPPED')").Scan(&last)
	if err != nil || !exceeds(l.age(last), limit) {
		return err
	}
	l.add(signal{
		rule: RuleStalled, subject: "deliveries", count: all.count, since: max(last, all.since),
		says: fmt.Sprintf("%s due, and nothing has been delivered for %s", upTo(all.count, "event is", "events are"),
			span(l.age(max(last, all.since)))),
	})
	return nil
}
