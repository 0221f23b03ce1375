package invariant

import (
	"context"
	"fmt"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// own are the questions about the bus's own tables.
func (c *checker) own() []question { return append(c.completenessAndOrder(), c.states()...) }

// What questions call the tables, and the condition that a delivery waits.
const (
	log     = "bc_event_consume_log l"
	events  = "bc_outbox_event e"
	waiting = "l.status IN ('PENDING', 'FAILED', 'PROCESSING')"
)

// completenessAndOrder asks whether everybody gets everything, and in order.
func (c *checker) completenessAndOrder() []question {
	return []question{
		{
			invariant: "I4 completeness", // SENT means that nobody waits
			query: "SELECT l.event_id, l.consumer_name AS consumer, l.status AS says FROM " + log + " JOIN " + events +
				" ON e.event_id = l.event_id " +
				"WHERE e.status = 'SENT' AND l.status NOT IN ('SUCCESS', 'SKIPPED')",
		},
		{
			invariant: "I4 completeness", quiet: true, // every event has come to its end
			query: "SELECT e.event_id, '' AS consumer, e.status AS says FROM " + events + " WHERE e.status NOT IN ('SENT', 'DEAD')",
		},
		{
			invariant: "I4 completeness", quiet: true, // and so has every delivery
			query: "SELECT l.event_id, l.consumer_name AS consumer, l.status AS says FROM " + log +
				" WHERE l.status NOT IN ('SUCCESS', 'SKIPPED', 'DEAD')",
		},
		{
			invariant: "I4 completeness", quiet: true, // nobody who was registered has been left out
			query: "SELECT e.event_id, t.consumer_name AS consumer, 'has never got it' AS says FROM " + events +
				" JOIN bc_consumer_type t ON t.event_type = e.event_type " +
				"JOIN bc_consumer c ON c.name = t.consumer_name AND c.registered_at < e.created_at " +
				"LEFT JOIN " + log + " ON l.event_id = e.event_id AND l.consumer_name = t.consumer_name WHERE e.status = 'SENT' AND l.id IS NULL",
		},
		{
			invariant: "I7 order", // a delivery has succeeded although an earlier one of the same consumer has not
			query: "SELECT event_id, consumer_name AS consumer, 'an earlier one waits' AS says FROM (SELECT l.event_id, l.consumer_name, " +
				"l.status, l.outbox_id, MIN(CASE WHEN " + waiting + " THEN l.outbox_id END) " +
				"OVER (PARTITION BY l.consumer_name, COALESCE(l.tenant_id, 0), l.aggregate_type, l.aggregate_id) AS first_waiting FROM " + log +
				// in one pass: a join of the log with itself takes for ever
				" WHERE l.aggregate_id IS NOT NULL AND l.consumer_name NOT IN (?) AND l.consumer_name NOT LIKE '%@replay') AS o WHERE status = " +
				"'SUCCESS' AND outbox_id > first_waiting",
			args: []any{bun.List(append([]string{""}, c.cfg.Effects.Unordered...))},
		},
	}
}

// states asks whether states and leases are as they may be.
func (c *checker) states() []question {
	return []question{
		{
			invariant: "I8 no stuck lease",
			query: "SELECT e.event_id, '' AS consumer, COALESCE(e.locked_by, '') AS says FROM " + events +
				" WHERE e.status = 'DISPATCHING' AND e.next_retry_at < " + c.d.After,
			args: []any{-dialect.Micro(c.cfg.Stuck)},
		},
		{
			invariant: "I8 no stuck lease",
			query: "SELECT l.event_id, l.consumer_name AS consumer, COALESCE(l.locked_by, '') AS says FROM " + log +
				" WHERE l.status = 'PROCESSING' AND l.next_retry_at < " + c.d.After,
			args: []any{-dialect.Micro(c.cfg.Stuck)},
		},
		{
			invariant: "I11 known states",
			query: "SELECT e.event_id, '' AS consumer, e.status AS says FROM " + events +
				" WHERE e.status NOT IN ('NEW', 'SCHEDULED', 'DISPATCHING', 'SENT', 'FAILED', 'DEAD')",
		},
		{
			invariant: "I11 known states",
			query: "SELECT l.event_id, l.consumer_name AS consumer, l.status AS says FROM " + log +
				" WHERE l.status NOT IN ('PENDING', 'PROCESSING', 'FAILED', 'SUCCESS', 'DEAD', 'SKIPPED')",
		},
		{
			invariant: "I20 retention takes only what is done",
			query: "SELECT l.event_id, l.consumer_name AS consumer, l.status AS says FROM " + log + " LEFT JOIN " + events +
				" ON e.event_id = l.event_id " +
				"WHERE e.id IS NULL AND (" + waiting + " OR l.status = 'DEAD')",
		},
	}
}

// effects are the questions about what handlers noted.
func (c *checker) effects() []question {
	table := c.cfg.Effects.Table + " x"
	return []question{
		{
			invariant: "I5 no effect twice",
			query: "SELECT x.event_id, x.consumer, 'more than one effect' AS says FROM " + table +
				" GROUP BY x.event_id, x.consumer HAVING COUNT(*) > 1",
		},
		{
			invariant: "I6 an effect if and only if SUCCESS", // asked in one statement: both sides of one moment
			query: "SELECT x.event_id, x.consumer, 'an effect without SUCCESS' AS says FROM " + table +
				" LEFT JOIN bc_event_consume_log l ON l.event_id = x.event_id AND l.consumer_name = x.consumer AND l.status = 'SUCCESS' WHERE l.id " +
				"IS NULL" +
				" AND NOT EXISTS (SELECT 1 FROM bc_event_consume_log_archive a WHERE a.event_id = x.event_id AND a.consumer_name = x.consumer AND " +
				"a.status = 'SUCCESS')",
		},
		withoutEffect("bc_event_consume_log", table),
		withoutEffect("bc_event_consume_log_archive", table),
		{
			invariant: "I7 order",
			query: "SELECT event_id, consumer, 'an effect out of turn' AS says FROM (SELECT x.event_id, x.consumer, x.seq, LAG(x.seq) OVER " +
				"(PARTITION BY x.consumer, x.aggregate ORDER BY x.id) AS earlier FROM " + table +
				" WHERE x.consumer NOT IN (?)) AS o WHERE earlier > seq",
			args: []any{bun.List(append([]string{""}, c.cfg.Effects.Unordered...))},
		},
	}
}

func withoutEffect(log, table string) question {
	return question{
		invariant: "I6 an effect if and only if SUCCESS",
		query: "SELECT l.event_id, l.consumer_name AS consumer, 'SUCCESS without an effect' AS says FROM " + log + " l LEFT JOIN " + table +
			" ON x.event_id = l.event_id AND x.consumer = l.consumer_name WHERE l.status = 'SUCCESS' AND x.event_id IS NULL",
	}
}

// history compares what producers were told with what there is.
func (c *checker) history(ctx context.Context) ([]Violation, error) {
	h := c.cfg.History
	ids := append(append([]string{}, h.Committed...), h.Failed...)
	for id := range h.Unknown {
		ids = append(ids, id)
	}
	there, err := c.existing(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("invariant: history: %w", err)
	}
	var out []Violation
	say := func(invariant, id, says string) {
		if len(out) < c.cfg.Most {
			out = append(out, Violation{Invariant: invariant, EventID: id, Says: says})
		}
	}
	for _, id := range h.Committed {
		if !there[id] {
			say("I1 no committed event lost", id, "was committed, and is gone")
		}
	}
	for _, id := range h.Failed {
		if there[id] {
			say("I2 no ghost", id, "its transaction failed, and it exists")
		}
	}
	for id, business := range h.Unknown {
		if business != there[id] {
			say("I3 unknown is consistent", id, fmt.Sprintf("its business row exists: %v, the event: %v", business, there[id]))
		}
	}
	return out, nil
}

// existing tells which events there are, or were before retention or DeleteSent.
func (c *checker) existing(ctx context.Context, ids []string) (map[string]bool, error) {
	there := make(map[string]bool, len(ids))
	for len(ids) > 0 {
		n := min(len(ids), 500)
		for _, table := range []string{"bc_outbox_event", "bc_outbox_event_archive", "bc_event_consume_log"} {
			rows, err := c.db.QueryContext(ctx, "SELECT event_id FROM "+table+" WHERE event_id IN (?)", bun.List(ids[:n]))
			if err != nil {
				return nil, err
			}
			for rows.Next() {
				var id string
				if err := rows.Scan(&id); err != nil {
					_ = rows.Close()
					return nil, err
				}
				there[id] = true
			}
			if err := rows.Close(); err != nil {
				return nil, err
			}
		}
		ids = ids[n:]
	}
	return there, nil
}
