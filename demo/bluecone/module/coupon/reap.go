package coupon

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/demo/bluecone/database"
	"github.com/bluecone-go/bluecone/reaper"
)

// LockTask frees coupons whose locks have outlived their time to live, if the order they belong to lets them go.
func (f *Facade) LockTask(orders *reaper.Owner) reaper.Task {
	locks := database.OrderLocks{Table: "demo_coupon_lock", Order: "order_id", Since: "locked_at", Held: "status = 'LOCKED'"}
	return reaper.Task{
		Name: "coupon.lock", Owner: orders, Consumer: Consumer,
		Find: locks.Find, Of: locks.Of,
		Release: func(ctx context.Context, tx bun.Tx, l reaper.Lock) (bool, error) {
			result, err := f.Release(ctx, tx, l.AggregateID)
			return result == OK, err
		},
	}
}
