package story

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/demo/bluecone/module/coupon"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/order"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/points"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/wallet"
	"github.com/bluecone-go/bluecone/demo/bluecone/monolith"
	"github.com/bluecone-go/bluecone/outbox"
)

func lockTimeout(ctx context.Context, w *world) error {
	short := func(o *monolith.Options) { o.Settings.LockTimeout = time.Second }
	return w.with(ctx, short, func(app *monolith.App) error {
		u, abandoned, err := w.place(ctx, app)
		if err != nil {
			return err
		}
		paying, paid, err := w.place(ctx, app)
		if err != nil {
			return err
		}
		if err := quiet(ctx, app); err != nil {
			return err
		}
		if err := app.Faults.Put(wallet.Consumer, "error", 0); err != nil {
			return err
		}
		if _, err := app.Orders.Pay(ctx, paid.OrderID, "pay-"+paid.OrderID, false); err != nil {
			return err
		}
		inBackoff := line(9000, 1000, 0, 345, 0, "USED")
		err = until(ctx, "coupon and points of the paid order", func() (bool, error) {
			got, err := assets(ctx, app, paying.UserID)
			return got == inBackoff, err
		})
		if err != nil {
			return err
		}
		w.step("one order is abandoned; the other is paid, but WalletConsumer fails and is in backoff")
		err = until(ctx, "the abandoned order's locks to be released", func() (bool, error) {
			if _, err := app.Reap(ctx); err != nil {
				return false, err
			}
			got, err := assets(ctx, app, u.UserID)
			return got == untouched, err
		})
		if err != nil {
			return err
		}
		w.step("locks older than 1 s are released, and their order is CANCELED")
		if err := w.expectAssets(ctx, app, u.UserID, untouched); err != nil {
			return err
		}
		if err := w.expectAssets(ctx, app, paying.UserID, inBackoff); err != nil {
			return err
		}
		return w.payAfterAll(ctx, app, abandoned, paying.UserID)
	})
}

// payAfterAll lets the paid order's wallet recover, and tries to pay the abandoned one.
func (w *world) payAfterAll(ctx context.Context, app *monolith.App, abandoned order.Order, userID string) error {
	if err := app.Faults.Put(wallet.Consumer, "off", 0); err != nil {
		return err
	}
	_, err := app.Orders.Pay(ctx, abandoned.OrderID, "pay-"+abandoned.OrderID, false)
	var refusal *order.Error
	if !errors.As(err, &refusal) {
		return fmt.Errorf("the abandoned order is paid after all: %w", err)
	}
	w.check("ORDER_CANCELED", refusal.Code)
	w.step("WalletConsumer recovers")
	if err := quiet(ctx, app); err != nil {
		return err
	}
	said, err := released(ctx, app, abandoned.OrderID)
	if err != nil {
		return err
	}
	w.check("CouponConsumer NO_LOCK, PointsConsumer NO_FREEZE, WalletConsumer NO_FREEZE", said)
	if err := w.expectAssets(ctx, app, userID, afterPay); err != nil {
		return err
	}
	return w.expectSound(ctx, app)
}

// released is what the consumers of order.canceled say that they have given back.
func released(ctx context.Context, app *monolith.App, orderID string) (string, error) {
	e := order.Canceled{OrderID: order.ID(orderID)}
	deliveries, err := app.Outbox.Log().ByEvents(ctx, outbox.EventID(0, e.EventType(), e.IdempotencyKey()))
	said := make([]string, len(deliveries))
	for i, d := range deliveries {
		said[i] = d.Consumer + " " + d.Result
		for _, nothing := range []string{coupon.Nothing, points.Nothing, wallet.Nothing} {
			if strings.Contains(d.Result, nothing) {
				said[i] = d.Consumer + " " + nothing
			}
		}
	}
	slices.Sort(said)
	return strings.Join(said, ", "), err
}

func lostEvent(ctx context.Context, w *world) error {
	return w.with(ctx, nil, func(app *monolith.App) error {
		u, o, err := w.place(ctx, app)
		if err != nil {
			return err
		}
		if err := quiet(ctx, app); err != nil {
			return err
		}
		if _, err := app.Orders.Pay(ctx, o.OrderID, "pay-"+o.OrderID, true); err != nil {
			return err
		}
		w.step("the order is PAID, but order.paid is lost")
		if err := w.expectAssets(ctx, app, u.UserID, line(9000, 1000, 0, 300, 200, "LOCKED")); err != nil {
			return err
		}
		report, err := app.Repair(ctx, "order.paid")
		// it leaves alone what is only just paid
		for deadline := time.Now().Add(5 * time.Second); err == nil && report["order.paid"].Found == 0 && time.Now().Before(deadline); {
			report, err = app.Repair(ctx, "order.paid")
		}
		if err != nil {
			return err
		}
		w.check("1 found, 1 repaired", fmt.Sprintf("%d found, %d repaired", report["order.paid"].Found, report["order.paid"].Repaired))
		if err := quiet(ctx, app); err != nil {
			return err
		}
		if err := w.expectAssets(ctx, app, u.UserID, afterPay); err != nil {
			return err
		}
		late := order.Paid{
			OrderID: order.ID(o.OrderID), UserID: order.ID(u.UserID), CouponID: order.ID(u.CouponIDs[0]), TotalCents: 5000,
			WalletAmount: 1000, PointsUsed: 200, PointsEarned: 45,
		}
		err = app.DB.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error { return app.Outbox.Save(ctx, tx, late) })
		if err != nil {
			return err
		}
		w.step("the original event turns up late")
		if err := quiet(ctx, app); err != nil {
			return err
		}
		again, err := app.Repair(ctx, "order.paid")
		if err != nil {
			return err
		}
		w.check("nothing left to repair", either(again["order.paid"].Found == 0, "nothing left to repair", fmt.Sprint(again)))
		return w.expectAssets(ctx, app, u.UserID, afterPay)
	})
}
