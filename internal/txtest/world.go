package txtest

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

// Paid is the event that the handlers of an adapter get.
type Paid struct {
	Order string `json:"order"`
	Seq   int    `json:"seq"`
	Key   string `json:"key"`
}

// EventType is the durable name.
func (Paid) EventType() string { return "order.paid" }

// Aggregate is the order.
func (e Paid) Aggregate() (kind, id string) { return "ORDER", e.Order }

// IdempotencyKey is there if the event has one.
func (e Paid) IdempotencyKey() string { return e.Key }

// Followed follows from [Paid].
type Followed Paid

// EventType is the durable name.
func (Followed) EventType() string { return "order.followed" }

// Aggregate is the order.
func (e Followed) Aggregate() (kind, id string) { return "ORDER", e.Order }

// World is one process of a deployment on a database of its own, which has the tables of bluecone, a table effect without any unique
// key (handlers write into it what they did) and a table hot with the rows 0 to 99.
type World struct {
	T        *testing.T
	Database string // as of package testdb: mysql, mysql9, postgres or sqlite
	DSN      string // as of package testdb
	DB       *bun.DB
	Outbox   *outbox.Outbox
	Bus      *bus.Bus
}

func newWorld(t *testing.T, database string) *World {
	t.Helper()
	w := &World{T: t, Database: database, DSN: testdb.DSN(t, database)}
	w.DB = testdb.OpenDSN(t, w.DSN)
	require.NoError(t, migrations.Up(context.Background(), w.DB))
	serial := map[string]string{
		"mysql": "BIGINT AUTO_INCREMENT PRIMARY KEY", "postgres": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
		"sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
	}[w.Dialect()]
	w.exec("CREATE TABLE effect (id " + serial + ", consumer VARCHAR(128) NOT NULL, event_id VARCHAR(64) NOT NULL, seq INT NOT NULL)")
	w.exec("CREATE TABLE hot (id INT PRIMARY KEY, n INT NOT NULL)")
	w.exec("INSERT INTO hot (id, n) VALUES (0, 0)" + manyRows(99))
	w.restart()
	return w
}

func manyRows(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, ", (%d, 0)", i+1)
	}
	return b.String()
}

// restart forgets what is registered.
func (w *World) restart() {
	w.T.Helper()
	var err error
	w.Outbox, err = outbox.New(w.DB, outbox.Config{Logger: logger()})
	require.NoError(w.T, err)
	w.Bus = bus.New(w.DB, bus.Config{Logger: logger()})
}

func logger() *slog.Logger {
	if os.Getenv("BLUECONE_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return slog.New(slog.DiscardHandler)
}

// Dialect is mysql, postgres or sqlite.
func (w *World) Dialect() string { return testdb.Dialect(w.Database) }

// Native is a query with the database's own placeholders.
func (w *World) Native(query string) string {
	if w.Dialect() != "postgres" {
		return query
	}
	var b strings.Builder
	for i, part := range strings.Split(query, "?") {
		if i > 0 {
			fmt.Fprintf(&b, "$%d", i)
		}
		b.WriteString(part)
	}
	return b.String()
}

func (w *World) exec(query string, args ...any) {
	w.T.Helper()
	_, err := w.DB.ExecContext(context.Background(), query, args...)
	require.NoError(w.T, err, query)
}

func (w *World) count(query string, args ...any) int {
	w.T.Helper()
	var n int
	require.NoError(w.T, w.DB.QueryRowContext(context.Background(), query, args...).Scan(&n), query)
	return n
}

func (w *World) events() int { w.T.Helper(); return w.count("SELECT COUNT(*) FROM bc_outbox_event") }

func (w *World) effects(seq int) int {
	w.T.Helper()
	return w.count("SELECT COUNT(*) FROM effect WHERE seq = ?", seq)
}

// errors are what the consume log says of failures.
func (w *World) errors() string {
	w.T.Helper()
	var all []string
	require.NoError(w.T, w.DB.NewRaw("SELECT error_message FROM bc_event_consume_log WHERE error_message IS NOT NULL").
		Scan(context.Background(), &all))
	return strings.Join(all, "\n")
}

// save saves events in a transaction of the bus's own.
func (w *World) save(events ...bus.Event) {
	w.T.Helper()
	require.NoError(w.T, w.DB.RunInTx(context.Background(), nil, func(ctx context.Context, tx bun.Tx) error {
		return w.Outbox.Save(ctx, tx, events...)
	}))
}

func (w *World) publisher() (*outbox.Publisher, error) {
	return outbox.NewPublisher(w.Outbox, w.Bus, outbox.PublisherConfig{Retention: outbox.RetentionConfig{Keep: -1}})
}

// once publishes what is due and waits for it.
func (w *World) once() {
	w.T.Helper()
	p, err := w.publisher()
	require.NoError(w.T, err)
	_, err = p.RunOnce(context.Background())
	require.NoError(w.T, err)
}

// hurry makes due what waits for its time, also for the end of a lease.
func (w *World) hurry() {
	w.T.Helper()
	past := map[string]string{
		"mysql": "UTC_TIMESTAMP(6) - INTERVAL 1 SECOND", "postgres": "now() - interval '1 second'",
		"sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now', '-1 seconds') || '000')",
	}[w.Dialect()]
	w.exec("UPDATE bc_event_consume_log SET next_retry_at = " + past + " WHERE status IN ('PENDING', 'FAILED', 'PROCESSING')")
	w.exec("UPDATE bc_outbox_event SET next_retry_at = " + past + " WHERE status IN ('SCHEDULED', 'DISPATCHING')")
}

func (w *World) deliveries() map[consumelog.Status]int {
	w.T.Helper()
	counts, err := w.Outbox.Log().Counts(context.Background())
	require.NoError(w.T, err)
	out := make(map[consumelog.Status]int)
	for s, n := range counts {
		if n > 0 {
			out[s] = int(n)
		}
	}
	return out
}

// requireSent tells that nothing is open any more.
func (w *World) requireSent(n int) {
	w.T.Helper()
	require.Equal(w.T, n, w.count("SELECT COUNT(*) FROM bc_outbox_event WHERE status = 'SENT'"), w.errors())
	require.Equal(w.T, n, w.events())
}

func (w *World) eventually(ok func() bool, what string) {
	w.T.Helper()
	require.Eventually(w.T, ok, testdb.Patience(), 5*time.Millisecond, what)
}

// write is the effect of most handlers, by one of the ways of a door.
func (d Door[T]) write(ctx context.Context, tx T, m bus.Message[Paid], seq int) error {
	return d.Ways["Exec"](ctx, tx, "INSERT INTO effect (consumer, event_id, seq) VALUES (?, ?, ?)", m.Consumer, m.ID, seq)
}

// counting registers a consumer that writes one effect per event.
func (d Door[T]) counting(b *bus.Bus, name string, cfg bus.ConsumerConfig) {
	d.On(b.Consumer(name, cfg), func(ctx context.Context, tx T, m bus.Message[Paid]) error { return d.write(ctx, tx, m, m.Payload.Seq) })
}
