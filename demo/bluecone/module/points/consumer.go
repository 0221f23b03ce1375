package points

import (
	"context"
	"errors"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/demo/bluecone/faults"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/order"
)

// Consumer is the points' name in the consume log.
const Consumer = "PointsConsumer"

// revertRetry is how often a refund looks whether there is something to revert yet.
const revertRetry = 300 * time.Millisecond

// movement is one step of a delivery; a step of 0 points is left out.
type movement struct {
	points int64
	move   func() (string, error)
}

// Register makes the points follow the orders.
func Register(b *bus.Bus, f *Facade, faulty *faults.Set) {
	// Continue: an order whose freeze is DEAD can be canceled, and its cancellation must get through.
	c := b.Consumer(Consumer, bus.ConsumerConfig{DeadPolicy: bus.Continue})
	bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[order.CheckoutLocked]) error {
		p := m.Payload
		return record(ctx, m, faulty, key(string(p.OrderID), "freeze"), movement{p.PointsUsed, func() (string, error) {
			return f.Freeze(ctx, tx, string(p.OrderID), string(p.UserID), p.PointsUsed)
		}})
	})
	bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[order.Paid]) error {
		p := m.Payload
		return record(ctx, m, faulty, key(string(p.OrderID), "paid"), movement{p.PointsUsed, func() (string, error) {
			return f.Commit(ctx, tx, string(p.OrderID), string(p.UserID), p.PointsUsed)
		}}, movement{p.PointsEarned, func() (string, error) {
			return f.Earn(ctx, tx, string(p.OrderID), string(p.UserID), p.PointsEarned)
		}})
	})
	bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[order.Canceled]) error {
		p := m.Payload
		return record(ctx, m, faulty, key(string(p.OrderID), "release"), movement{p.PointsUsed, func() (string, error) {
			return f.Release(ctx, tx, string(p.OrderID))
		}})
	})
	bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[order.Refunded]) error {
		p := m.Payload
		return record(ctx, m, faulty, key(string(p.RefundID), "refunded"), movement{p.PointsUsed, func() (string, error) {
			return f.RevertUsed(ctx, tx, string(p.RefundID), string(p.OrderID), string(p.UserID), p.PointsUsed)
		}}, movement{p.PointsEarned, func() (string, error) {
			return f.RevertEarned(ctx, tx, string(p.RefundID), string(p.OrderID), string(p.UserID), p.PointsEarned)
		}})
	})
}

// record runs the movements and records what they were.
func record[E bus.Event](ctx context.Context, m bus.Message[E], faulty *faults.Set, idemKey string, steps ...movement) error {
	if err := faulty.Hit(ctx, Consumer); err != nil {
		return err
	}
	m.RecordKey(idemKey)
	var results []string
	var points []int64
	for _, s := range steps {
		if s.points == 0 {
			continue
		}
		result, err := s.move()
		if errors.Is(err, ErrNotYet) {
			return bus.RetryAfter(err, revertRetry)
		}
		if err != nil {
			return err
		}
		results, points = append(results, result), append(points, s.points)
	}
	if len(results) == 0 {
		m.RecordResult(NoPoints)
		return nil
	}
	m.RecordResult(map[string]any{"result": results, "points": points})
	return nil
}
