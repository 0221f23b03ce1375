package main

import (
	"context"
	"encoding/json"
	"fmt"
)

// originalDrain is the loop of the original design, on the tables of today but without its ten
// seconds between two rounds: one event after the other, all consumers in one transaction.
func originalDrain(ctx context.Context, db *database, n int) (func(context.Context) error, error) {
	e, err := newEngine(ctx, db)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		for {
			left, err := originalRound(ctx, db)
			if err != nil || left == 0 {
				return err
			}
		}
	}, e.fill(ctx, n)
}

type originalEvent struct {
	id               int64
	eventID, payload string
}

func originalRound(ctx context.Context, db *database) (int, error) {
	// SQLite uses its index only if it is told that these are not SENT.
	rows, err := db.QueryContext(ctx,
		"SELECT id, event_id, "+db.pick("event_payload", "event_payload::text", "event_payload")+
			" FROM bc_outbox_event WHERE status = 'NEW' AND status <> 'SENT' ORDER BY next_retry_at, id LIMIT 100")
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	var events []originalEvent
	for rows.Next() {
		var ev originalEvent
		if err := rows.Scan(&ev.id, &ev.eventID, &ev.payload); err != nil {
			return 0, err
		}
		events = append(events, ev)
	}
	if err := rows.Err(); err != nil {
		return 0, err
	}
	for _, ev := range events {
		if err := originalEventOnce(ctx, db, ev); err != nil {
			return 0, err
		}
	}
	return len(events), nil
}

func originalEventOnce(ctx context.Context, db *database, ev originalEvent) error {
	var e paid
	if err := json.Unmarshal([]byte(ev.payload), &e); err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	for c := range consumers {
		name := fmt.Sprintf("Consumer%d", c)
		var seen int
		if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM bc_event_consume_log WHERE consumer_name = "+db.mark(1)+
			" AND event_id = "+db.mark(2), name, ev.eventID).Scan(&seen); err != nil {
			return err
		}
		if seen > 0 {
			continue
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO effect (consumer, agg, seq) VALUES "+db.tuples(1, 3), c, e.OrderID, e.Seq); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type) VALUES "+db.tuples(1, 3),
			name, ev.eventID, "order.paid"); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, "UPDATE bc_outbox_event SET status = 'SENT' WHERE id = "+db.mark(1), ev.id); err != nil {
		return err
	}
	return tx.Commit()
}
