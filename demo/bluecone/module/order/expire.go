package order

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"

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
	return reaper.Task{
		Name: "order.points", Owner: owner, Consumer: consumer,
		Find: func(ctx context.Context, db bun.IDB, q reaper.Query) ([]reaper.Lock, error) {
			return s.holding(ctx, db, "?", q.Page("created_at", "demo_order.id"))
		},
		Of: func(ctx context.Context, idb bun.IDB, a reaper.Aggregate) ([]reaper.Lock, error) {
			return s.holding(ctx, idb, "id = ?", a.ID)
		},
		Release: func(ctx context.Context, tx bun.Tx, l reaper.Lock) (bool, error) {
			o, err := s.read(ctx, tx, l.AggregateID, s.d.ForUpdate)
			return o.Status == WaitPay, err // giveUp cancels it
		},
	}
}

// holding lists orders that wait for their payment and have points, as locks of their own.
func (s *Service) holding(ctx context.Context, idb bun.IDB, where string, args ...any) ([]reaper.Lock, error) {
	rows, err := idb.QueryContext(ctx, "SELECT id, ? FROM demo_order WHERE status = 'WAIT_PAY' AND points > 0 AND "+where,
		append([]any{reaper.Age("created_at")}, args...)...)
	if err != nil {
		return nil, fmt.Errorf("order: those with points: %w", err)
	}
	defer rows.Close()
	var locks []reaper.Lock
	for rows.Next() {
		l := reaper.Lock{AggregateType: "ORDER"}
		var age int64
		if err := rows.Scan(&l.ID, &age); err != nil {
			return nil, fmt.Errorf("order: those with points: %w", err)
		}
		l.AggregateID, l.Age = l.ID, time.Duration(age)*time.Microsecond
		locks = append(locks, l)
	}
	return locks, rows.Err()
}
