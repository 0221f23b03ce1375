package delivery

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/budget"
	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/health"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

const (
	me      = "me" // the instance whose lanes they are
	anEvent = "a.b"
	lease   = time.Minute
)

// house is one process: consumers on a database, and the lanes that run their deliveries. The test is the publisher: it leases
// events, offers them, and hears what becomes of them.
type house struct {
	t     *testing.T
	db    *bun.DB
	d     dialect.Dialect
	regs  *handler.Registrations
	lanes *Lanes
	cfg   Config

	mu       sync.Mutex
	logged   bytes.Buffer
	outcomes map[string]settle.Outcome // of offered events
	calls    []string                  // events, in the order in which handlers were called
	dead     []handler.DeadLetter
}

// newHouse has no consumers yet.
func newHouse(t *testing.T) *house {
	t.Helper()
	h := &house{t: t, db: testdb.Open(t, "sqlite"), regs: handler.NewRegistrations(), outcomes: make(map[string]settle.Outcome)}
	var err error
	h.d, err = dialect.Of(h.db)
	require.NoError(t, err)
	h.regs.DB, h.regs.Tracer = h.db, telemetry.Tracer(nil)
	h.regs.Logger = slog.New(slog.NewTextHandler(writer{h}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	h.regs.Log, err = store.OpenLog(h.db)
	require.NoError(t, err)
	h.regs.Metrics, err = telemetry.NewMetrics(nil)
	require.NoError(t, err)
	h.regs.OnDeadLetter = func(_ context.Context, d handler.DeadLetter) { h.note(func() { h.dead = append(h.dead, d) }) }
	stmts := prepared.New(h.db)
	read := registry.New(store.NewRegistry(h.d, stmts), nil)
	h.cfg = Config{
		Dialect: h.d, Instance: me, Lease: lease, MaxBytes: 1 << 20, Outage: health.NewOutage(h.regs.Logger),
		Roster: registry.NewRoster(h.db, read, registry.NewMalformedRows(h.regs.Logger)),
	}
	h.exec("CREATE TABLE effect (consumer TEXT, event_id TEXT)")
	return h
}

// writer writes the log of a house.
type writer struct{ h *house }

func (w writer) Write(p []byte) (n int, err error) {
	w.h.note(func() { n, err = w.h.logged.Write(p) })
	return n, err
}

func (h *house) note(fn func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fn()
}

func (h *house) log() (text string) {
	h.note(func() { text = h.logged.String() })
	return text
}

func (h *house) called() (calls []string) {
	h.note(func() { calls = slices.Clone(h.calls) })
	return calls
}

// answers is what a handler answers, after it has written its effect.
type answers func(ctx context.Context, tx bun.Tx, m *handler.Message) error

// consumer registers a consumer of anEvent.
func (h *house) consumer(name string, cfg handler.Config, answer answers) *handler.Consumer {
	return h.register(name, cfg, &handler.Handler{}, answer)
}

// external registers one whose handler gets no transaction.
func (h *house) external(name string, cfg handler.Config, answer answers) *handler.Consumer {
	return h.register(name, cfg, &handler.Handler{External: true}, answer)
}

func (h *house) register(name string, cfg handler.Config, of *handler.Handler, answer answers) *handler.Consumer {
	c := handler.NewConsumer(h.regs, name, name, cfg)
	h.handle(c, anEvent, of, answer)
	h.regs.Consumers = append(h.regs.Consumers, c)
	return c
}

// handle adds a handler of an event type to a consumer.
func (h *house) handle(c *handler.Consumer, eventType string, of *handler.Handler, answer answers) {
	of.EventType, of.Version, of.Type = eventType, max(of.Version, 1), reflect.TypeFor[string]()
	of.Decode = func(payload json.RawMessage) (any, error) {
		var text string
		return &text, json.Unmarshal(payload, &text)
	}
	of.Run = func(ctx context.Context, tx handler.Transaction, ms []*handler.Message) error {
		for _, m := range ms {
			h.note(func() { h.calls = append(h.calls, m.Event.ID) })
			if !of.External {
				if _, err := tx.Bun.ExecContext(ctx, "INSERT INTO effect (consumer, event_id) VALUES (?, ?)", c.Name, m.Event.ID); err != nil {
					return err
				}
			}
			if answer != nil {
				if err := answer(ctx, tx.Bun, m); err != nil {
					return err
				}
			}
		}
		return nil
	}
	c.Add(of)
}

// open starts the lanes, and ends them with the test.
func (h *house) open() *house {
	h.regs.Close()
	h.cfg.Budget = budget.New(h.regs)
	settler := settle.NewSettler(h.db, h.d, prepared.New(h.db), false)
	h.cfg.RollUps = settle.NewRollUps(settler, settle.NewMeter(h.regs.Metrics, h.regs.Logger), h.cfg.Budget, h.cfg.Outage, lease)
	h.lanes = Open(h.regs, h.cfg)
	h.t.Cleanup(func() {
		h.lanes.Quiesce(context.Background())
		_ = h.lanes.Drain(context.Background())
	})
	return h
}

// pause tells the lanes that an operator has paused a consumer, or lets it go on.
func (h *house) pause(key string, is bool) {
	h.cfg.Roster.Learn(context.Background(), &registry.Snapshot{Consumers: []registry.Consumer{{Key: key, IsPaused: is}}})
}

// status is that of an event.
func (h *house) status(id string) (status string) {
	h.t.Helper()
	require.NoError(h.t, h.db.QueryRowContext(context.Background(), "SELECT status FROM bc_outbox_event WHERE event_id = ?", id).Scan(&status))
	return status
}

func (h *house) exec(query string, args ...any) {
	h.t.Helper()
	_, err := h.db.ExecContext(context.Background(), query, args...)
	require.NoError(h.t, err, query)
}

// event leases a new event of an aggregate. Its payload is its id.
func (h *house) event(id, aggregate string) *delivery {
	h.t.Helper()
	return h.eventOf(anEvent, id, aggregate)
}

func (h *house) eventOf(eventType, id, aggregate string) *delivery {
	h.t.Helper()
	h.exec("INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, status, locked_by, lock_version, "+
		"next_retry_at) VALUES ('A', ?, ?, ?, ?, 'DISPATCHING', ?, 1, "+h.d.After+")",
		aggregate, eventType, id, `"`+id+`"`, me, dialect.Micro(lease))
	return h.claimed(id)
}

// claimed is the delivery of an event whose row says that it is leased.
func (h *house) claimed(id string) *delivery {
	h.t.Helper()
	rows, _, err := store.EventsByID(context.Background(), h.db, h.d, []string{id}, func(int) bool { return true })
	require.NoError(h.t, err)
	require.Len(h.t, rows, 1)
	d := &delivery{
		Message: handler.Message{Event: &rows[0], Attempt: 1},
		kind:    claim.New, held: &claim.Lease{Version: 1}, isFresh: true,
		done: func(o settle.Outcome) { h.note(func() { h.outcomes[id] = o }) },
	}
	d.held.Extend(time.Now().Add(lease).UnixMicro())
	return d
}

// waiting makes an event with a PENDING delivery to a consumer, which is due.
func (h *house) waiting(consumer, id, aggregate string) {
	h.t.Helper()
	e := h.event(id, aggregate).Event
	h.exec("UPDATE bc_outbox_event SET status = 'FAILED', locked_by = NULL, next_retry_at = NULL WHERE event_id = ?", id)
	row := store.Delivery{
		Consumer: consumer, EventID: id, EventType: anEvent, OutboxID: e.OutboxID, AggregateType: e.AggregateType, AggregateID: aggregate,
	}
	require.NoError(h.t, h.regs.Log.Defer(context.Background(), h.db, []store.Delivery{row}, 0))
}

// failing makes an event whose delivery has failed so often, and is due.
func (h *house) failing(consumer, id, aggregate string, attempts int) {
	h.t.Helper()
	h.waiting(consumer, id, aggregate)
	h.set(consumer, id, "status = 'FAILED', attempts = ?, error_message = 'it failed', first_run_at = "+h.d.After, attempts,
		-dialect.Micro(time.Hour))
}

// set changes the row of a delivery.
func (h *house) set(consumer, id, columns string, args ...any) {
	h.t.Helper()
	h.exec("UPDATE bc_event_consume_log SET "+columns+" WHERE consumer_name = ? AND event_id = ?", append(args, consumer, id)...)
}

// due makes all that waits due.
func (h *house) due() {
	h.t.Helper()
	h.exec("UPDATE bc_event_consume_log SET next_retry_at = " + h.d.Now + " WHERE status IN ('PENDING', 'FAILED')")
}

// row is what a test looks at in the row of a delivery.
type row struct {
	status   store.Status
	attempts int
	err      string
}

func (h *house) row(consumer, id string) (r row) {
	h.t.Helper()
	err := h.db.QueryRowContext(context.Background(), "SELECT status, attempts, COALESCE(error_message, '') FROM bc_event_consume_log "+
		"WHERE consumer_name = ? AND event_id = ?", consumer, id).Scan(&r.status, &r.attempts, &r.err)
	require.NoError(h.t, err, id)
	return r
}

func (h *house) count(query string, args ...any) (n int) {
	h.t.Helper()
	require.NoError(h.t, h.db.QueryRowContext(context.Background(), query, args...).Scan(&n))
	return n
}

// rows counts the deliveries of a consumer in a state.
func (h *house) rows(consumer string, status store.Status) int {
	h.t.Helper()
	return h.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE consumer_name = ? AND status = ?", consumer, string(status))
}

// effects counts what handlers have written for an event.
func (h *house) effects(id string) int {
	h.t.Helper()
	return h.count("SELECT COUNT(*) FROM effect WHERE event_id = ?", id)
}

// push does what [Lanes.Offer] does, but hears how each delivery ends.
func (h *house) push(consumer string, ds ...*delivery) (taken int) {
	h.t.Helper()
	ln := h.lanes.lanes[consumer]
	if ln.isHalted() {
		return 0
	}
	return ln.push(ds)
}

// offer hands events to a consumer, and waits until all has ended.
func (h *house) offer(consumer string, ds ...*delivery) {
	h.t.Helper()
	require.Equal(h.t, len(ds), h.push(consumer, ds...))
	h.idle()
}

// retry lets the consumers run what waits for them, and waits until all has ended.
func (h *house) retry(consumers ...string) {
	h.t.Helper()
	require.NoError(h.t, h.lanes.Retry(h.t.Context(), consumers))
	h.idle()
}

func (h *house) idle() {
	h.t.Helper()
	h.eventually(h.lanes.AreIdle, "the lanes are idle")
}

func (h *house) eventually(is func() bool, what string) {
	h.t.Helper()
	testdb.Eventually(h.t, is, what)
}

// outcome is what the publisher heard of an event.
func (h *house) outcome(id string) (o settle.Outcome) {
	h.t.Helper()
	ok := false
	h.note(func() { o, ok = h.outcomes[id] })
	require.True(h.t, ok, "nobody said how %s ended", id)
	return o
}
