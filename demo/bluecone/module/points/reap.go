package points

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/demo/bluecone/database"
	"github.com/bluecone-go/bluecone/reaper"
)

// FreezeTask releases freezes that have outlived their time to live, if the order they belong to lets them go.
func (f *Facade) FreezeTask(orders *reaper.Owner) reaper.Task {
	locks := database.OrderLocks{Table: "demo_points_freeze", Order: "order_id", Since: "frozen_at", Held: "status = 'FROZEN'"}
	return reaper.Task{
		Name: "points.freeze", Owner: orders, Consumer: Consumer,
		Find: locks.Find, Of: locks.Of,
		Release: func(ctx context.Context, tx bun.Tx, l reaper.Lock) (bool, error) {
			result, err := f.Release(ctx, tx, l.AggregateID)
			return result == OK, err
		},
	}
}
