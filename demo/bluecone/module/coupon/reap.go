package coupon

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/reaper"
)

// LockTask frees coupons whose locks have outlived their time to live.
func (f *Facade) LockTask() reaper.Task {
	return reaper.Task{
		Name: "coupon.lock",
		Find: f.expired,
		Release: func(ctx context.Context, tx bun.Tx, l reaper.Lock) (bool, error) {
			result, err := f.Release(ctx, tx, l.AggregateID)
			return result == OK, err
		},
	}
}

func (f *Facade) expired(ctx context.Context, db bun.IDB, q reaper.Query) ([]reaper.Lock, error) {
	rows, err := db.QueryContext(ctx, "SELECT order_id, "+f.d.Micros(f.d.Now)+" - "+f.d.Micros("locked_at")+" FROM demo_coupon_lock WHERE status = 'LOCKED' AND locked_at <= "+f.d.After+
		" AND order_id > ? ORDER BY order_id LIMIT ?", -dialect.Micro(q.OlderThan), q.After, q.Limit)
	if err != nil {
		return nil, fmt.Errorf("coupon locks: %w", err)
	}
	defer rows.Close()
	var locks []reaper.Lock
	for rows.Next() {
		l := reaper.Lock{AggregateType: "ORDER"}
		var age int64
		if err := rows.Scan(&l.ID, &age); err != nil {
			return nil, fmt.Errorf("coupon locks: %w", err)
		}
		l.AggregateID, l.Age = l.ID, time.Duration(age)*time.Microsecond
		locks = append(locks, l)
	}
	return locks, rows.Err()
}
