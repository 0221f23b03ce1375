package remote_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ledger"
	"github.com/bluecone-go/bluecone/ledger/ledgerv1"
	"github.com/bluecone-go/bluecone/ledger/remote"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

const consumer = "PointsConsumer"

// paid is the event of the tests.
type paid struct {
	Order string `json:"order"`
	Seq   int    `json:"seq"`
}

func (paid) EventType() string           { return "order.paid" }
func (p paid) Aggregate() (_, id string) { return "ORDER", p.Order }

// world is a ledger with a database, and the database of a service.
type world struct {
	t      *testing.T
	ob     *outbox.Outbox
	url    string
	client *ledger.Client
	db     *bun.DB // of the service
	dsn    string
}

func logger() *slog.Logger {
	if testing.Verbose() {
		return slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return slog.New(slog.DiscardHandler)
}

func newWorld(t *testing.T, ledgersDB *bun.DB, lease time.Duration) *world {
	t.Helper()
	w := &world{t: t, dsn: testdb.DSN(t, testdb.Server(t, ledgersDB))}
	w.serve(ledgersDB, lease)
	w.db = testdb.OpenDSN(t, w.dsn)
	require.NoError(t, migrations.Up(t.Context(), w.db))
	_, err := w.db.ExecContext(t.Context(), "CREATE TABLE effect (id VARCHAR(64), event_id VARCHAR(64), order_id VARCHAR(64), seq INTEGER)")
	require.NoError(t, err)
	return w
}

// serve starts the ledger.
func (w *world) serve(db *bun.DB, lease time.Duration) {
	w.t.Helper()
	var err error
	w.ob, err = outbox.New(db, outbox.Config{Logger: logger()})
	require.NoError(w.t, err)
	pub, err := outbox.NewPublisher(w.ob, bus.New(db, bus.Config{Logger: logger()}), outbox.PublisherConfig{Poll: 20 * time.Millisecond})
	require.NoError(w.t, err)
	s, err := ledger.New(db, w.ob, ledger.Config{Authorizer: authorize, Lease: lease, Logger: logger()})
	require.NoError(w.t, err)
	server := httptest.NewServer(s)
	w.url = server.URL
	w.client, err = clientOf(w.url, http.DefaultClient)
	require.NoError(w.t, err)
	w.beside(func(ctx context.Context) error { return bus.Run(ctx, pub, s) })
	w.t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
}

// authorize lets everybody be this consumer.
func authorize(*http.Request) (ledger.Caller, error) {
	return ledger.Caller{Name: "points", Publish: []string{"order.*"}, Consume: []string{consumer}}, nil
}

func clientOf(url string, c *http.Client) (*ledger.Client, error) {
	return ledger.NewClient(ledger.ClientConfig{URL: url, HTTP: c})
}

// beside runs something until the test ends, or the function that it returns is called.
func (w *world) beside(run func(ctx context.Context) error) (stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(w.t, <-done)
		}
	}
	w.t.Cleanup(stop)
	return stop
}

// publish publishes n events of an order, in one order that Seq tells.
func (w *world) publish(order string, n int) (ids []string) {
	w.t.Helper()
	m := &ledgerv1.PublishRequest{}
	for seq := range n {
		e, err := ledger.EventOf(w.t.Context(), paid{order, seq})
		require.NoError(w.t, err)
		m.Events = append(m.Events, e)
	}
	got, err := w.client.Publish(w.t.Context(), m)
	require.NoError(w.t, err)
	return got.GetEventIds()
}

// register registers the handlers as a module does, in a monolith or elsewhere. before is called in each run.
func register(b *bus.Bus, before func(ctx context.Context, m bus.Message[paid]) error) {
	c := b.Consumer(consumer, bus.ConsumerConfig{})
	bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO effect (id, event_id, order_id, seq) VALUES (?, ?, ?, ?)", m.Key(), m.ID,
			m.Payload.Order, m.Payload.Seq)
		if err != nil {
			return err
		}
		m.RecordResult(map[string]int{"points": m.Payload.Seq})
		return before(ctx, m)
	})
}

func nothing(context.Context, bus.Message[paid]) error { return nil }

// consume runs the handlers in the service.
func (w *world) consume(before func(ctx context.Context, m bus.Message[paid]) error, cfg remote.Config) (stop func()) {
	w.t.Helper()
	b := bus.New(w.db, bus.Config{Logger: logger()})
	register(b, before)
	cfg.Wait, cfg.Logger = time.Second, logger()
	r, err := remote.Consumer(b, w.client, cfg)
	require.NoError(w.t, err)
	return w.beside(r.Run)
}

// done waits until the ledger has nothing left for the consumer.
func (w *world) done(events int) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		lag, err := w.client.QueryLag(w.t.Context(), &ledgerv1.QueryLagRequest{Consumer: consumer})
		require.NoError(w.t, err)
		return lag.GetPending() == 0 && lag.GetDead() == 0 && len(w.effects()) >= events
	}, testdb.Patience(), 50*time.Millisecond)
}

// effects are the events that had one, as often as they had.
func (w *world) effects() (ids []string) {
	w.t.Helper()
	require.NoError(w.t, w.db.NewSelect().Table("effect").Column("event_id").OrderExpr("event_id").Scan(w.t.Context(), &ids))
	return ids
}

// state is what the ledger says of a delivery.
func (w *world) state(id string) string {
	w.t.Helper()
	got, err := w.client.QueryConsumption(w.t.Context(), &ledgerv1.QueryConsumptionRequest{EventId: id})
	require.NoError(w.t, err)
	if len(got.GetConsumers()) == 0 {
		return ""
	}
	c := got.GetConsumers()[0]
	return fmt.Sprintf("%s %d %s %s", c.GetStatus(), c.GetAttempts(), c.GetResult(), c.GetError())
}

func (w *world) becomes(id, want string) {
	w.t.Helper()
	require.EventuallyWithT(w.t, func(c *assert.CollectT) {
		assert.Equal(c, want, w.state(id), id)
	}, testdb.Patience(), 50*time.Millisecond)
}
