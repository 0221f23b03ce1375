package signals_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

func TestMain(m *testing.M) { testdb.Main(m) }

type orderPaid struct {
	OrderID string `json:"orderId"`
}

func (orderPaid) EventType() string              { return "order.paid" }
func (e orderPaid) Aggregate() (kind, id string) { return "ORDER", e.OrderID }

type keyedPaid struct{ orderPaid }

func (e keyedPaid) IdempotencyKey() string { return "order:" + e.OrderID + ":paid" }

type renamed struct {
	OrderID string `json:"orderId"`
}

func (renamed) EventType() string              { return "order.renamed" }
func (e renamed) Aggregate() (kind, id string) { return "ORDER", e.OrderID }

var silent = slog.New(slog.DiscardHandler)

// lines is a log.
type lines struct {
	mu  sync.Mutex
	all strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *lines) count(s string) int { return strings.Count(l.text(), s) }

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// fixture is one process of a deployment.
type fixture struct {
	t   *testing.T
	db  *bun.DB
	ob  *outbox.Outbox
	bus *bus.Bus
}

func newFixture(t *testing.T, db *bun.DB, oc outbox.Config, bc bus.Config) *fixture {
	t.Helper()
	ob, err := outbox.New(db, oc)
	require.NoError(t, err)
	return &fixture{t: t, db: db, ob: ob, bus: bus.New(db, bc)}
}

func (f *fixture) publisher() *outbox.Publisher {
	f.t.Helper()
	p, err := outbox.NewPublisher(f.ob, f.bus, outbox.PublisherConfig{})
	require.NoError(f.t, err)
	return p
}

// once publishes what is due and waits for it.
func (f *fixture) once() {
	f.t.Helper()
	_, err := f.publisher().RunOnce(f.t.Context())
	require.NoError(f.t, err)
}

// run runs a publisher until the test ends.
func (f *fixture) run() {
	f.t.Helper()
	p := f.publisher()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	f.t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			f.t.Errorf("publisher: %v", err)
		}
	})
}

func (f *fixture) save(events ...bus.Event) {
	f.t.Helper()
	require.NoError(f.t, f.trySave(f.t.Context(), events...))
}

func (f *fixture) trySave(ctx context.Context, events ...bus.Event) error {
	return f.db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error { return f.ob.Save(ctx, tx, events...) })
}

func (f *fixture) exec(query string, args ...any) {
	f.t.Helper()
	_, err := f.db.ExecContext(f.t.Context(), query, args...)
	require.NoError(f.t, err, query)
}

func (f *fixture) count(query string) (n int) {
	f.t.Helper()
	require.NoError(f.t, f.db.QueryRowContext(f.t.Context(), query).Scan(&n), query)
	return n
}

// hurry makes every retry due now.
func (f *fixture) hurry() {
	f.t.Helper()
	f.exec("UPDATE bc_event_consume_log SET next_retry_at = created_at WHERE status IN ('PENDING', 'FAILED', 'PROCESSING')")
}
