package points

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/reaper"
)

// FreezeTask releases freezes that have outlived their time to live, if the order they belong to lets them go.
func (f *Facade) FreezeTask(orders *reaper.Owner) reaper.Task {
	return reaper.Task{
		Name: "points.freeze", Owner: orders, Consumer: Consumer,
		Find: func(ctx context.Context, db bun.IDB, q reaper.Query) ([]reaper.Lock, error) {
			return f.frozen(ctx, db, "?", q.Page("frozen_at", "demo_points_freeze.order_id"))
		},
		Of: func(ctx context.Context, idb bun.IDB, a reaper.Aggregate) ([]reaper.Lock, error) {
			return f.frozen(ctx, idb, "order_id = ?", a.ID)
		},
		Release: func(ctx context.Context, tx bun.Tx, l reaper.Lock) (bool, error) {
			result, err := f.Release(ctx, tx, l.AggregateID)
			return result == OK, err
		},
	}
}

// frozen lists freezes, by their order ids.
func (f *Facade) frozen(ctx context.Context, idb bun.IDB, where string, args ...any) ([]reaper.Lock, error) {
	rows, err := idb.QueryContext(ctx, "SELECT order_id, ? FROM demo_points_freeze WHERE status = 'FROZEN' AND "+where,
		append([]any{reaper.Age("frozen_at")}, args...)...)
	if err != nil {
		return nil, fmt.Errorf("points: freezes: %w", err)
	}
	defer rows.Close()
	var locks []reaper.Lock
	for rows.Next() {
		l := reaper.Lock{AggregateType: "ORDER"}
		var age int64
		if err := rows.Scan(&l.ID, &age); err != nil {
			return nil, fmt.Errorf("points: freezes: %w", err)
		}
		l.AggregateID, l.Age = l.ID, time.Duration(age)*time.Microsecond
		locks = append(locks, l)
	}
	return locks, rows.Err()
}
