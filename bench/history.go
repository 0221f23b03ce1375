package main

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"

	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

// histories runs W4: the drain and the latency with more and more SENT rows, and while an old
// snapshot keeps the database from clearing up.
func histories(ctx context.Context, o options, m *machine, rs *results) error {
	n := o.events * 3 / 10
	for range o.runs {
		for _, sent := range o.history {
			name := strconv.Itoa(sent) + " SENT rows"
			if err := oneHistory(ctx, o, m, rs, name, n, func(ctx context.Context, db *database) error {
				return db.addHistory(ctx, sent)
			}); err != nil {
				return fmt.Errorf("W4 %s: %w", name, err)
			}
		}
		if m.dialect == "sqlite" {
			continue // its readers keep nothing from being reused but the WAL
		}
		for _, held := range []bool{false, true} {
			name := map[bool]string{false: "no snapshot held", true: "old snapshot held"}[held]
			err := oneHistory(ctx, o, m, rs, name, n, func(ctx context.Context, db *database) error {
				if err := db.addHistory(ctx, o.history[0]); err != nil || !held {
					return err
				}
				return db.holdSnapshot(ctx)
			})
			if err != nil {
				return fmt.Errorf("W4 %s: %w", name, err)
			}
		}
	}
	return nil
}

func oneHistory(ctx context.Context, o options, m *machine, rs *results, name string, n int,
	before func(context.Context, *database) error,
) error {
	d, err := oneDrain(ctx, o, m, drainer{
		name: "W4", consumers: consumers, ordered: true,
		prepare: func(ctx context.Context, db *database, n int) (func(context.Context) error, error) {
			if err := migrations.Up(ctx, db.bun()); err != nil {
				return nil, err
			}
			if err := before(ctx, db); err != nil {
				return nil, err
			}
			return engines((*engine).ordinarySQL, outbox.PublisherConfig{})(ctx, db, n)
		},
	}, n)
	if err != nil {
		return err
	}
	rs.add("W4", m.dialect, name+", drain", "events/s", float64(n)/d.took.Seconds())
	l, err := oneLatency(ctx, m, messenger{start: engineCourier}, 200, o.length/2, before)
	if err != nil {
		return err
	}
	l.add(rs, "W4", m.dialect, name+", 200/s")
	return nil
}

// addHistory makes n events that were sent, ten of an aggregate, with the delivery of one consumer each.
func (d *database) addHistory(ctx context.Context, n int) error {
	numbers := d.pick(
		"SELECT seq AS i FROM seq_1_to_"+strconv.Itoa(n),
		"SELECT i FROM generate_series(1, "+strconv.Itoa(n)+") AS g(i)",
		"WITH RECURSIVE g(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM g WHERE i < "+strconv.Itoa(n)+") SELECT i FROM g")
	id := d.pick("CONCAT('h-', i)", "'h-' || i", "'h-' || i")
	aggregate := d.pick("CONCAT('h-', i DIV 10)", "'h-' || i / 10", "'h-' || i / 10")
	sentAt := d.pick("UTC_TIMESTAMP(6)", "statement_timestamp()", "strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'")
	return d.exec(ctx,
		"INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, status, lock_version, sent_at) "+
			"SELECT 'ORDER', "+aggregate+", 'order.paid', "+id+", '{\"filler\": \""+filler+"\"}', 'SENT', 2, "+sentAt+" FROM ("+numbers+") AS n",
		"INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, aggregate_type, aggregate_id, attempts) "+
			"SELECT 'Consumer0', "+id+", 'order.paid', 'ORDER', "+aggregate+", 1 FROM ("+numbers+") AS n")
}

// holdSnapshot opens a transaction that goes on seeing the database as it is now, as a backup does.
func (d *database) holdSnapshot(ctx context.Context) error {
	tx, err := d.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return err
	}
	d.held = tx
	var n int
	return tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM bc_outbox_event WHERE id < 10").Scan(&n)
}
