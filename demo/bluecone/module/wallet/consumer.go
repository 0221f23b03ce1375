package wallet

import (
	"context"
	"errors"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/demo/bluecone/faults"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/order"
)

// Consumer is the wallet's name in the consume log.
const Consumer = "WalletConsumer"

// revertRetry is how often a refund looks whether there is something to revert yet.
const revertRetry = 300 * time.Millisecond

// Register makes the wallet follow the orders.
func Register(b *bus.Bus, f *Facade, faulty *faults.Set) {
	// Continue: an order whose freeze is DEAD can be canceled, and its cancellation must get through.
	c := b.Consumer(Consumer, bus.ConsumerConfig{DeadPolicy: bus.Continue})
	bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[order.CheckoutLocked]) error {
		p := m.Payload
		return record(ctx, m, faulty, key(string(p.OrderID), "freeze"), p.WalletAmount, func() (string, error) {
			return f.Freeze(ctx, tx, string(p.OrderID), string(p.UserID), p.WalletAmount)
		})
	})
	bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[order.Paid]) error {
		p := m.Payload
		return record(ctx, m, faulty, key(string(p.OrderID), "commit"), p.WalletAmount, func() (string, error) {
			return f.Commit(ctx, tx, string(p.OrderID), string(p.UserID), p.WalletAmount)
		})
	})
	bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[order.Canceled]) error {
		p := m.Payload
		return record(ctx, m, faulty, key(string(p.OrderID), "release"), p.WalletAmount, func() (string, error) {
			return f.Release(ctx, tx, string(p.OrderID))
		})
	})
	bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[order.Refunded]) error {
		p := m.Payload
		return record(ctx, m, faulty, key(string(p.RefundID), "revert"), p.WalletAmount, func() (string, error) {
			return f.Revert(ctx, tx, string(p.RefundID), string(p.OrderID), string(p.UserID), p.WalletAmount)
		})
	})
}

// record runs a movement, unless the order uses no wallet, and records what it was.
func record[E bus.Event](ctx context.Context, m bus.Message[E], faulty *faults.Set, idemKey string, cents int64,
	move func() (string, error),
) error {
	if err := faulty.Hit(ctx, Consumer); err != nil {
		return err
	}
	m.RecordKey(idemKey)
	if cents == 0 {
		m.RecordResult(NoWallet)
		return nil
	}
	result, err := move()
	if errors.Is(err, ErrNotYet) {
		return bus.RetryAfter(err, revertRetry)
	}
	m.RecordResult(map[string]any{"result": result, "cents": cents})
	return err
}
