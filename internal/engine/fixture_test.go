package engine_test

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	"modernc.org/sqlite"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/faultdb"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/instance"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/schedule"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/migrations"
)

const anEvent = "a.b"

// When a row is due.
const (
	anHourAgo = "next_retry_at = datetime('now', '-1 hour')"
	inAnHour  = "next_retry_at = datetime('now', '+1 hour')"
)

// process is one process with an engine: the test is its producers and its handlers.
type process struct {
	t      *testing.T
	db     *bun.DB // of the test
	regs   *handler.Registrations
	cfg    engine.Config
	engine *engine.Engine
	isAway atomic.Bool                             // the engine's database
	fails  atomic.Pointer[func(faultdb.Step) bool] // one statement, once

	mu     sync.Mutex
	logged bytes.Buffer
	calls  []string // events, in the order in which handlers were called
}

// newProcess has no consumer yet, and an engine that looks for nothing by itself once it has looked when it starts.
func newProcess(t *testing.T, opts ...testdb.Option) *process {
	t.Helper()
	url := testdb.DSN(t, "sqlite")
	p := &process{t: t, db: testdb.OpenDSN(t, url), regs: handler.NewRegistrations()}
	if len(opts) == 0 {
		require.NoError(t, migrations.Up(t.Context(), p.db))
	}
	pool := sql.OpenDB(faultdb.Wrap(file(strings.TrimPrefix(url, "sqlite://")), faultdb.Hook{Before: p.answer}))
	pool.SetMaxOpenConns(6)
	t.Cleanup(func() { _ = pool.Close() })
	db := bun.NewDB(pool, sqlitedialect.New())
	d, err := dialect.Of(db)
	require.NoError(t, err)
	log, err := store.OpenLog(db)
	require.NoError(t, err)
	metrics, err := telemetry.NewMetrics(nil)
	require.NoError(t, err)
	logger := slog.New(slog.NewTextHandler(writer{p}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	cron, err := schedule.Parse("0 0 0 1 1 ?")
	require.NoError(t, err)
	stmts := prepared.New(db)
	p.regs.DB, p.regs.Log, p.regs.Logger, p.regs.Metrics, p.regs.Tracer = db, log, logger, metrics, telemetry.Tracer(nil)
	p.cfg = engine.Config{
		DB: db, Dialect: d, Statements: stmts, Log: log, Handlers: p.regs, Settler: settle.NewSettler(db, d, stmts, false),
		Meter: settle.NewMeter(metrics, logger), Malformed: registry.NewMalformedRows(logger), Metrics: metrics, Logger: logger,
		Quoting:  dialect.NewQuoting(d),
		Identity: engine.Identity{Instance: "here", Name: "here", Owner: instance.Run("here")},
		Limits: engine.Limits{
			BatchSize: 100, MaxBytes: 1 << 20, Poll: time.Hour, Cron: cron, Lease: time.Minute, DrainTimeout: testdb.Patience(),
		},
	}
	return p
}

// file opens an SQLite database.
type file string

func (f file) Connect(context.Context) (driver.Conn, error) {
	return f.Driver().Open("file:" + string(f) + "?_txlock=immediate&_pragma=busy_timeout(30000)&_pragma=journal_mode(WAL)" +
		"&_pragma=synchronous(NORMAL)&_pragma=foreign_keys(1)")
}

func (f file) Driver() driver.Driver { return &sqlite.Driver{} }

func (p *process) answer(_ context.Context, s faultdb.Step) error {
	if is := p.fails.Load(); is != nil && (*is)(s) && p.fails.CompareAndSwap(is, nil) {
		return io.ErrUnexpectedEOF
	}
	if p.isAway.Load() {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// writer writes the log of a process.
type writer struct{ p *process }

func (w writer) Write(text []byte) (int, error) {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	return w.p.logged.Write(text)
}

func (p *process) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.logged.String()
}

func (p *process) called() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

// consumer registers a consumer of anEvent, whose handler gets a transaction unless it is external.
func (p *process) consumer(name string, external bool, handle func(ctx context.Context, event string) error) *handler.Handler {
	c := handler.NewConsumer(p.regs, name, name, handler.Config{})
	h := &handler.Handler{
		EventType: anEvent, Version: 1, Type: reflect.TypeFor[string](), External: external,
		Decode: func(payload json.RawMessage) (any, error) {
			var text string
			return &text, json.Unmarshal(payload, &text)
		},
		Run: func(ctx context.Context, _ handler.Transaction, ms []*handler.Message) error {
			for _, m := range ms {
				p.mu.Lock()
				p.calls = append(p.calls, m.Event.ID)
				p.mu.Unlock()
				if handle == nil {
					continue
				}
				if err := handle(ctx, m.Event.ID); err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Add(h)
	p.regs.Consumers = append(p.regs.Consumers, c)
	return h
}

// save saves events, each of an aggregate of its own, by their ids.
func (p *process) save(ids ...string) {
	p.t.Helper()
	for _, id := range ids {
		p.saveOf(id, id)
	}
}

// saveOf saves an event of an aggregate, and sets columns of its row.
func (p *process) saveOf(id, aggregate string, columns ...string) {
	p.t.Helper()
	p.exec("INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, next_retry_at) "+
		"VALUES ('A', ?, ?, ?, '\"it\"', "+p.cfg.Dialect.Now+")", aggregate, anEvent, id)
	for _, set := range columns {
		p.exec("UPDATE bc_outbox_event SET "+set+" WHERE event_id = ?", id)
	}
}

func (p *process) exec(query string, args ...any) {
	p.t.Helper()
	_, err := p.db.ExecContext(context.Background(), query, args...)
	require.NoError(p.t, err, query)
}

// status is that of an event.
func (p *process) status(id string) (status string) {
	p.t.Helper()
	require.NoError(p.t, p.db.QueryRowContext(context.Background(), "SELECT status FROM bc_outbox_event WHERE event_id = ?", id).Scan(&status))
	return status
}

func (p *process) count(where string) (n int) {
	p.t.Helper()
	require.NoError(p.t, p.db.QueryRowContext(context.Background(), "SELECT COUNT(*) FROM "+where).Scan(&n))
	return n
}

func (p *process) eventually(is func() bool, what string) {
	p.t.Helper()
	testdb.Eventually(p.t, is, what)
}

// becomes waits for the status of events.
func (p *process) becomes(status string, ids ...string) {
	p.t.Helper()
	for _, id := range ids {
		p.eventually(func() bool { return p.status(id) == status }, fmt.Sprintf("%s is to become %s", id, status))
	}
}

// running is an engine that runs.
type running struct {
	p     *process
	end   context.CancelFunc
	ended chan error
}

// run runs the engine until it takes events.
func (p *process) run() *running {
	p.t.Helper()
	r := p.begin()
	p.eventually(p.engine.IsTaking, "it runs")
	return r
}

// begin begins to run the engine.
func (p *process) begin() *running {
	ctx, end := context.WithCancel(context.Background())
	p.engine = engine.New(p.cfg)
	r := &running{p: p, end: end, ended: make(chan error, 1)}
	go func() { r.ended <- p.engine.Run(ctx, func(ctx context.Context) { <-ctx.Done() }) }()
	p.t.Cleanup(end)
	return r
}

// result waits until Run has ended.
func (r *running) result() error {
	r.p.t.Helper()
	select {
	case err := <-r.ended:
		return err
	case <-time.After(testdb.Patience()):
		require.FailNow(r.p.t, "Run does not end")
		return nil
	}
}

// stop ends the run, which has nothing to complain of.
func (r *running) stop() {
	r.p.t.Helper()
	r.end()
	require.NoError(r.p.t, r.result())
	require.False(r.p.t, r.p.engine.IsTaking())
}
