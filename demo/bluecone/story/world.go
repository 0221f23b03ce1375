package story

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/dburl"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/order"
	"github.com/bluecone-go/bluecone/demo/bluecone/monolith"
	"github.com/bluecone-go/bluecone/demo/bluecone/web"
	"github.com/bluecone-go/bluecone/outbox"
)

// start runs an instance of the monolith in this process, on a pool of its own. stop drains it.
func (w *world) start(ctx context.Context, change func(*monolith.Options)) (app *monolith.App, stop func() error, err error) {
	db, err := dburl.Open(ctx, w.DSN)
	if err != nil {
		return nil, nil, err
	}
	o := monolith.Options{DB: db, Settings: w.Settings, Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&o)
	}
	if app, err = monolith.New(ctx, o); err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- app.Run(ctx) }()
	return app, func() error { cancel(); return errors.Join(<-done, db.Close()) }, nil
}

// with plays with an instance of the monolith that is stopped afterwards.
func (w *world) with(ctx context.Context, change func(*monolith.Options), play func(app *monolith.App) error) error {
	app, stop, err := w.start(ctx, change)
	if err != nil {
		return err
	}
	return errors.Join(play(app), stop())
}

// user makes a user with 100.00 in the wallet, 500 points and a coupon of 3.00.
func (w *world) user(ctx context.Context, app *monolith.App) (order.User, error) {
	u, err := app.Orders.CreateUser(ctx, "", order.NewUser{WalletCents: 10_000, Points: 500, CouponCents: []int64{300}})
	if err == nil {
		w.users[u.UserID] = w.now
		w.order = append(w.order, u.UserID)
		w.step("user %s has 100.00 in the wallet, 500 points and a coupon of 3.00", short(u.UserID))
	}
	return u, err
}

// place makes a user place the usual order: 50.00, of which coupon 3.00, wallet 10.00, 200 points.
func (w *world) place(ctx context.Context, app *monolith.App) (u order.User, o order.Order, err error) {
	if u, err = w.user(ctx, app); err != nil {
		return u, o, err
	}
	o, err = app.Orders.Create(ctx, "", order.NewOrder{
		UserID: u.UserID, TotalCents: 5000, WalletCents: 1000, Points: 200, CouponID: u.CouponIDs[0],
	})
	if err == nil {
		w.step("order %s of 50.00 is %s: coupon 3.00, wallet 10.00, 200 points, %s to pay", short(o.OrderID), o.Status, money(o.PayableCents))
	}
	return u, o, err
}

// quiet waits until nothing is open any more.
func quiet(ctx context.Context, app *monolith.App) error {
	return until(ctx, "every event to be delivered", func() (bool, error) {
		s, err := app.Stats(ctx)
		return err == nil && s.Open() == 0, err
	})
}

// until polls ok until it answers true.
func until(ctx context.Context, what string, ok func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	for {
		if done, err := ok(); err != nil || done {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited in vain for %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// assets reads everything a user has, as one comparable line.
func assets(ctx context.Context, app *monolith.App, userID string) (string, error) {
	a, err := web.AssetsOf(ctx, app, userID)
	if err != nil {
		return "", err
	}
	coupons := make([]string, len(a.Coupons))
	for i, c := range a.Coupons {
		coupons[i] = c.Status
	}
	return line(a.Wallet.AvailableCents, a.Wallet.FrozenCents, a.Wallet.SpentCents, a.Points.Available, a.Points.Frozen, coupons...), nil
}

func line(available, frozen, spent, points, frozenPoints int64, coupons ...string) string {
	return fmt.Sprintf("wallet %s free, %s frozen, %s spent; points %d+%d; %s", money(available), money(frozen), money(spent), points,
		frozenPoints, strings.Join(coupons, "/"))
}

// expectAssets compares what a user has.
func (w *world) expectAssets(ctx context.Context, app *monolith.App, userID, expected string) error {
	got, err := assets(ctx, app, userID)
	if err == nil {
		w.check(expected, got)
	}
	return err
}

// expectSound compares the invariants of all modules with none being broken.
func (w *world) expectSound(ctx context.Context, app *monolith.App) error {
	broken, err := app.Verify(ctx)
	if err == nil {
		w.check("bookings and balances agree", either(len(broken) == 0, "bookings and balances agree", strings.Join(broken, "; ")))
	}
	return err
}

// deliveries counts the deliveries of an order's events by their status.
func deliveries(ctx context.Context, app *monolith.App, orderID string) (map[consumelog.Status]int, []outbox.Record, error) {
	events, err := app.Outbox.Events(ctx, outbox.Filter{AggregateType: "ORDER", AggregateID: orderID})
	if err != nil {
		return nil, nil, err
	}
	counts := make(map[consumelog.Status]int)
	for _, e := range events {
		records, err := app.Outbox.Log().ByEvents(ctx, e.EventID)
		if err != nil {
			return nil, nil, err
		}
		for _, r := range records {
			counts[r.Status]++
		}
	}
	return counts, events, nil
}

// balances prints what the users of the story have in the end.
func (w *world) balances(ctx context.Context) error {
	app, err := monolith.New(ctx, monolith.Options{DB: w.db, Settings: w.Settings})
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintln(w.Out, "\nFinal balances")
	t := tabwriter.NewWriter(w.Out, 2, 0, 2, ' ', 0)
	for _, id := range w.order {
		got, err := assets(ctx, app, id)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(t, "  %s\t%s\t%s\n", short(id), w.users[id], got)
	}
	return t.Flush()
}

func money(cents int64) string { return fmt.Sprintf("%d.%02d", cents/100, cents%100) }

// short is the part of an id that differs.
func short(id string) string { return id[max(len(id)-6, 0):] }

func either(ok bool, yes, no string) string {
	if ok {
		return yes
	}
	return no
}
