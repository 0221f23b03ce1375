// Package roomtest sets up what tests of the engine's rooms above the lanes share: a consumer, C, of one event type, and its lanes.
package roomtest

import (
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
	// EventType is what C takes.
	EventType = "a.b"
	// Lease is how long leases last.
	Lease = time.Minute
)

// Room is what a room works with in one run of a publisher.
type Room struct {
	Engine
	T      *testing.T
	Logged testdb.Log
	Lanes  *delivery.Lanes

	mu     sync.Mutex
	called []string // events
	blocks bool
}

// Engine is what is below the lanes.
type Engine struct {
	DB            *bun.DB
	Dialect       dialect.Dialect
	Log           store.Log
	Logger        *slog.Logger
	Registrations *handler.Registrations
	Statements    *prepared.Statements
	Known         *registry.Registry
	Roster        *registry.Roster
	Settler       *settle.Settler
	Meter         *settle.Meter
	Budget        *budget.Transactions
	Outage        *health.Outage
}

// New has done nothing yet, for an owner of leases. C's handler has no transaction if it is external. Its lanes end with the test.
func New(t *testing.T, db *bun.DB, owner string, cfg handler.Config, isExternal bool) *Room {
	t.Helper()
	r := &Room{T: t, Engine: Engine{DB: db, Registrations: handler.NewRegistrations(), Statements: prepared.New(db)}}
	r.Logger = r.Logged.Logger()
	r.Outage = health.NewOutage(r.Logger)
	var err error
	r.Dialect, err = dialect.Of(db)
	require.NoError(t, err)
	r.Log, err = store.OpenLog(db)
	require.NoError(t, err)
	regs := r.Registrations
	regs.Metrics, err = telemetry.NewMetrics(nil)
	require.NoError(t, err)
	regs.DB, regs.Log, regs.Logger, regs.Tracer = db, r.Log, r.Logger, telemetry.Tracer(nil)
	c := handler.NewConsumer(regs, "C", "C", cfg)
	c.Add(&handler.Handler{
		EventType: EventType, Version: 1, Type: reflect.TypeFor[string](), External: isExternal, Run: r.handle,
		Decode: func(payload json.RawMessage) (any, error) { return new(string), json.Unmarshal(payload, new(string)) },
	})
	regs.Consumers = append(regs.Consumers, c)
	r.Budget = budget.New(regs)
	r.Known = registry.New(store.NewRegistry(r.Dialect, r.Statements), map[string][]string{"C": {EventType}})
	r.Roster = registry.NewRoster(db, r.Known, registry.NewMalformedRows(r.Logger))
	r.Settler, r.Meter = settle.NewSettler(db, r.Dialect, r.Statements, false), settle.NewMeter(regs.Metrics, r.Logger)
	r.Lanes = delivery.Open(regs, delivery.Config{
		Dialect: r.Dialect, Instance: owner, Lease: Lease, MaxBytes: 1 << 20, Budget: r.Budget, Roster: r.Roster, Outage: r.Outage,
		RollUps: settle.NewRollUps(r.Settler, r.Meter, r.Budget, r.Outage, Lease),
	})
	t.Cleanup(func() {
		ctx, end := context.WithCancel(context.Background())
		end() // handlers that block have no time to end
		r.Lanes.Quiesce(ctx)
		_ = r.Lanes.Drain(ctx)
	})
	return r
}

func (r *Room) handle(ctx context.Context, _ handler.Transaction, ms []*handler.Message) error {
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

// Block makes the handler of C go on until its context ends.
func (r *Room) Block() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.blocks = true
}

// Calls are the events that the handler of C was called with.
func (r *Room) Calls() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.called)
}

// Exec runs a statement.
func (r *Room) Exec(query string, args ...any) {
	r.T.Helper()
	testdb.Exec(r.T, r.DB, query, args...)
}

// Status is that of an event.
func (r *Room) Status(id string) (status string) {
	r.T.Helper()
	require.NoError(r.T, r.DB.QueryRowContext(r.T.Context(), "SELECT status FROM bc_outbox_event WHERE event_id = ?", id).Scan(&status))
	return status
}
