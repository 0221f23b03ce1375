// Package monolith puts the demo together: five modules, one outbox, one bus, the jobs.
package monolith

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/alert"
	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consistency"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/demo/bluecone/database"
	"github.com/bluecone-go/bluecone/demo/bluecone/faults"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/coupon"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/order"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/payment"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/points"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/wallet"
	"github.com/bluecone-go/bluecone/demo/bluecone/settings"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
	"github.com/bluecone-go/bluecone/reaper"
)

// Options say what kind of instance it is.
type Options struct {
	DB           *bun.DB
	Settings     settings.Settings
	Node         string                                      // names the instance in leases and logs; Default: host and process
	Logger       *slog.Logger                                // Default: slog.Default().
	NoPublisher  bool                                        // saves events and delivers none
	OnDeadLetter func(ctx context.Context, d bus.DeadLetter) // raises the alert
	Register     func(b *bus.Bus) error                      // adds consumers beside those of the modules; Default: none.
	Points       *points.Client                              // asks the points where they have moved to. Default: they are here.
}

const (
	// lease is short, so that what a killed instance had in flight does not wait long.
	lease = 5 * time.Second
	poll  = 200 * time.Millisecond
	// grace can be next to nothing: an order's state and its event become visible in the
	// same instant, because they are one transaction.
	grace = time.Millisecond
	// keep is the outbox retention, at least as long as any check's window.
	keep = 7 * 24 * time.Hour
)

// App is one instance of the monolith.
type App struct {
	DB     *bun.DB
	Outbox *outbox.Outbox
	Faults *faults.Set
	Ops    *ops.Ops
	Pace   *Pace
	Modules
	Jobs

	runners []bus.Runner
}

// Modules are those with a facade; the fifth, payment, has none but for orders.
type Modules struct {
	Orders  *order.Service
	Wallet  *wallet.Facade
	Points  points.Accounts
	Coupons *coupon.Facade

	points *points.Facade // nil if the points have moved out
}

// Jobs are what runs on a schedule, and the publisher.
type Jobs struct {
	Publisher   *outbox.Publisher
	Reaper      *reaper.Reaper
	Consistency *consistency.Consistency
	Retention   *outbox.Retention
	Alerter     *alert.Alerter
}

// New makes the tables if they are missing, and wires everything.
func New(ctx context.Context, o Options) (*App, error) {
	if err := database.Up(ctx, o.DB); err != nil {
		return nil, err
	}
	a := &App{DB: o.DB, Faults: &faults.Set{}}
	var err error
	if a.Outbox, err = outbox.New(o.DB, outbox.Config{
		MaxRetryCount: o.Settings.MaxRetryCount, Instance: o.Node, Logger: o.Logger,
	}); err != nil {
		return nil, err
	}
	if err := a.modules(o); err != nil {
		return nil, err
	}
	b := bus.New(o.DB, bus.Config{Logger: o.Logger, OnDeadLetter: o.OnDeadLetter})
	coupon.Register(b, a.Coupons, a.Faults)
	wallet.Register(b, a.Wallet, a.Faults)
	if a.points != nil {
		points.Register(b, a.points, a.Faults)
	}
	if o.Register != nil {
		if err := o.Register(b); err != nil {
			return nil, err
		}
	}
	return a, a.jobs(o, b)
}

// modules makes the five modules and gives the orders the others' facades.
func (a *App) modules(o Options) (err error) {
	if a.Wallet, err = wallet.New(a.DB); err != nil {
		return err
	}
	if o.Points != nil {
		a.Points = o.Points
	} else if a.points, err = points.New(a.DB); err != nil {
		return err
	} else {
		a.Points = a.points
	}
	if a.Coupons, err = coupon.New(a.DB); err != nil {
		return err
	}
	payments := payment.New()
	a.Orders, err = order.New(a.DB, a.Outbox, order.Assets{
		Grant: a.grant,
		WalletCents: func(ctx context.Context, idb bun.IDB, userID string) (int64, error) {
			b, err := a.Wallet.Get(ctx, idb, userID)
			return b.AvailableCents, err
		},
		Points: func(ctx context.Context, idb bun.IDB, userID string) (int64, error) {
			b, err := a.Points.Get(ctx, idb, userID)
			return b.Available, err
		},
		Coupon: func(ctx context.Context, idb bun.IDB, couponID string) (string, int64, bool, error) {
			c, err := a.Coupons.Get(ctx, idb, couponID)
			return c.UserID, c.Cents, c.Status == coupon.Issued, err
		},
		RecordPayment: func(ctx context.Context, tx bun.Tx, payNo, orderID string) error {
			err := payments.Record(ctx, tx, payNo, orderID)
			if errors.Is(err, payment.ErrOther) {
				return fmt.Errorf("%w: %w", order.ErrPayNoUsed, err)
			}
			return err
		},
		FreezeFailed: a.freezeFailed,
	})
	return err
}

func (a *App) jobs(o Options, b *bus.Bus) (err error) {
	a.Publisher, err = outbox.NewPublisher(a.Outbox, b, outbox.PublisherConfig{
		BatchSize: o.Settings.BatchSize, Cron: o.Settings.PublisherCron, Lease: lease, Poll: poll,
	})
	if err != nil {
		return err
	}
	orders := a.Orders.LockOwner()
	locks := []reaper.Task{a.Wallet.FreezeTask(orders), a.Coupons.LockTask(orders)}
	if a.points != nil {
		locks = append(locks, a.points.FreezeTask(orders))
	} else {
		locks = append(locks, a.Orders.PointsTask(orders, points.Consumer))
	}
	a.Reaper, err = reaper.New(a.DB, a.Outbox, reaper.Config{
		Cron: o.Settings.ReaperCron, LockTimeout: o.Settings.LockTimeout, Instance: a.Outbox.Instance(), Logger: o.Logger,
	}, locks...)
	if err != nil {
		return err
	}
	checks := append(consistency.BuiltIn(), a.Orders.PaidCheck(), a.Orders.RefundCheck())
	a.Consistency, err = consistency.New(a.DB, consistency.Config{
		Cron: o.Settings.CheckCron, ScanWindow: o.Settings.ScanWindow, Grace: grace, Retention: max(keep, o.Settings.ScanWindow),
		Instance: a.Outbox.Instance(), Logger: o.Logger,
	}, checks...)
	if err != nil {
		return err
	}
	a.Retention, err = outbox.NewRetention(a.Outbox, outbox.RetentionConfig{Keep: max(keep, o.Settings.ScanWindow)})
	if err != nil {
		return err
	}
	if a.Alerter, err = newAlerter(a, o); err != nil {
		return err
	}
	if err := a.operations(o); err != nil {
		return err
	}
	a.Pace = &Pace{outbox: a.Outbox, ops: a.Ops}
	a.runners = []bus.Runner{a.Reaper, a.Consistency, a.Retention, a.Alerter, a.Ops, a.Pace}
	if !o.NoPublisher {
		a.runners = append(a.runners, a.Publisher)
	}
	return err
}

// grant opens a user's accounts in one transaction.
func (a *App) grant(ctx context.Context, tx bun.Tx, userID string, walletCents, pts int64, coupons map[string]int64) error {
	err := errors.Join(a.Wallet.Open(ctx, tx, userID, walletCents), a.Points.Open(ctx, tx, userID, pts))
	for id, cents := range coupons {
		err = errors.Join(err, a.Coupons.Issue(ctx, tx, id, userID, cents))
	}
	return err
}

// freezeFailed reports whether a delivery of the order's checkout to a module is DEAD.
func (a *App) freezeFailed(ctx context.Context, orderID string) (bool, error) {
	e := order.CheckoutLocked{OrderID: order.ID(orderID)}
	records, err := a.Outbox.Log().ByEvents(ctx, outbox.EventID(0, e.EventType(), e.IdempotencyKey()))
	if err != nil {
		return false, err
	}
	for _, r := range records {
		if r.Status == consumelog.Dead && slices.Contains([]string{coupon.Consumer, wallet.Consumer, points.Consumer}, r.Consumer) {
			return true, nil
		}
	}
	return false, nil
}

// Run works until ctx ends, and drains.
func (a *App) Run(ctx context.Context) error {
	return bus.Run(ctx, a.runners...)
}

// Stats counts events and deliveries by state.
type Stats struct {
	Outbox     map[outbox.Status]int64     `json:"outbox"`
	Deliveries map[consumelog.Status]int64 `json:"deliveries"`
}

// Stats reads the counts.
func (a *App) Stats(ctx context.Context) (s Stats, err error) {
	if s.Outbox, err = a.Outbox.Counts(ctx); err != nil {
		return s, err
	}
	s.Deliveries, err = a.Outbox.Log().Counts(ctx)
	return s, err
}

// Open counts what the engine still works on.
func (s Stats) Open() int64 {
	return s.Outbox[outbox.StatusNew] + s.Outbox[outbox.StatusScheduled] + s.Outbox[outbox.StatusDispatching] + s.Outbox[outbox.StatusFailed] +
		s.Deliveries[consumelog.Pending] + s.Deliveries[consumelog.Processing] + s.Deliveries[consumelog.Failed]
}

// Verify lists broken invariants of all modules.
func (a *App) Verify(ctx context.Context) ([]string, error) {
	money, err := a.Wallet.Verify(ctx)
	if err != nil || a.points == nil {
		return money, err
	}
	pts, err := a.points.Verify(ctx)
	return append(money, pts...), err
}
