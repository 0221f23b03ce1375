package outbox_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/inject"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

// orderPaid is the event of most tests.
type orderPaid struct {
	OrderID string `json:"orderId"`
	Seq     int    `json:"seq"`
}

func (orderPaid) EventType() string              { return "order.paid" }
func (e orderPaid) Aggregate() (kind, id string) { return "ORDER", e.OrderID }

// keyedPaid is the same fact with an identity.
type keyedPaid struct{ orderPaid }

func (e keyedPaid) IdempotencyKey() string { return "order:" + e.OrderID + ":paid" }

// fixture is one process of a deployment: an outbox and a bus on a database.
type fixture struct {
	t   *testing.T
	db  *bun.DB
	ob  *outbox.Outbox
	bus *bus.Bus
	log *consumelog.Log
}

// inject makes deliveries fail at chosen points.
func (f *fixture) inject(faults inject.Faults) { handler.Of(f.bus).Inject(faults) }

func newFixture(t *testing.T, db *bun.DB) *fixture {
	t.Helper()
	return newFixtureOf(t, db, outbox.Config{})
}

func newFixtureOf(t *testing.T, db *bun.DB, cfg outbox.Config) *fixture {
	t.Helper()
	f := &fixture{t: t, db: db}
	var err error
	cfg.Logger = logger()
	f.ob, err = outbox.New(db, cfg)
	require.NoError(t, err)
	f.bus = bus.New(db, bus.Config{Logger: logger()})
	f.log = f.ob.Log()
	return f
}

// inBubble runs a test on SQLite in a bubble of testing/synctest, where handlers take no time: how many events share a transaction
// depends on that, and is the same on every machine then.
func inBubble(t *testing.T, test func(t *testing.T, db *bun.DB)) {
	t.Helper()
	t.Run("in a bubble", func(t *testing.T) {
		t.Parallel()
		dsn := testdb.File(t)
		synctest.Test(t, func(t *testing.T) {
			var none testdb.Faults
			test(t, none.Connect(t, dsn))
		})
	})
}

// another is a second process on the same database.
func (f *fixture) another(dsn string) *fixture { return newFixture(f.t, testdb.OpenDSN(f.t, dsn)) }

func logger() *slog.Logger {
	if os.Getenv("BLUECONE_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return slog.New(slog.DiscardHandler)
}

// publisher makes one without retention, unless the test says otherwise: the rows of a test may be of any age.
func (f *fixture) publisher(cfg outbox.PublisherConfig) *outbox.Publisher {
	f.t.Helper()
	if cfg.Retention == (outbox.RetentionConfig{}) {
		cfg.Retention.Keep = -1
	}
	p, err := outbox.NewPublisher(f.ob, f.bus, cfg)
	require.NoError(f.t, err)
	return p
}

// effects makes a table to which handlers write what they did, without any unique key:
// the tests count on nobody but the bus to keep an effect from happening twice.
func (f *fixture) effects() {
	f.t.Helper()
	id := map[string]string{
		"mysql": "BIGINT AUTO_INCREMENT PRIMARY KEY", "pg": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
		"sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
	}[f.db.Dialect().Name().String()]
	_, err := f.db.ExecContext(context.Background(), "CREATE TABLE IF NOT EXISTS effect (id "+id+", consumer VARCHAR(128) NOT NULL, "+
		"event_id VARCHAR(64) NOT NULL, aggregate VARCHAR(128) NOT NULL, seq INT NOT NULL)")
	require.NoError(f.t, err)
}

func effect[E bus.Event](ctx context.Context, tx bun.Tx, m bus.Message[E], seq int) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO effect (consumer, event_id, aggregate, seq) VALUES (?, ?, ?, ?)", m.Consumer, m.ID,
		m.AggregateID, seq)
	return err
}

// counting registers a consumer that writes one effect per event.
func (f *fixture) counting(name string, cfg bus.ConsumerConfig) {
	bus.On(f.bus.Consumer(name, cfg), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
		return effect(ctx, tx, m, m.Payload.Seq)
	})
}

// registered are such consumers, known to the database.
func (f *fixture) registered(names ...string) {
	f.t.Helper()
	f.effects()
	for _, name := range names {
		f.counting(name, bus.ConsumerConfig{})
	}
	f.once()
}

func (f *fixture) save(events ...bus.Event) {
	f.t.Helper()
	require.NoError(f.t, f.trySave(events...))
}

func (f *fixture) trySave(events ...bus.Event) error {
	return f.db.RunInTx(context.Background(), nil, func(ctx context.Context, tx bun.Tx) error {
		return f.ob.Save(ctx, tx, events...)
	})
}

func (f *fixture) exec(query string, args ...any) {
	f.t.Helper()
	_, err := f.db.ExecContext(context.Background(), query, args...)
	require.NoError(f.t, err, query)
}

func (f *fixture) count(query string, args ...any) int {
	f.t.Helper()
	var n int
	require.NoError(f.t, f.db.QueryRowContext(context.Background(), query, args...).Scan(&n), query)
	return n
}

func (f *fixture) texts(query string) string {
	f.t.Helper()
	var all []string
	require.NoError(f.t, f.db.NewRaw(query).Scan(f.t.Context(), &all))
	return strings.Join(all, "\n")
}

// statuses tells how many events are in each state that has any.
func (f *fixture) statuses() map[outbox.Status]int {
	f.t.Helper()
	counts, err := f.ob.Counts(context.Background())
	require.NoError(f.t, err)
	out := make(map[outbox.Status]int)
	for s, n := range counts {
		if n > 0 {
			out[s] = int(n)
		}
	}
	return out
}

func (f *fixture) deliveries() map[consumelog.Status]int {
	f.t.Helper()
	counts, err := f.log.Counts(context.Background())
	require.NoError(f.t, err)
	out := make(map[consumelog.Status]int)
	for s, n := range counts {
		if n > 0 {
			out[s] = int(n)
		}
	}
	return out
}

// begin starts a publisher that stop stops; its answer comes when it has ended.
func (f *fixture) begin(cfg outbox.PublisherConfig) (stop func(), answer <-chan error) {
	f.t.Helper()
	p := f.publisher(cfg)
	ctx, cancel := context.WithCancel(f.t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	return cancel, done
}

// run starts a publisher that is stopped, and must drain, when the test ends.
func (f *fixture) run(cfg outbox.PublisherConfig) {
	f.t.Helper()
	stop, done := f.begin(cfg)
	f.t.Cleanup(func() {
		stop()
		select {
		case err := <-done:
			if err != nil {
				f.t.Errorf("publisher: %v", err)
			}
		case <-time.After(testdb.Patience()):
			f.t.Error("the publisher did not drain")
		}
	})
}

// once publishes what is due and waits for it.
func (f *fixture) once() outbox.Report {
	f.t.Helper()
	r, err := f.publisher(outbox.PublisherConfig{}).RunOnce(context.Background())
	require.NoError(f.t, err)
	return r
}

// wait leaves what has been saved to the consumer's retry queue, due and untried.
func (f *fixture) wait(consumer string) {
	f.t.Helper()
	f.exec("INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, outbox_id, aggregate_type, aggregate_id, "+
		"attempts, next_retry_at) "+
		"SELECT ?, event_id, event_type, 'PENDING', id, aggregate_type, aggregate_id, 0, created_at FROM bc_outbox_event "+
		"WHERE status = 'NEW' ORDER BY id", consumer)
	f.exec("UPDATE bc_outbox_event SET status = 'FAILED' WHERE status = 'NEW'")
}

// hurry makes everything that waits due now.
func (f *fixture) hurry() {
	f.t.Helper()
	past := map[string]string{
		"mysql": "UTC_TIMESTAMP(6) - INTERVAL 1 SECOND", "pg": "now() - interval '1 second'",
		"sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now', '-1 seconds') || '000')",
	}[f.db.Dialect().Name().String()]
	f.exec("UPDATE bc_event_consume_log SET next_retry_at = " + past + " WHERE status IN ('PENDING', 'FAILED', 'PROCESSING')")
	f.exec("UPDATE bc_outbox_event SET next_retry_at = " + past + " WHERE status IN ('SCHEDULED', 'DISPATCHING')")
}

// eventually waits until ok is true.
func (f *fixture) eventually(ok func() bool, what string) {
	f.t.Helper()
	testdb.Eventually(f.t, ok, what)
}

func ids(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("order-%d", i)
	}
	return out
}

// migrated opens a pool on a fresh database of a DSN and makes its tables.
func migrated(t *testing.T, dsn string) *bun.DB {
	t.Helper()
	db := testdb.OpenDSN(t, dsn)
	require.NoError(t, migrations.Up(context.Background(), db))
	return db
}
