package attempts_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// paid is the event of most attempts.
type paid struct {
	ID  string `json:"id"`
	Seq int    `json:"seq"`
}

func (paid) EventType() string              { return "order.paid" }
func (e paid) Aggregate() (kind, id string) { return "ORDER", e.ID }

// shipped is another fact about the same aggregates.
type shipped struct {
	ID  string `json:"id"`
	Seq int    `json:"seq"`
}

func (shipped) EventType() string              { return "order.shipped" }
func (e shipped) Aggregate() (kind, id string) { return "ORDER", e.ID }

// keyed is a fact that can be saved once.
type keyed struct {
	ID  string `json:"id"`
	Seq int    `json:"seq"`
	Key string `json:"key"`
}

func (keyed) EventType() string              { return "order.keyed" }
func (e keyed) Aggregate() (kind, id string) { return "ORDER", e.ID }
func (e keyed) IdempotencyKey() string       { return e.Key }

// patience is how long a slow machine may take.
const patience = 5 * time.Minute

// world is one process of a deployment.
type world struct {
	t   *testing.T
	db  *bun.DB
	ob  *outbox.Outbox
	bus *bus.Bus
}

// newWorld is a process on a database that has the table "effect", to which handlers write what they did. It has no unique
// key that would hide what happens twice.
func newWorld(t *testing.T, db *bun.DB) *world {
	t.Helper()
	return newWorldOf(t, db, outbox.Config{}, bus.Config{})
}

func newWorldOf(t *testing.T, db *bun.DB, cfg outbox.Config, busCfg bus.Config) *world {
	t.Helper()
	w := &world{t: t, db: db}
	var err error
	cfg.Logger, busCfg.Logger = logger(), logger()
	w.ob, err = outbox.New(db, cfg)
	require.NoError(t, err)
	w.bus = bus.New(db, busCfg)
	w.exec("CREATE TABLE IF NOT EXISTS effect (id " + serial(db) + ", consumer VARCHAR(140) NOT NULL, event_id VARCHAR(64) NOT NULL, " +
		"aggregate VARCHAR(140) NOT NULL, seq INT NOT NULL)" +
		map[string]string{"mysql": " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"}[dialect(db)])
	return w
}

func logger() *slog.Logger {
	if os.Getenv("BLUECONE_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return slog.New(slog.DiscardHandler)
}

func dialect(db *bun.DB) string { return db.Dialect().Name().String() }

func serial(db *bun.DB) string {
	return map[string]string{
		"mysql": "BIGINT AUTO_INCREMENT PRIMARY KEY", "pg": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
		"sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
	}[dialect(db)]
}

// on runs fn as a parallel subtest on a fresh database of each of the dialects.
func on(t *testing.T, names []string, fn func(t *testing.T, db *bun.DB)) {
	t.Helper()
	for _, name := range testdb.Dialects() {
		for _, wanted := range names {
			if name == wanted {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					fn(t, testdb.Open(t, name))
				})
			}
		}
	}
}

// write is the effect of most handlers.
func write[E bus.Event](ctx context.Context, tx bun.IDB, m bus.Message[E], seq int) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO effect (consumer, event_id, aggregate, seq) VALUES (?, ?, ?, ?)", m.Consumer, m.ID,
		m.AggregateID, seq)
	return err
}

// counting registers a consumer that writes one effect for each event.
func (w *world) counting(name string, cfg bus.ConsumerConfig) {
	bus.On(w.bus.Consumer(name, cfg), func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
		return write(ctx, tx, m, m.Payload.Seq)
	})
}

func (w *world) save(events ...bus.Event) {
	w.t.Helper()
	require.NoError(w.t, w.trySave(events...))
}

func (w *world) trySave(events ...bus.Event) error {
	return w.db.RunInTx(context.Background(), nil, func(ctx context.Context, tx bun.Tx) error { return w.ob.Save(ctx, tx, events...) })
}

func (w *world) exec(query string, args ...any) {
	w.t.Helper()
	_, err := w.db.ExecContext(context.Background(), query, args...)
	require.NoError(w.t, err, query)
}

func (w *world) count(query string, args ...any) int {
	w.t.Helper()
	var n int
	require.NoError(w.t, w.db.QueryRowContext(context.Background(), query, args...).Scan(&n), query)
	return n
}

func (w *world) effects() int { w.t.Helper(); return w.count("SELECT COUNT(*) FROM effect") }

// column lists the values of one column.
func (w *world) column(query string, args ...any) []string {
	w.t.Helper()
	var out []string
	require.NoError(w.t, w.db.NewRaw(query, args...).Scan(context.Background(), &out), query)
	return out
}

func (w *world) publisher() *outbox.Publisher {
	w.t.Helper()
	p, err := outbox.NewPublisher(w.ob, w.bus, outbox.PublisherConfig{})
	require.NoError(w.t, err)
	return p
}

// once publishes what is due and waits for it.
func (w *world) once() {
	w.t.Helper()
	_, err := w.publisher().RunOnce(context.Background())
	require.NoError(w.t, err)
}

// run starts a publisher that must drain when stop is called, or when the test ends.
func (w *world) run(cfg outbox.PublisherConfig) (stop func()) {
	w.t.Helper()
	p, err := outbox.NewPublisher(w.ob, w.bus, cfg)
	require.NoError(w.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				w.t.Errorf("publisher: %v", err)
			}
		case <-time.After(testdb.Patience()):
			w.t.Error("the publisher did not drain")
		}
	})
	w.t.Cleanup(stop)
	return stop
}

// hurry makes due what waits for its time. Leases stay as they are.
func (w *world) hurry() {
	w.t.Helper()
	past := map[string]string{
		"mysql": "UTC_TIMESTAMP(6) - INTERVAL 1 SECOND", "pg": "now() - interval '1 second'",
		"sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now', '-1 seconds') || '000')",
	}[dialect(w.db)]
	w.exec("UPDATE bc_event_consume_log SET next_retry_at = " + past + " WHERE status IN ('PENDING', 'FAILED')")
	w.exec("UPDATE bc_outbox_event SET next_retry_at = " + past + " WHERE status = 'SCHEDULED'")
}

// settle publishes, retries included, until no event waits for the engine any more.
func (w *world) settle() {
	w.t.Helper()
	for over := time.Now().Add(patience); ; {
		w.once()
		open := w.count("SELECT COUNT(*) FROM bc_outbox_event WHERE status NOT IN ('SENT', 'DEAD')")
		if open == 0 {
			return
		}
		if time.Now().After(over) {
			w.t.Fatalf("%d events are open: %s", open, strings.Join(w.column("SELECT COALESCE(last_error, status) FROM bc_outbox_event "+
				"WHERE status NOT IN ('SENT', 'DEAD')"), "; "))
		}
		w.hurry()
	}
}

// statuses tells how many events are in each state that has any.
func (w *world) statuses() map[outbox.Status]int {
	w.t.Helper()
	counts, err := w.ob.Counts(context.Background())
	require.NoError(w.t, err)
	out := make(map[outbox.Status]int)
	for s, n := range counts {
		if n > 0 {
			out[s] = int(n)
		}
	}
	return out
}

func (w *world) deliveries() map[consumelog.Status]int {
	w.t.Helper()
	counts, err := w.ob.Log().Counts(context.Background())
	require.NoError(w.t, err)
	out := make(map[consumelog.Status]int)
	for s, n := range counts {
		if n > 0 {
			out[s] = int(n)
		}
	}
	return out
}

// eventually polls until ok answers true.
func (w *world) eventually(ok func() bool, what string) {
	w.t.Helper()
	testdb.Eventually(w.t, ok, what)
}

// wait waits for a signal, for minutes at most.
func (w *world) wait(c <-chan struct{}, what string) {
	w.t.Helper()
	select {
	case <-c:
	case <-time.After(testdb.Patience()):
		w.t.Fatal("never came: " + what)
	}
}

func (w *world) eventID(aggregate string) string {
	w.t.Helper()
	ids := w.column("SELECT event_id FROM bc_outbox_event WHERE aggregate_id = ? ORDER BY id LIMIT 1", aggregate)
	require.Len(w.t, ids, 1)
	return ids[0]
}

func id(n int) string { return fmt.Sprintf("order-%d", n) }

var clerk = outbox.Operation{Actor: "clerk", Reason: "an attempt"}

var (
	all     = []string{"sqlite", "mysql", "postgres", "mysql9"}
	servers = []string{"mysql", "postgres", "mysql9"}
	mysqls  = []string{"mysql", "mysql9"}
)
