package points

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/reaper"
)

// FreezeTask releases freezes that have outlived their time to live.
func (f *Facade) FreezeTask() reaper.Task {
	return reaper.Task{
		Name: "points.freeze",
		Find: func(ctx context.Context, db bun.IDB, q reaper.Query) ([]reaper.Lock, error) {
			return expired(ctx, db, f.d, "demo_points_freeze", q)
		},
		Release: func(ctx context.Context, tx bun.Tx, l reaper.Lock) (bool, error) {
			result, err := f.Release(ctx, tx, l.AggregateID)
			return result == OK, err
		},
	}
}

// expired lists FROZEN rows that are old enough, by their order ids.
func expired(ctx context.Context, db bun.IDB, d dialect.Dialect, table string, q reaper.Query) ([]reaper.Lock, error) {
	rows, err := db.QueryContext(ctx, "SELECT order_id, "+d.Micros(d.Now)+" - "+d.Micros("frozen_at")+" FROM "+table+
		" WHERE status = 'FROZEN' AND frozen_at <= "+d.After+" AND order_id > ? ORDER BY order_id LIMIT ?", -dialect.Micro(q.OlderThan), q.After, q.Limit)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", table, err)
	}
	defer rows.Close()
	var locks []reaper.Lock
	for rows.Next() {
		l := reaper.Lock{AggregateType: "ORDER"}
		var age int64
		if err := rows.Scan(&l.ID, &age); err != nil {
			return nil, fmt.Errorf("%s: %w", table, err)
		}
		l.AggregateID, l.Age = l.ID, time.Duration(age)*time.Microsecond
		locks = append(locks, l)
	}
	return locks, rows.Err()
}
