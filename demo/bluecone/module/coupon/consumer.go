package coupon

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/demo/bluecone/faults"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/order"
)

// Consumer is the coupons' name in the consume log.
const Consumer = "CouponConsumer"

// Register makes the coupons follow the orders. A refund does not return a coupon.
func Register(b *bus.Bus, f *Facade, faulty *faults.Set) {
	// Continue: an order whose freeze is DEAD can be canceled, and its cancellation must get through.
	c := b.Consumer(Consumer, bus.ConsumerConfig{DeadPolicy: bus.Continue})
	bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[order.CheckoutLocked]) error {
		p := m.Payload
		return record(ctx, m, faulty, key(string(p.OrderID), "checkout"), p.CouponID, func() (string, error) {
			return f.Lock(ctx, tx, string(p.CouponID), string(p.OrderID))
		})
	})
	bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[order.Paid]) error {
		p := m.Payload
		return record(ctx, m, faulty, key(string(p.OrderID), "commit"), p.CouponID, func() (string, error) {
			return f.Commit(ctx, tx, string(p.CouponID), string(p.OrderID))
		})
	})
	bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[order.Canceled]) error {
		p := m.Payload
		return record(ctx, m, faulty, key(string(p.OrderID), "release"), p.CouponID, func() (string, error) {
			return f.Release(ctx, tx, string(p.OrderID))
		})
	})
}

func record[E bus.Event](ctx context.Context, m bus.Message[E], faulty *faults.Set, idemKey string, couponID order.ID,
	op func() (string, error),
) error {
	if err := faulty.Hit(ctx, Consumer); err != nil {
		return err
	}
	m.RecordKey(idemKey)
	if couponID == "" {
		m.RecordResult(NoCoupon)
		return nil
	}
	result, err := op()
	m.RecordResult(map[string]any{"result": result, "couponId": couponID})
	return err
}
