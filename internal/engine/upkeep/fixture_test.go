package upkeep_test

import (
	"context"
	"encoding/json"
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
	"github.com/bluecone-go/bluecone/internal/engine/delivery"
	"github.com/bluecone-go/bluecone/internal/engine/health"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/engine/upkeep"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

const (
	anEvent = "a.b"
	name    = "here"
	me      = name + "/now" // this run
	before  = name + "/before"
	lease   = time.Minute
	grace   = 5 * time.Minute
)

// run is one run of a publisher with the consumer C. The test is its loop.
type run struct {
	*upkeep.Upkeep
	t       *testing.T
	db      *bun.DB
	d       dialect.Dialect
	log     store.Log
	known   *registry.Registry
	roster  *registry.Roster
	flights *settle.Flights
	lanes   *delivery.Lanes
	logged  testdb.Log

	mu     sync.Mutex
	called []string // events
	blocks bool     // the handler, until its context ends
}

// newRun has done nothing yet. Its lanes end with the test.
func newRun(t *testing.T, db *bun.DB) *run {
	t.Helper()
	r := &run{t: t, db: db}
	logger, regs := r.logged.Logger(), handler.NewRegistrations()
	var err error
	r.d, err = dialect.Of(db)
	require.NoError(t, err)
	r.log, err = store.OpenLog(db)
	require.NoError(t, err)
	metrics, err := telemetry.NewMetrics(nil)
	require.NoError(t, err)
	regs.DB, regs.Log, regs.Logger, regs.Metrics, regs.Tracer = db, r.log, logger, metrics, telemetry.Tracer(nil)
	c := handler.NewConsumer(regs, "C", "C", handler.Config{Timeout: time.Hour})
	c.Add(&handler.Handler{
		EventType: anEvent, Version: 1, Type: reflect.TypeFor[string](), External: true, Run: r.handle,
		Decode: func(payload json.RawMessage) (any, error) { return new(string), json.Unmarshal(payload, new(string)) },
	})
	regs.Consumers = append(regs.Consumers, c)
	stmts, outage, turns := prepared.New(db), health.NewOutage(logger), budget.New(regs)
	r.known = registry.New(store.NewRegistry(r.d, stmts), map[string][]string{"C": {anEvent}})
	r.roster = registry.NewRoster(db, r.known, registry.NewRottenRows(logger))
	settler, meter := settle.NewSettler(db, r.d, stmts, false), settle.NewMeter(metrics, logger)
	r.lanes = delivery.Open(regs, delivery.Config{
		Dialect: r.d, Instance: me, Lease: lease, MaxBytes: 1 << 20, Budget: turns, Roster: r.roster, Outage: outage,
		RollUps: settle.NewRollUps(settler, meter, turns, outage, lease),
	})
	t.Cleanup(func() {
		ctx, end := context.WithCancel(context.Background())
		end() // handlers that block have no time to end
		r.lanes.Quiesce(ctx)
		_ = r.lanes.Drain(ctx)
	})
	r.flights = settle.NewFlights(100, 1<<20)
	r.Upkeep = upkeep.New(upkeep.Config{
		DB: db, Dialect: r.d, Statements: stmts, Log: r.log, Logger: logger, Name: name, Owner: me, Lease: lease, LeftGrace: grace,
		Claimer: claim.NewClaimer(db, r.d, stmts, r.known, store.Lease{Owner: me, For: lease}), Settler: settler,
		Settling: settle.NewSettling(settle.SettlingConfig{
			DB: db, Log: r.log, Settler: settler, Meter: meter, Instance: name, Owner: me, Lease: lease, Flights: r.flights,
			Registry: r.known, Outage: outage, Budget: turns,
		}),
		Meter: meter, Lanes: r.lanes, Roster: r.roster, Budget: turns, Outage: outage,
	})
	return r
}

// register writes the consumer C into the registry.
func (r *run) register() *run {
	r.t.Helper()
	all := []store.Announcement{{Key: "C", Name: "C", Types: []string{anEvent}}}
	require.NoError(r.t, r.known.Announce(r.t.Context(), r.db, all))
	return r
}

func (r *run) handle(ctx context.Context, _ handler.Transaction, ms []*handler.Message) error {
	r.mu.Lock()
	for _, m := range ms {
		r.called = append(r.called, m.Event.ID)
	}
	blocks := r.blocks
	r.mu.Unlock()
	if blocks {
		<-ctx.Done()
	}
	return ctx.Err()
}

// calls are the events that the handler was called with.
func (r *run) calls() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.called)
}

func (r *run) exec(query string, args ...any) {
	r.t.Helper()
	_, err := r.db.ExecContext(context.Background(), query, args...)
	require.NoError(r.t, err, query)
}

// save adds an event of an aggregate.
func (r *run) save(id, aggregate, status string) (outboxID int64) {
	r.t.Helper()
	r.exec("INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, status) "+
		"VALUES ('A', ?, ?, ?, '\"it\"', ?)", aggregate, anEvent, id, status)
	require.NoError(r.t, r.db.QueryRowContext(r.t.Context(), "SELECT id FROM bc_outbox_event WHERE event_id = ?", id).Scan(&outboxID))
	return outboxID
}

// leased adds an event that an owner has leased for a while.
func (r *run) leased(id, owner string, length time.Duration) (outboxID int64) {
	r.t.Helper()
	outboxID = r.save(id, id, "DISPATCHING")
	r.exec("UPDATE bc_outbox_event SET locked_by = ?, lock_version = 1, next_retry_at = "+r.d.After+" WHERE event_id = ?",
		owner, dialect.Micro(length), id)
	return outboxID
}

// deliver adds an event of an aggregate and its delivery to C, which waits for so long. columns are set in its row.
func (r *run) deliver(id, aggregate string, wait time.Duration, columns string, args ...any) {
	r.t.Helper()
	row := store.Delivery{
		Consumer: "C", EventID: id, EventType: anEvent, OutboxID: r.save(id, aggregate, "FAILED"), AggregateType: "A", AggregateID: aggregate,
	}
	require.NoError(r.t, r.log.Defer(r.t.Context(), r.db, []store.Delivery{row}, wait))
	if columns != "" {
		r.exec("UPDATE bc_event_consume_log SET "+columns+" WHERE event_id = ?", append(args, id)...)
	}
}

// status is that of an event.
func (r *run) status(id string) (status string) {
	r.t.Helper()
	require.NoError(r.t, r.db.QueryRowContext(r.t.Context(), "SELECT status FROM bc_outbox_event WHERE event_id = ?", id).Scan(&status))
	return status
}

// isDue reports whether what waits in a table for an event is due, in so long.
func (r *run) isDue(table, id string, in time.Duration) (yes bool) {
	r.t.Helper()
	require.NoError(r.t, r.db.QueryRowContext(r.t.Context(), "SELECT CASE WHEN next_retry_at <= "+r.d.After+" THEN 1 ELSE 0 END FROM "+table+
		" WHERE event_id = ?", dialect.Micro(in), id).Scan(&yes))
	return yes
}

const (
	events     = "bc_outbox_event"
	deliveries = "bc_event_consume_log"
)
