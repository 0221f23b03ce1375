package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"time"

	"github.com/bluecone-go/bluecone/console"
	"github.com/bluecone-go/bluecone/dburl"
	"github.com/bluecone-go/bluecone/demo/bluecone/monolith"
	"github.com/bluecone-go/bluecone/demo/bluecone/settings"
	"github.com/bluecone-go/bluecone/demo/bluecone/web"
)

// Shop is one instance of the demo on an embedded database, with the console under a prefix and
// its own API under /shop/.
type Shop struct {
	App    *monolith.App
	URL    string // of the console, with a slash at its end
	server *httptest.Server
	stop   context.CancelFunc
	ended  chan error
	orders int
}

// OpenShop opens a shop, with a console for whom authorize lets in.
func OpenShop(ctx context.Context, dir, prefix string, authorize console.Authorizer) (*Shop, error) {
	db, err := dburl.Open(ctx, "sqlite://"+filepath.Join(dir, "shop.db"))
	if err != nil {
		return nil, err
	}
	conf, err := settings.Load("", nil)
	if err != nil {
		return nil, err
	}
	quiet := slog.New(slog.DiscardHandler)
	app, err := monolith.New(ctx, monolith.Options{DB: db, Settings: conf, Node: "shop-1", Logger: quiet})
	if err != nil {
		return nil, err
	}
	pages, err := console.New(app.Ops, console.Config{Authorize: authorize, Title: "bluecone demo", Environment: "demo", Logger: quiet})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle(prefix, pages)
	mux.Handle("/shop/", http.StripPrefix("/shop", web.New(app, web.Config{Faults: true, Metrics: http.NotFoundHandler()})))
	s := &Shop{App: app, server: httptest.NewServer(mux), ended: make(chan error, 1)}
	s.URL = s.server.URL + prefix
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	go func() { s.ended <- errors.Join(app.Run(ctx), db.Close()) }()
	return s, nil
}

// Close closes the shop.
func (s *Shop) Close() error {
	s.server.CloseClientConnections()
	s.server.Close()
	s.stop()
	return <-s.ended
}

// Break makes a consumer fail: "permanent", "error", or "off" to fix it.
func (s *Shop) Break(ctx context.Context, consumer, mode string) error {
	return s.post(ctx, "/faults", map[string]any{"consumer": consumer, "mode": mode}, nil)
}

// Order places an order of a new user.
func (s *Shop) Order(ctx context.Context) (orderID string, err error) {
	s.orders++
	var user struct {
		UserID string `json:"userId"`
	}
	if err := s.post(ctx, "/users", map[string]any{"walletCents": 50_000, "points": 300}, &user); err != nil {
		return "", err
	}
	var order struct {
		OrderID string `json:"orderId"`
	}
	err = s.post(ctx, "/orders", map[string]any{
		"userId": user.UserID, "totalCents": 2_590 + s.orders*130, "walletCents": 500, "points": 100,
	}, &order)
	return order.OrderID, err
}

// Pay pays an order.
func (s *Shop) Pay(ctx context.Context, orderID string) error {
	return s.post(ctx, "/orders/"+orderID+"/pay", map[string]any{"payNo": "pay-" + orderID}, nil)
}

// Quiet waits until the engine has nothing left to do.
func (s *Shop) Quiet(ctx context.Context) error {
	for {
		stats, err := s.App.Stats(ctx)
		if err != nil || stats.Open() == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (s *Shop) post(ctx context.Context, path string, body, result any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.server.URL+"/shop"+path, bytes.NewReader(raw))
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("POST %s: %s: %s", path, res.Status, answer)
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(answer, result)
}
