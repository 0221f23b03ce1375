package points

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/demo/bluecone/database"
)

// handover names the row that says that the points have moved.
const handover = "points"

// unsealed counts the events of which a process that had the points may still be about to commit an effect.
const unsealed = `SELECT COUNT(*) FROM bc_outbox_event e WHERE e.event_type IN ('order.checkout_locked', 'order.paid', 'order.canceled',
	'order.refunded') AND e.status <> 'SENT' AND NOT EXISTS (SELECT 1 FROM bc_event_consume_log l
	WHERE l.event_id = e.event_id AND l.consumer_name = 'PointsConsumer' AND l.status <> 'PROCESSING')`

// ErrOpen means that an event of before may still have its effect where the points come from.
var ErrOpen = errors.New("events are still under way")

// Move copies the points of another database, in which their consumer is paused and no process has them any more, and records the
// position of the hand-over; unless that was done. It answers [ErrOpen] as long as it is too early.
func (f *Facade) Move(ctx context.Context, from *bun.DB) error {
	if moved, err := f.moved(ctx, f.db); err != nil || moved {
		return err
	}
	var open, position int64
	if err := from.QueryRowContext(ctx, unsealed).Scan(&open); err != nil || open > 0 {
		return errors.Join(err, fmt.Errorf("%w: %d of them", ErrOpen, open))
	}
	if err := from.QueryRowContext(ctx, "SELECT COALESCE(MAX(id), 0) FROM bc_outbox_event").Scan(&position); err != nil {
		return fmt.Errorf("points: position: %w", err)
	}
	there, err := New(from)
	if err != nil {
		return err
	}
	return f.db.RunInTx(ctx, f.d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO demo_points_handover (name, position) VALUES (?, ?)", handover, position)
		if err != nil {
			return fmt.Errorf("points: record the hand-over: %w", err)
		}
		for _, c := range columns() {
			if err := f.copyTable(ctx, tx, there, c); err != nil {
				return fmt.Errorf("points: copy %s: %w", c.table, err)
			}
		}
		return nil
	})
}

func (f *Facade) moved(ctx context.Context, idb bun.IDB) (bool, error) {
	var n int
	err := idb.QueryRowContext(ctx, "SELECT COUNT(*) FROM demo_points_handover WHERE name = ?", handover).Scan(&n)
	return n > 0, err
}

// table is what is copied of a table: texts, numbers, and a time if it has one.
type table struct {
	table          string
	texts, numbers []string
	time           string
}

func columns() []table {
	return []table{
		{"demo_points", []string{"user_id"}, []string{"available", "frozen"}, ""},
		{"demo_points_freeze", []string{"order_id", "user_id", "status"}, []string{"points"}, "frozen_at"},
		{"demo_points_ledger", []string{"idem_key", "user_id", "order_id"}, []string{"d_available", "d_frozen"}, "created_at"},
	}
}

// copyTable copies the rows of a table of another database, which may be of another kind.
func (f *Facade) copyTable(ctx context.Context, tx bun.Tx, there *Facade, t table) error {
	names, read := append(append([]string{}, t.texts...), t.numbers...), ""
	for _, n := range names {
		read += n + ", "
	}
	at := "0"
	if t.time != "" {
		names, at = append(names, t.time), there.d.Micros(t.time)
	}
	rows, err := there.db.QueryContext(ctx, "SELECT "+read+at+" FROM "+t.table)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		values, err := t.scan(rows, f.d)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO "+t.table+" ("+strings.Join(names, ", ")+") VALUES (?)", bun.List(values))
		if err != nil {
			return err
		}
	}
	return rows.Err()
}

// scan reads a row as the values that another database takes.
func (t table) scan(rows *sql.Rows, d database.Dialect) (values []any, err error) {
	texts, numbers, at := make([]string, len(t.texts)), make([]int64, len(t.numbers)), int64(0)
	var into []any
	for i := range texts {
		into = append(into, &texts[i])
	}
	for i := range numbers {
		into = append(into, &numbers[i])
	}
	if err := rows.Scan(append(into, &at)...); err != nil {
		return nil, err
	}
	for _, s := range texts {
		values = append(values, s)
	}
	for _, n := range numbers {
		values = append(values, n)
	}
	if t.time != "" {
		values = append(values, d.Instant(time.UnixMicro(at)))
	}
	return values, nil
}
