package guides_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/bustest"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

func serve(ctx context.Context, db *bun.DB, ob *outbox.Outbox, b *bus.Bus) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	db.SetMaxOpenConns(20)
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{DrainTimeout: 20 * time.Second})
	if err != nil {
		return err
	}
	return bus.Run(ctx, pub)
}

func registerSeen(b *bus.Bus) {
	c := b.Consumer("Seen", bus.ConsumerConfig{Concurrency: 8, Rate: 500}) // of each process, not of the deployment
	bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[OrderPaid]) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO seen VALUES (?, ?)", m.Payload.OrderID, m.Payload.Cents)
		return err
	})
}

func probes(o *ops.Ops) http.Handler {
	mux, health := http.NewServeMux(), ops.Health(o)
	mux.Handle("/livez", health)
	mux.Handle("/readyz", health)
	return mux
}

// Two instances share the work: each event is handled once, and each order in its order.
func TestTwoInstancesShareTheWork(t *testing.T) {
	t.Parallel()
	db := bustest.NewDB(t)
	exec(t, db, "CREATE TABLE seen (order_id TEXT, cents INT)")
	require.NoError(t, migrations.Up(t.Context(), db))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	var ob *outbox.Outbox
	for range 2 {
		var err error
		ob, err = outbox.New(db, outbox.Config{}) // no Instance: each process gets a name of its own
		require.NoError(t, err)
		b := bus.New(db, bus.Config{})
		registerSeen(b)
		go func(ob *outbox.Outbox) { done <- serve(ctx, db, ob, b) }(ob)
	}
	const orders, events = 10, 10
	for cents := range events {
		for order := range orders {
			save(t, db, ob, OrderSeen{OrderPaid{OrderID: fmt.Sprint(order), Cents: cents}})
		}
	}
	require.Eventually(t, func() bool {
		counts, err := ob.Counts(t.Context())
		return err == nil && counts[outbox.StatusSent] == orders*events
	}, 5*time.Minute, 20*time.Millisecond)
	o, err := ops.New(db, ob, ops.Config{})
	require.NoError(t, err)
	ready := func() int {
		w := httptest.NewRecorder()
		probes(o).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil))
		return w.Code
	}
	require.Eventually(t, func() bool { return ready() == http.StatusOK }, 5*time.Minute, 20*time.Millisecond)
	cancel()
	for range 2 {
		require.NoError(t, <-done)
	}
	require.Equal(t, orders*events, number(t, db, "SELECT COUNT(*) FROM seen"))
	require.Zero(t, number(t, db, "SELECT COUNT(*) FROM seen a JOIN seen b ON a.order_id = b.order_id "+
		"AND a.rowid < b.rowid AND a.cents >= b.cents"), "each order in its order")
}

// OrderSeen is an OrderPaid without an idempotency key.
type OrderSeen struct{ OrderPaid }

// IdempotencyKey is empty: any number of these may be saved.
func (OrderSeen) IdempotencyKey() string { return "" }
