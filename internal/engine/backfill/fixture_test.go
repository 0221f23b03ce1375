package backfill_test

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/backfill"
	"github.com/bluecone-go/bluecone/internal/engine/budget"
	"github.com/bluecone-go/bluecone/internal/engine/delivery"
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
	anEvent = "a.b"
	limit   = time.Minute
)

// beginning is before all that was ever saved.
func beginning() time.Time { return time.UnixMicro(1) }

// process has the consumer C of anEvent, which is new and wants a part of the past.
type process struct {
	*backfill.Backfills
	t         *testing.T
	db        *bun.DB
	d         dialect.Dialect
	known     *registry.Registry
	roster    *registry.Roster
	lanes     *delivery.Lanes
	startFrom time.Time
	logged    testdb.Log

	mu     sync.Mutex
	called []string // events
}

// newProcess has registered nobody. Its lanes end with the test.
func newProcess(t *testing.T, db *bun.DB, startFrom time.Time) *process {
	t.Helper()
	p := &process{t: t, db: db, startFrom: startFrom}
	logger, regs := p.logged.Logger(), handler.NewRegistrations()
	var err error
	p.d, err = dialect.Of(db)
	require.NoError(t, err)
	log, err := store.OpenLog(db)
	require.NoError(t, err)
	metrics, err := telemetry.NewMetrics(nil)
	require.NoError(t, err)
	regs.DB, regs.Log, regs.Logger, regs.Metrics, regs.Tracer = db, log, logger, metrics, telemetry.Tracer(nil)
	c := handler.NewConsumer(regs, "C", "C", handler.Config{StartFrom: startFrom, Concurrency: 1})
	c.Add(&handler.Handler{
		EventType: anEvent, Version: 1, Type: reflect.TypeFor[string](), Run: p.handle,
		Decode: func(payload json.RawMessage) (any, error) { return new(string), json.Unmarshal(payload, new(string)) },
	})
	regs.Consumers = append(regs.Consumers, handler.NewConsumer(regs, "Old", "Old", handler.Config{}), c)
	stmts, outage, turns := prepared.New(db), health.NewOutage(logger), budget.New(regs)
	p.known = registry.New(store.NewRegistry(p.d, stmts), map[string][]string{"C": {anEvent}})
	p.roster = registry.NewRoster(db, p.known, registry.NewRottenRows(logger))
	settler, meter := settle.NewSettler(db, p.d, stmts, false), settle.NewMeter(metrics, logger)
	p.lanes = delivery.Open(regs, delivery.Config{
		Dialect: p.d, Instance: "me", Lease: time.Minute, MaxBytes: 1 << 20, Budget: turns, Roster: p.roster, Outage: outage,
		RollUps: settle.NewRollUps(settler, meter, turns, outage, limit),
	})
	t.Cleanup(func() {
		p.lanes.Quiesce(context.Background())
		_ = p.lanes.Drain(context.Background())
	})
	p.Backfills = backfill.New(backfill.Config{
		DB: db, Dialect: p.d, Statements: stmts, Log: log, Logger: logger, Consumers: regs.ByName(), Limit: limit, Settler: settler,
		Meter: meter, Roster: p.roster, Lanes: p.lanes, Budget: turns, Outage: outage,
	})
	return p
}

// register writes C into the registry, with its backfill if it was not registered before, and reads it.
func (p *process) register() *process {
	p.t.Helper()
	all := []store.Announcement{{Key: "C", Name: "C", Types: []string{anEvent}, StartFrom: p.startFrom}}
	require.NoError(p.t, p.known.Announce(p.t.Context(), p.db, all))
	require.NoError(p.t, p.roster.Refresh(p.t.Context()))
	return p
}

func (p *process) handle(_ context.Context, _ handler.Transaction, ms []*handler.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range ms {
		p.called = append(p.called, m.Event.ID)
	}
	return nil
}

// calls waits until the lanes have nothing to do, and returns the events that the handler of C was called with.
func (p *process) calls() []string {
	p.t.Helper()
	testdb.Eventually(p.t, p.lanes.Idle, "the lanes are idle")
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.called)
}

func (p *process) exec(query string, args ...any) {
	p.t.Helper()
	_, err := p.db.ExecContext(context.Background(), query, args...)
	require.NoError(p.t, err, query)
}

// sent adds events that were delivered to others, all of one aggregate.
func (p *process) sent(ids ...string) {
	p.t.Helper()
	for chunk := range slices.Chunk(ids, 100) {
		rows := make([]string, len(chunk))
		var args []any
		for i, id := range chunk {
			rows[i] = "('A', 'a', ?, ?, '\"it\"', 'SENT', 1)"
			args = append(args, anEvent, id)
		}
		p.exec("INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, status, lock_version) VALUES "+
			strings.Join(rows, ", "), args...)
	}
}

// set changes the row of an event.
func (p *process) set(id, columns string, args ...any) {
	p.t.Helper()
	p.exec("UPDATE bc_outbox_event SET "+columns+" WHERE event_id = ?", append(args, id)...)
}

// status is that of an event.
func (p *process) status(id string) (status string) {
	p.t.Helper()
	require.NoError(p.t, p.db.QueryRowContext(p.t.Context(), "SELECT status FROM bc_outbox_event WHERE event_id = ?", id).Scan(&status))
	return status
}

// pause lets C start nothing, or lets it go on.
func (p *process) pause(is bool) {
	p.t.Helper()
	until, args := "NULL", []any{}
	if is {
		until, args = p.d.After, []any{dialect.Micro(time.Hour)}
	}
	p.exec("UPDATE bc_consumer SET paused_until = "+until+" WHERE name = 'C'", args...)
	require.NoError(p.t, p.roster.Refresh(p.t.Context()))
}

// given are the events of which C has a delivery, in order.
func (p *process) given() []string {
	p.t.Helper()
	given := []string{}
	require.NoError(p.t, p.db.NewRaw("SELECT event_id FROM bc_event_consume_log WHERE consumer_name = 'C' ORDER BY outbox_id").
		Scan(p.t.Context(), &given))
	return given
}

// step does one step.
func (p *process) step() backfill.Result {
	p.t.Helper()
	did, err := p.Step(p.t.Context())
	require.NoError(p.t, err)
	return did
}

// operation is where the backfill of C stands.
func (p *process) operation() string {
	p.t.Helper()
	var state string
	var seen, done, passed int
	require.NoError(p.t, p.db.QueryRowContext(p.t.Context(), "SELECT state, seen, done, passed FROM bc_bulk_operation "+
		"WHERE consumer_name = 'C'").Scan(&state, &seen, &done, &passed))
	return fmt.Sprintf("%s: %d seen, %d given, %d passed", state, seen, done, passed)
}

// numbered are the names of n events.
func numbered(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("e%04d", i)
	}
	return ids
}
