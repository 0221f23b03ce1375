package story

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/bluecone-go/bluecone/demo/bluecone/module/order"
	"github.com/bluecone-go/bluecone/demo/bluecone/monolith"
	"github.com/bluecone-go/bluecone/outbox"
)

// process is a child that serves the monolith.
type process struct {
	cmd  *exec.Cmd
	base string
}

// spawn starts another process of this program on the same database.
func (w *world) spawn(ctx context.Context, args ...string) (*process, error) {
	return launch(ctx, append([]string{"serve", "--addr", "127.0.0.1:0", "--dsn", w.DSN}, args...)...)
}

// launch starts another process of this program, and waits until it listens.
func launch(ctx context.Context, args ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if _, base, ok := strings.Cut(lines.Text(), " listens on "); ok {
			go io.Copy(io.Discard, out) //nolint:errcheck // until the child ends
			return &process{cmd, base}, nil
		}
	}
	return nil, fmt.Errorf("the child process ended: %w", cmd.Wait())
}

// kill ends the process as a power cut would.
func (p *process) kill() error {
	err := p.cmd.Process.Kill()
	_ = p.cmd.Wait() // it was killed
	return err
}

// stop ends the process in order.
func (p *process) stop() error {
	return errors.Join(p.cmd.Process.Signal(os.Interrupt), p.cmd.Wait())
}

func crashRestart(ctx context.Context, w *world) error {
	child, err := w.spawn(ctx, "--no-publisher", "--node", "doomed")
	if err != nil {
		return err
	}
	w.step("process %d serves, but its publisher is off", child.cmd.Process.Pid)
	var u order.User
	if err := post(ctx, child.base+"/users", order.NewUser{WalletCents: 10_000, Points: 500, CouponCents: []int64{300}}, &u); err != nil {
		return errors.Join(err, child.kill())
	}
	w.users[u.UserID] = w.now
	w.order = append(w.order, u.UserID)
	var o order.Order
	if err := post(ctx, child.base+"/orders", order.NewOrder{
		UserID: u.UserID, TotalCents: 5000, WalletCents: 1000, Points: 200, CouponID: u.CouponIDs[0],
	}, &o); err != nil {
		return errors.Join(err, child.kill())
	}
	if err := post(ctx, child.base+"/orders/"+o.OrderID+"/pay", map[string]string{"payNo": "pay-" + o.OrderID}, nil); err != nil {
		return errors.Join(err, child.kill())
	}
	w.step("order %s is placed and paid; both events are NEW", short(o.OrderID))
	if err := child.kill(); err != nil {
		return err
	}
	w.step("process %d is killed with SIGKILL", child.cmd.Process.Pid)
	waiting, err := w.events(ctx, o.OrderID)
	if err != nil {
		return err
	}
	w.check("undelivered: NEW NEW", "undelivered: "+waiting)
	next, err := w.spawn(ctx, "--node", "successor")
	if err != nil {
		return err
	}
	w.step("process %d starts on the same database", next.cmd.Process.Pid)
	err = until(ctx, "the events to be delivered", func() (bool, error) {
		now, err := w.events(ctx, o.OrderID)
		return now == "SENT SENT", err
	})
	if err = errors.Join(err, next.stop()); err != nil {
		return err
	}
	return w.with(ctx, nil, func(app *monolith.App) error {
		return errors.Join(w.expectAssets(ctx, app, u.UserID, afterPay), w.expectSound(ctx, app))
	})
}

// events tells the states of an order's events, in order.
func (w *world) events(ctx context.Context, orderID string) (string, error) {
	rows, err := w.db.QueryContext(ctx, "SELECT status FROM bc_outbox_event WHERE aggregate_type = 'ORDER' AND aggregate_id = ? "+
		"ORDER BY id", orderID)
	if err != nil {
		return "", err
	}
	defer rows.Close()
	var states []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return "", err
		}
		states = append(states, s)
	}
	return strings.Join(states, " "), rows.Err()
}

const (
	clients       = 4
	ordersEach    = 6
	instances     = 3
	killEveryJobs = 8
)

// fleet is three processes on one database.
type fleet struct {
	w     *world
	mu    sync.Mutex
	nodes []*process
	done  atomic.Int64
}

func multiInstance(ctx context.Context, w *world) error {
	f := &fleet{w: w}
	for i := range instances {
		p, err := w.spawn(ctx, "--node", fmt.Sprintf("node%d", i))
		if err != nil {
			return err
		}
		f.nodes = append(f.nodes, p)
	}
	w.step("three processes serve one database")
	var wg sync.WaitGroup
	errs := make([]error, clients)
	wanted := make([]map[string]string, clients)
	for c := range clients {
		wg.Go(func() { wanted[c], errs[c] = f.shop(ctx) })
	}
	var murder error
	wg.Go(func() { murder = f.murder(ctx) })
	wg.Wait()
	errs = append(errs, murder)
	for _, p := range f.nodes {
		errs = append(errs, p.stop())
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	w.step("%d orders placed by %d clients", f.done.Load(), clients)
	return w.with(ctx, nil, func(app *monolith.App) error { return w.settle(ctx, app, wanted) })
}

// settle waits until all is quiet and compares what every user has with what its orders say.
func (w *world) settle(ctx context.Context, app *monolith.App, wanted []map[string]string) error {
	if err := quiet(ctx, app); err != nil {
		return err
	}
	right, all := 0, 0
	for _, users := range wanted {
		for id, expected := range users {
			got, err := assets(ctx, app, id)
			if err != nil {
				return err
			}
			if all++; got == expected {
				right++
			} else {
				w.step("user %s: expected %s, got %s", short(id), expected, got)
			}
		}
	}
	w.check(fmt.Sprintf("%d of %d users have what their orders say", all, all),
		fmt.Sprintf("%d of %d users have what their orders say", right, all))
	s, err := app.Stats(ctx)
	if err != nil {
		return err
	}
	w.check("0 events open, 0 DEAD", fmt.Sprintf("%d events open, %d DEAD", s.Open(), s.Outbox[outbox.StatusDead]))
	if err := w.expectOrdered(ctx); err != nil {
		return err
	}
	return w.expectSound(ctx, app)
}

// expectOrdered looks for an order of which a consumer saw the events out of order.
func (w *world) expectOrdered(ctx context.Context) error {
	var n int
	err := w.db.QueryRowContext(ctx, `SELECT COUNT(*) FROM bc_event_consume_log a JOIN bc_event_consume_log b
		ON b.consumer_name = a.consumer_name AND b.aggregate_type = a.aggregate_type AND b.aggregate_id = a.aggregate_id
		AND b.outbox_id > a.outbox_id AND b.consumed_at < a.consumed_at`).Scan(&n)
	if err != nil {
		return err
	}
	w.check("0 deliveries out of order", fmt.Sprintf("%d deliveries out of order", n))
	return nil
}

// murder kills one process in the middle of its work, and starts another.
func (f *fleet) murder(ctx context.Context) error {
	if err := until(ctx, "the clients to get going", func() (bool, error) { return f.done.Load() >= killEveryJobs, nil }); err != nil {
		return err
	}
	f.mu.Lock()
	victim := f.nodes[0]
	f.mu.Unlock()
	if err := victim.kill(); err != nil {
		return err
	}
	f.w.step("process %d is killed with SIGKILL while it works", victim.cmd.Process.Pid)
	next, err := f.w.spawn(ctx, "--node", "node0b")
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes[0] = next
	return nil
}

// shop places orders for one user each, pays or cancels or refunds them, and tells what
// every user must have in the end.
func (f *fleet) shop(ctx context.Context) (map[string]string, error) {
	wanted := make(map[string]string)
	for range ordersEach {
		var u order.User
		key := fmt.Sprint(rand.Uint64())
		user := order.NewUser{WalletCents: 10_000, Points: 500, CouponCents: []int64{300}}
		if err := f.insist(ctx, "/users", "user-"+key, user, &u); err != nil {
			return nil, err
		}
		var o order.Order
		req := order.NewOrder{UserID: u.UserID, TotalCents: 5000, WalletCents: 1000, Points: 200, CouponID: u.CouponIDs[0]}
		if err := f.insist(ctx, "/orders", "order-"+key, req, &o); err != nil {
			return nil, err
		}
		fate := rand.N(3)
		path := "/orders/" + o.OrderID
		if fate == 0 {
			wanted[u.UserID] = untouched
			if err := f.insist(ctx, path+"/cancel", "", struct{}{}, nil); err != nil {
				return nil, err
			}
		} else {
			wanted[u.UserID] = afterPay
			if err := f.insist(ctx, path+"/pay", "", map[string]string{"payNo": "pay-" + o.OrderID}, nil); err != nil {
				return nil, err
			}
		}
		if fate == 2 {
			wanted[u.UserID] = line(10000, 0, 0, 500, 0, "USED")
			if err := f.insist(ctx, path+"/refund", "", map[string]string{"refundId": "refund-" + o.OrderID}, nil); err != nil {
				return nil, err
			}
		}
		f.done.Add(1)
	}
	return wanted, nil
}

// insist repeats a call, at another process each time, until the outcome is known.
func (f *fleet) insist(ctx context.Context, path, key string, body, out any) error {
	return until(ctx, path, func() (bool, error) {
		f.mu.Lock()
		base := f.nodes[rand.N(len(f.nodes))].base
		f.mu.Unlock()
		err := postWithKey(ctx, base+path, key, body, out)
		var refused *refusedError
		if errors.As(err, &refused) && refused.status != http.StatusServiceUnavailable {
			return false, fmt.Errorf("%s: %w", path, err)
		}
		return err == nil, nil
	})
}
