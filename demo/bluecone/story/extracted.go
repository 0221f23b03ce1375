package story

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/dburl"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/order"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/points"
	"github.com/bluecone-go/bluecone/demo/bluecone/monolith"
	"github.com/bluecone-go/bluecone/demo/httpserver"
	"github.com/bluecone-go/bluecone/ledger"
	"github.com/bluecone-go/bluecone/outbox"
)

const (
	movedPoints = 500 // of each user
	usedPoints  = 200 // for each order
	movedCents  = 5900
	// earnedPoints are those of an order: one for each 100 cents that are paid otherwise.
	earnedPoints = (movedCents - usedPoints) / 100
	movedOrders  = 4 // in each of three rounds
)

// extraction is the points on their way out of the monolith: each has a database, and the ledger is that of the monolith's.
type extraction struct {
	w    *world
	dir  string
	shop *process
	// ledger and points keep their addresses when they are started again.
	ledger, points               *process
	ledgerAddress, pointsAddress string

	db        *bun.DB // the monolith's
	orders    []order.Order
	wanted    map[string]int64 // points that are available in the end, by user
	movements int64            // rows of the points' ledger in the end
	left      int64            // rows of it in the monolith, when the points move
}

func extractedPoints(ctx context.Context, w *world) error {
	dir, err := os.MkdirTemp("", "bluecone-points-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	x := &extraction{w: w, dir: dir, wanted: make(map[string]int64)}
	return errors.Join(x.play(ctx), x.stop())
}

func (x *extraction) dsn(name string) string { return "sqlite://" + filepath.Join(x.dir, name+".db") }

func (x *extraction) startShop(ctx context.Context, args ...string) (err error) {
	x.shop, err = launch(ctx, append([]string{"serve", "--addr", "127.0.0.1:0", "--dsn", x.dsn("shop")}, args...)...)
	return err
}

func (x *extraction) startLedger(ctx context.Context) (err error) {
	x.ledger, err = launch(ctx, "ledger", "--addr", x.ledgerAddress, "--dsn", x.dsn("shop"), "--tokens", filepath.Join(x.dir, "tokens.json"))
	return err
}

func (x *extraction) startPoints(ctx context.Context) (err error) {
	x.points, err = launch(ctx, "points", "--addr", x.pointsAddress, "--dsn", x.dsn("points"), "--from", x.dsn("shop"),
		"--ledger", "http://"+x.ledgerAddress, "--token", filepath.Join(x.dir, "token"))
	return err
}

// prepare chooses addresses and a token.
func (x *extraction) prepare(ctx context.Context) (err error) {
	if x.ledgerAddress, err = httpserver.FreeAddress(ctx); err != nil {
		return err
	}
	if x.pointsAddress, err = httpserver.FreeAddress(ctx); err != nil {
		return err
	}
	token := rand.Text()
	callers, err := json.Marshal(map[string]ledger.Caller{token: {Name: "points", Consume: []string{points.Consumer}}})
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(x.dir, "token"), []byte(token), 0o600),
		os.WriteFile(filepath.Join(x.dir, "tokens.json"), callers, 0o600))
}

func (x *extraction) play(ctx context.Context) error {
	if err := errors.Join(x.prepare(ctx), x.startShop(ctx)); err != nil {
		return err
	}
	var err error
	if x.db, err = dburl.Open(ctx, x.dsn("shop")); err != nil {
		return err
	}
	if err := x.place(ctx); err != nil {
		return err
	}
	if err := x.settle(ctx, x.orders[:movedOrders/2]); err != nil {
		return err
	}
	if err := x.move(ctx); err != nil {
		return err
	}
	if err := x.murder(ctx); err != nil {
		return err
	}
	return x.compare(ctx)
}

// place has orders placed.
func (x *extraction) place(ctx context.Context) error {
	for range movedOrders {
		var u order.User
		if err := post(ctx, x.shop.base+"/users", order.NewUser{Points: movedPoints}, &u); err != nil {
			return err
		}
		var o order.Order
		err := post(ctx, x.shop.base+"/orders", order.NewOrder{UserID: u.UserID, TotalCents: movedCents, Points: usedPoints}, &o)
		if err != nil {
			return err
		}
		o.UserID = u.UserID
		x.orders = append(x.orders, o)
		x.movements += 2 // grant and freeze
	}
	x.w.step("%d orders of %s are placed, each with %d points", movedOrders, money(movedCents), usedPoints)
	return nil
}

// settle pays orders, of which it cancels every third before, and refunds every third afterwards.
func (x *extraction) settle(ctx context.Context, orders []order.Order) error {
	for i, o := range orders {
		path := x.shop.base + "/orders/" + o.OrderID
		if i%3 == 2 {
			if err := post(ctx, path+"/cancel", struct{}{}, nil); err != nil {
				return err
			}
			x.wanted[o.UserID] = movedPoints
			x.movements++ // release
			continue
		}
		if err := post(ctx, path+"/pay", map[string]string{"payNo": "pay-" + o.OrderID}, nil); err != nil {
			return err
		}
		x.wanted[o.UserID] = movedPoints - usedPoints + earnedPoints
		x.movements += 2 // commit and earn
		if i%3 == 1 {
			if err := post(ctx, path+"/refund", map[string]string{"refundId": "refund-" + o.OrderID}, nil); err != nil {
				return err
			}
			x.wanted[o.UserID] = movedPoints
			x.movements += 2 // what was used and what was earned
		}
	}
	x.w.step("%d of them are paid or canceled, and some refunded", len(orders))
	return nil
}

// operate pauses or resumes the points' consumer.
func (x *extraction) operate(do func(ob *outbox.Outbox, op outbox.Operation) error) error {
	ob, err := outbox.New(x.db, outbox.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	return do(ob, outbox.Operation{Actor: "the story", Reason: "the points move out"})
}

// move is docs/extracting-a-module.md, step by step, while orders go on.
func (x *extraction) move(ctx context.Context) error {
	if err := x.startLedger(ctx); err != nil {
		return err
	}
	err := x.operate(func(ob *outbox.Outbox, op outbox.Operation) error {
		return ob.Pause(ctx, op, points.Consumer, time.Hour)
	})
	if err != nil {
		return err
	}
	x.w.step("a ledger serves the monolith's database, and %s is paused", points.Consumer)
	if err := x.place(ctx); err != nil {
		return err
	}
	if err := x.shop.stop(); err != nil {
		return err
	}
	if err := x.startShop(ctx, "--points", "http://"+x.pointsAddress); err != nil {
		return err
	}
	x.w.step("the monolith is started again without the points")
	if err := x.settle(ctx, x.orders[movedOrders/2:movedOrders]); err != nil {
		return err
	}
	if err := x.startPoints(ctx); err != nil {
		return err
	}
	if x.left, err = number(ctx, x.db, "SELECT COUNT(*) FROM demo_points_ledger"); err != nil {
		return err
	}
	x.w.step("the points run in a process of their own: %d movements were copied, what came after the position waits", x.left)
	return x.operate(func(ob *outbox.Outbox, op outbox.Operation) error { return ob.Resume(ctx, op, points.Consumer) })
}

// murder kills the points and the ledger, one while the other works and both at once, while orders go on.
func (x *extraction) murder(ctx context.Context) error {
	if err := errors.Join(x.points.kill(), x.startPoints(ctx)); err != nil {
		return err
	}
	x.w.step("the points' process is killed with SIGKILL as soon as %s is resumed, and started again", points.Consumer)
	if err := x.place(ctx); err != nil {
		return err
	}
	if err := errors.Join(x.points.kill(), x.ledger.kill()); err != nil {
		return err
	}
	x.w.step("the points' process and the ledger are killed with SIGKILL")
	if err := x.settle(ctx, x.orders[movedOrders:]); err != nil {
		return err
	}
	if err := errors.Join(x.startPoints(ctx), x.startLedger(ctx)); err != nil {
		return err
	}
	x.w.step("the points are back, and then the ledger")
	return nil
}

// compare waits until everything is delivered, and compares the points of all users with what their orders say.
func (x *extraction) compare(ctx context.Context) error {
	var s monolith.Stats
	err := until(ctx, "every event to be delivered", func() (bool, error) {
		err := get(ctx, x.shop.base+"/stats", &s)
		return s.Open() == 0, err
	})
	if err != nil {
		return err
	}
	right := 0
	for id, wanted := range x.wanted {
		var got struct{ Points points.Balance }
		if err := get(ctx, x.shop.base+"/users/"+id+"/assets", &got); err != nil {
			return err
		}
		if got.Points == (points.Balance{Available: wanted}) {
			right++
		} else {
			x.w.step("user %s: expected %d points, got %+v", short(id), wanted, got.Points)
		}
	}
	const says = "%d of %d users have the points of their orders"
	x.w.check(fmt.Sprintf(says, len(x.orders), len(x.orders)), fmt.Sprintf(says, right, len(x.orders)))
	x.w.check("0 events open, 0 DEAD", fmt.Sprintf("%d events open, %d DEAD", s.Open(), s.Outbox[outbox.StatusDead]))
	return x.account(ctx)
}

// account looks at every movement of the points, where they are and where they were.
func (x *extraction) account(ctx context.Context) error {
	db, err := dburl.Open(ctx, x.dsn("points"))
	if err != nil {
		return err
	}
	defer db.Close()
	moved, err := number(ctx, db, "SELECT COUNT(*) FROM demo_points_ledger")
	if err != nil {
		return err
	}
	left, err := number(ctx, x.db, "SELECT COUNT(*) FROM demo_points_ledger")
	if err != nil {
		return err
	}
	const says = "%d movements in the new process, %d more in the monolith"
	x.w.check(fmt.Sprintf(says, x.movements, 0), fmt.Sprintf(says, moved, left-x.left))
	facade, err := points.New(db)
	if err != nil {
		return err
	}
	broken, err := facade.Verify(ctx)
	x.w.check("0 accounts differ from their movements", fmt.Sprintf("%d accounts differ from their movements", len(broken)))
	return err
}

// stop ends what runs.
func (x *extraction) stop() error {
	var errs []error
	for _, p := range []*process{x.shop, x.points, x.ledger} {
		if p != nil {
			errs = append(errs, p.stop())
		}
	}
	if x.db != nil {
		errs = append(errs, x.db.Close())
	}
	return errors.Join(errs...)
}

func number(ctx context.Context, db *bun.DB, query string) (n int64, err error) {
	err = db.QueryRowContext(ctx, query).Scan(&n)
	return n, err
}
