package order

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/demo/bluecone/database"
	"github.com/bluecone-go/bluecone/outbox"
	"github.com/bluecone-go/bluecone/reaper"
)

// LockOwner speaks for orders when their locks have outlived their time to live.
func (s *Service) LockOwner() *reaper.Owner {
	return &reaper.Owner{Guard: s.letsGo, Released: s.giveUp}
}

// letsGo locks the order, and keeps the locks of one that is paid.
func (s *Service) letsGo(ctx context.Context, tx bun.Tx, a reaper.Aggregate) (bool, error) {
	o, err := s.read(ctx, tx, a.ID, s.d.ForUpdate)
	return o.Status == WaitPay || o.Status == StCancel, err
}

// giveUp cancels an order whose locks are gone: WAIT_PAY → CANCELED, and order.canceled.
func (s *Service) giveUp(ctx context.Context, tx bun.Tx, a reaper.Aggregate) error {
	o, err := s.read(ctx, tx, a.ID, s.d.ForUpdate)
	if err != nil || o.Status != WaitPay {
		return err
	}
	return s.cancel(ctx, tx, &o, outbox.Meta("source", "lock_timeout"))
}

// PointsTask stands for freezes of points that a consumer of another program keeps: an order with points that waits for its payment
// holds them. Once it has waited too long it is canceled, and order.canceled gives them back there.
func (s *Service) PointsTask(owner *reaper.Owner, consumer string) reaper.Task {
	locks := database.OrderLocks{Table: "demo_order", Order: "id", Since: "created_at", Held: "status = 'WAIT_PAY' AND points > 0"}
	return reaper.Task{
		Name: "order.points", Owner: owner, Consumer: consumer,
		Find: locks.Find, Of: locks.Of,
		Release: func(ctx context.Context, tx bun.Tx, l reaper.Lock) (bool, error) {
			o, err := s.read(ctx, tx, l.AggregateID, s.d.ForUpdate)
			return o.Status == WaitPay, err // giveUp cancels it
		},
	}
}
