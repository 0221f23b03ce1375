package story

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/points"
	"github.com/bluecone-go/bluecone/demo/bluecone/monolith"
	"github.com/bluecone-go/bluecone/outbox"
)

// afterPay is what the usual user has after the usual order is paid: 45 points are earned.
var afterPay = line(9000, 0, 1000, 345, 0, "USED") //nolint:gochecknoglobals // a constant

// untouched is what the usual user has without any order.
var untouched = line(10000, 0, 0, 500, 0, "ISSUED") //nolint:gochecknoglobals // a constant

func checkoutPay(ctx context.Context, w *world) error {
	return w.with(ctx, nil, func(app *monolith.App) error {
		u, o, err := w.place(ctx, app)
		if err != nil {
			return err
		}
		if err := quiet(ctx, app); err != nil {
			return err
		}
		if err := w.expectAssets(ctx, app, u.UserID, line(9000, 1000, 0, 300, 200, "LOCKED")); err != nil {
			return err
		}
		if _, err := app.Orders.Pay(ctx, o.OrderID, "pay-"+o.OrderID, false); err != nil {
			return err
		}
		w.step("the payment callback arrives")
		if err := quiet(ctx, app); err != nil {
			return err
		}
		if err := w.expectAssets(ctx, app, u.UserID, afterPay); err != nil {
			return err
		}
		return w.expectSound(ctx, app)
	})
}

func cancelOrder(ctx context.Context, w *world) error {
	return w.with(ctx, nil, func(app *monolith.App) error {
		u, o, err := w.place(ctx, app)
		if err != nil {
			return err
		}
		if _, err := app.Orders.Cancel(ctx, o.OrderID); err != nil {
			return err
		}
		w.step("the order is canceled, perhaps before its assets are even frozen")
		if err := quiet(ctx, app); err != nil {
			return err
		}
		_, err = app.Orders.Pay(ctx, o.OrderID, "late", false)
		w.check("a late payment is refused", either(err != nil, "a late payment is refused", "it was taken"))
		return w.expectAssets(ctx, app, u.UserID, untouched)
	})
}

func refundOrder(ctx context.Context, w *world) error {
	return w.with(ctx, nil, func(app *monolith.App) error {
		u, o, err := w.place(ctx, app)
		if err != nil {
			return err
		}
		if _, err := app.Orders.Pay(ctx, o.OrderID, "pay-"+o.OrderID, false); err != nil {
			return err
		}
		if _, err := app.Orders.Refund(ctx, o.OrderID, "refund-"+o.OrderID); err != nil {
			return err
		}
		w.step("the order is paid and refunded at once: the refund may overtake the payment's deliveries")
		if err := quiet(ctx, app); err != nil {
			return err
		}
		if err := w.expectAssets(ctx, app, u.UserID, line(10000, 0, 0, 500, 0, "USED")); err != nil {
			return err
		}
		return w.expectSound(ctx, app)
	})
}

func duplicateCallback(ctx context.Context, w *world) error {
	return w.with(ctx, nil, func(app *monolith.App) error {
		u, o, err := w.place(ctx, app)
		if err != nil {
			return err
		}
		const callbacks = 20
		answers := make([]string, callbacks)
		var wg sync.WaitGroup
		for i := range callbacks {
			wg.Go(func() {
				paid, err := app.Orders.Pay(ctx, o.OrderID, "pay-"+o.OrderID, false)
				if answers[i] = paid.Status; err != nil {
					answers[i] = err.Error()
				}
			})
		}
		wg.Wait()
		w.step("%d callbacks came at the same time", callbacks)
		same := strings.Count(strings.Join(answers, " "), "PAID")
		w.check("20 answers PAID", fmt.Sprintf("%d answers PAID", same))
		if err := quiet(ctx, app); err != nil {
			return err
		}
		_, events, err := deliveries(ctx, app, o.OrderID)
		if err != nil {
			return err
		}
		w.check("2 events", fmt.Sprintf("%d events", len(events)))
		return w.expectAssets(ctx, app, u.UserID, afterPay)
	})
}

func poison(ctx context.Context, w *world) error {
	alerts := make(chan bus.DeadLetter, 10)
	raise := func(_ context.Context, d bus.DeadLetter) { alerts <- d }
	return w.with(ctx, func(o *monolith.Options) { o.OnDeadLetter = raise }, func(app *monolith.App) error {
		u, o, err := w.place(ctx, app)
		if err != nil {
			return err
		}
		if err := quiet(ctx, app); err != nil {
			return err
		}
		if err := app.Faults.Put(points.Consumer, "permanent", 0); err != nil {
			return err
		}
		if _, err := app.Orders.Pay(ctx, o.OrderID, "pay-"+o.OrderID, false); err != nil {
			return err
		}
		w.step("PointsConsumer refuses order.paid for good")
		if err := quiet(ctx, app); err != nil {
			return err
		}
		counts, events, err := deliveries(ctx, app, o.OrderID)
		if err != nil {
			return err
		}
		w.check("5 SUCCESS, 1 DEAD", fmt.Sprintf("%d SUCCESS, %d DEAD", counts[consumelog.Success], counts[consumelog.Dead]))
		var alerted string
		select {
		case d := <-alerts:
			alerted = d.Consumer + " " + d.Envelope.Type
		default:
		}
		w.check("alert: PointsConsumer order.paid", "alert: "+alerted)
		if err := w.expectAssets(ctx, app, u.UserID, line(9000, 0, 1000, 300, 200, "USED")); err != nil {
			return err
		}
		return w.repair(ctx, app, u.UserID, events[len(events)-1])
	})
}

// repair fixes the poisoned consumer and retries, as an operator would.
func (w *world) repair(ctx context.Context, app *monolith.App, userID string, dead outbox.Record) error {
	if err := app.Faults.Put(points.Consumer, "off", 0); err != nil {
		return err
	}
	if err := app.Outbox.Retry(ctx, outbox.Operation{Actor: "demo", Reason: "PointsConsumer is repaired"}, dead.EventID); err != nil {
		return err
	}
	w.step("the consumer is repaired and an operator retries the delivery")
	if err := quiet(ctx, app); err != nil {
		return err
	}
	return w.expectAssets(ctx, app, userID, afterPay)
}
