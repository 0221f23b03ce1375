package story

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"github.com/bluecone-go/bluecone/demo/bluecone/module/order"
)

const (
	loyaltyProcesses = 2
	relayedOrders    = 6 // every third of which is refunded
	relayedCents     = 5900
	relayedStamps    = 5
)

// services are the monolith and a second service, each with a database of its own, and a broker between them.
type services struct {
	w       *world
	dir     string
	broker  *natsServer
	shop    *process
	loyalty [loyaltyProcesses]*process
	orders  []order.Order
	wanted  map[string]int // stamps, by user
	events  int            // that have to land
}

func twoServices(ctx context.Context, w *world) error {
	program, err := findNATS()
	if err != nil {
		w.skip("every stamp is there", err.Error()+": it needs one (scripts/brokers nats unpacks Debian's)")
		return nil
	}
	dir, err := os.MkdirTemp("", "bluecone-services-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s := &services{w: w, dir: dir, broker: &natsServer{program: program, dir: dir}, wanted: make(map[string]int)}
	err = s.broker.start(ctx)
	if err == nil {
		err = s.play(ctx)
	}
	return errors.Join(err, s.stop())
}

// url is the broker's.
func (s *services) url() string { return "nats://" + s.broker.address + "/ORDERS" }

// startShop starts the monolith, which sends its orders to the broker.
func (s *services) startShop(ctx context.Context) (err error) {
	s.shop, err = launch(ctx, "serve", "--addr", "127.0.0.1:0", "--dsn", "sqlite://"+filepath.Join(s.dir, "shop.db"), "--relay", s.url())
	return err
}

// startLoyalty starts a process of the other service.
func (s *services) startLoyalty(ctx context.Context, i int) (err error) {
	s.loyalty[i], err = launch(ctx, "loyalty", "--addr", "127.0.0.1:0", "--dsn", "sqlite://"+filepath.Join(s.dir, "loyalty.db"),
		"--inbox", s.url())
	return err
}

func (s *services) play(ctx context.Context) error {
	if err := s.startShop(ctx); err != nil {
		return err
	}
	for i := range s.loyalty {
		if err := s.startLoyalty(ctx, i); err != nil {
			return err
		}
	}
	s.w.step("the monolith sends order.* to NATS; two processes of the loyalty service land them in a database of their own")
	if err := s.buy(ctx, relayedOrders/2); err != nil {
		return err
	}
	if err := s.murder(ctx); err != nil {
		return err
	}
	if err := s.buy(ctx, relayedOrders/2); err != nil { // NATS is away: the events wait
		return err
	}
	if err := s.broker.start(ctx); err != nil {
		return err
	}
	s.w.step("NATS is back")
	if err := s.refund(ctx); err != nil {
		return err
	}
	return s.compare(ctx)
}

// buy has orders placed and paid.
func (s *services) buy(ctx context.Context, n int) error {
	for range n {
		var u order.User
		if err := post(ctx, s.shop.base+"/users", order.NewUser{}, &u); err != nil {
			return err
		}
		var o order.Order
		if err := post(ctx, s.shop.base+"/orders", order.NewOrder{UserID: u.UserID, TotalCents: relayedCents}, &o); err != nil {
			return err
		}
		o.UserID = u.UserID
		if err := post(ctx, s.shop.base+"/orders/"+o.OrderID+"/pay", map[string]string{"payNo": "pay-" + o.OrderID}, nil); err != nil {
			return err
		}
		s.orders = append(s.orders, o)
		s.wanted[u.UserID] = relayedStamps
		s.events++
	}
	s.w.step("%d orders of %s are paid", n, money(relayedCents))
	return nil
}

// murder kills a process of each service, and the broker.
func (s *services) murder(ctx context.Context) error {
	if err := errors.Join(s.shop.kill(), s.loyalty[0].kill(), s.broker.kill()); err != nil {
		return err
	}
	s.w.step("the monolith, a process of the loyalty service and NATS are killed with SIGKILL")
	if err := errors.Join(s.startShop(ctx), s.startLoyalty(ctx, 0)); err != nil {
		return err
	}
	s.w.step("the monolith and the loyalty service are back, and wait for NATS")
	return nil
}

// refund refunds every third order.
func (s *services) refund(ctx context.Context) error {
	for i, o := range s.orders {
		if i%3 != 0 {
			continue
		}
		if err := post(ctx, s.shop.base+"/orders/"+o.OrderID+"/refund", map[string]string{"refundId": "refund-" + o.OrderID}, nil); err != nil {
			return err
		}
		s.wanted[o.UserID] = 0
		s.events++
		s.w.step("order %s is refunded", short(o.OrderID))
	}
	return nil
}

// counts are those of the second service.
type counts struct{ Landed, Duplicates, Open, Dead int }

// compare waits until the second service has everything, and compares the stamps of all users.
func (s *services) compare(ctx context.Context) error {
	s.w.step("waiting until the loyalty service has landed and handled %d events: what was interrupted is tried again after a pause", s.events)
	var c counts
	err := until(ctx, "the loyalty service to have everything", func() (bool, error) {
		err := get(ctx, s.loyalty[1].base+"/stats", &c)
		return c.Landed >= s.events && c.Open == 0, err
	})
	if err != nil {
		return err
	}
	right := 0
	for id, wanted := range s.wanted {
		var got struct{ Stamps int }
		if err := get(ctx, s.loyalty[0].base+"/users/"+id+"/stamps", &got); err != nil {
			return err
		}
		if got.Stamps == wanted {
			right++
		} else {
			s.w.step("user %s: expected %d stamps, got %d", short(id), wanted, got.Stamps)
		}
	}
	const says = "%d of %d users have the stamps of their orders"
	s.w.check(fmt.Sprintf(says, len(s.wanted), len(s.wanted)), fmt.Sprintf(says, right, len(s.wanted)))
	s.w.check(fmt.Sprintf("%d events landed, 0 open, 0 DEAD", s.events),
		fmt.Sprintf("%d events landed, %d open, %d DEAD", c.Landed, c.Open, c.Dead))
	s.w.step("messages that came twice, and landed once: %d", c.Duplicates)
	return nil
}

// stop ends what runs.
func (s *services) stop() error {
	var errs []error
	for _, p := range append(s.loyalty[:], s.shop) {
		if p != nil {
			errs = append(errs, p.stop())
		}
	}
	return errors.Join(append(errs, s.broker.kill())...)
}

func get(ctx context.Context, url string, out any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	return call(req, out)
}
