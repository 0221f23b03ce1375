package alert_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/alert"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// TestMain lets the test binary be an instance that a test kills.
func TestMain(m *testing.M) {
	if os.Getenv(envDSN) == "" {
		testdb.Main(m)
		return
	}
	if err := child(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

var quiet = slog.New(slog.DiscardHandler)

// inbox is a sink that keeps what it gets.
type inbox struct {
	mu      sync.Mutex
	notices []alert.Notice
	broken  error
}

func (b *inbox) Send(_ context.Context, n alert.Notice) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.broken != nil {
		return b.broken
	}
	b.notices = append(b.notices, n)
	return nil
}

func (b *inbox) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.broken = err
}

func (b *inbox) got() []alert.Notice {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]alert.Notice(nil), b.notices...)
}

// told lists the kinds, levels and rules of what has come.
func (b *inbox) told() []string {
	out := []string{}
	for _, n := range b.got() {
		out = append(out, string(n.Kind)+" "+string(n.Level)+" "+n.Rule)
	}
	return out
}

func newAlerter(t *testing.T, db *bun.DB, cfg alert.Config) *alert.Alerter {
	t.Helper()
	cfg.Logger = quiet
	ob, err := outbox.New(db, outbox.Config{Logger: quiet})
	require.NoError(t, err)
	a, err := alert.New(db, ob, cfg)
	require.NoError(t, err)
	return a
}

func to(sinks ...alert.Sink) []alert.Route {
	var out []alert.Route
	for i, s := range sinks {
		out = append(out, alert.Route{Name: fmt.Sprintf("sink%d", i+1), Sink: s})
	}
	return out
}

func look(t *testing.T, a *alert.Alerter) alert.Report {
	t.Helper()
	r, err := a.RunOnce(t.Context())
	require.NoError(t, err)
	return r
}

// ago is a time by the database's clock as SQL.
func ago(t *testing.T, db *bun.DB, d time.Duration) string {
	t.Helper()
	dia, err := dialect.Of(db)
	require.NoError(t, err)
	return strings.Replace(dia.After, "?", fmt.Sprint(-d.Microseconds()), 1)
}

func sqlExec(t *testing.T, db *bun.DB, query string, args ...any) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), query, args...)
	require.NoError(t, err, query)
}

var seq = struct {
	sync.Mutex
	n int
}{}

func unique() string {
	seq.Lock()
	defer seq.Unlock()
	seq.n++
	return fmt.Sprintf("e-%d", seq.n)
}

// event saves a row of the outbox as it was some time ago.
func event(t *testing.T, db *bun.DB, status, eventType string, age time.Duration, more ...string) {
	t.Helper()
	columns, values := others(more)
	at := ago(t, db, age)
	sqlExec(t, db, "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, status, created_at, "+
		"updated_at"+columns+") VALUES ('ORDER', '7', ?, ?, '{}', ?, "+at+", "+at+values+")", eventType, unique(), status)
}

// delivery saves a row of the consume log as it was some time ago.
func delivery(t *testing.T, db *bun.DB, status, consumer, eventType string, attempts int, age time.Duration, more ...string) {
	t.Helper()
	at := ago(t, db, age)
	columns, values := others(more)
	sqlExec(t, db, "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, attempts, consumed_at, created_at, "+
		"updated_at"+columns+") VALUES (?, ?, ?, ?, ?, "+at+", "+at+", "+at+values+")", consumer, unique(), eventType, status, attempts)
}

// others are more columns and their values, each followed by its value, after others.
func others(more []string) (columns, values string) {
	for i := 0; i+1 < len(more); i += 2 {
		columns, values = columns+", "+more[i], values+", "+more[i+1]
	}
	return columns, values
}

// never is when a delivery is due that waits for an instance that knows its schema version.
func never(t *testing.T, db *bun.DB) string {
	t.Helper()
	d, err := dialect.Of(db)
	require.NoError(t, err)
	return d.Never
}

func attempt(t *testing.T, db *bun.DB, consumer string, age time.Duration) {
	t.Helper()
	sqlExec(t, db, "INSERT INTO bc_delivery_attempt (consumer_name, event_id, attempt, outcome, instance, duration_us, created_at) "+
		"VALUES (?, ?, 1, 'FAILED', 'i', 1, "+ago(t, db, age)+")", consumer, unique())
}

// registered saves that an instance has the consumer, and when it last said so.
func registered(t *testing.T, db *bun.DB, name string, seen time.Duration, more ...string) {
	t.Helper()
	columns, values := others(more)
	sqlExec(t, db, "INSERT INTO bc_consumer (name, event_types, aliases, seen_at"+columns+") VALUES (?, '[]', '[]', "+ago(t, db, seen)+values+
		")", name)
}

// reservation saves an event that was reserved in the ledger, and whose time to live was over some time ago.
func reservation(t *testing.T, db *bun.DB, eventType string, over time.Duration, nextCheck string) {
	t.Helper()
	state := "PREPARED"
	if nextCheck == "NULL" {
		state = "CONFIRMED"
	}
	at := ago(t, db, over)
	sqlExec(t, db, "INSERT INTO bc_reservation (token, event_id, caller, event_type, state, event, expires_at, next_check_at, created_at, "+
		"updated_at) VALUES (?, ?, 'shop', ?, ?, '{}', "+at+", "+nextCheck+", "+at+", "+at+")", unique(), unique(), eventType, state)
}

func job(t *testing.T, db *bun.DB, code, status string, finished time.Duration) {
	t.Helper()
	sqlExec(t, db, "INSERT INTO bc_job_lease (job_code, last_due_at, last_finished_at, last_status) VALUES (?, "+ago(t, db, finished)+", "+
		ago(t, db, finished)+", ?)", code, status)
}

func jobRun(t *testing.T, db *bun.DB, code, said string) {
	t.Helper()
	sqlExec(t, db, "INSERT INTO bc_job_run (job_code, instance, status, error_message) VALUES (?, 'i', 'FAILED', ?)", code, said)
}

var errDown = errors.New("down")

func logger(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }
