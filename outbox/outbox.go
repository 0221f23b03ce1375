// Package outbox is the producing side of bluecone: it saves events in the
// transaction of the change that caused them, and publishes them after the commit.
//
// # Contract
//
// [Outbox.Save] takes a transaction: any [Tx], such as a bun.Tx or a *sql.Tx. A *bun.DB or
// *sql.DB does not compile, so nothing is saved outside a transaction.
// It validates first, then costs one INSERT in the caller's transaction, and never
// waits for the engine. The event exists if and only if that transaction commits.
//
// A [Publisher] claims committed events in a short transaction of its own, hands
// them to the lanes of a bus, and settles them when every consumer has an outcome.
// Claims are leases: when an instance dies, freezes or is cut off, another one
// claims the event again after the lease has expired. Every write that ends
// something carries the owner and the lock version of the lease.
//
// Two instances never work on two events of one aggregate for one consumer at the same time, but for events that have no order
// (docs/guarantees.md, 4).
//
// The status column alone says what is due. A claim's starting point is only a short cut.
// All times are the database's.
//
// # Shutdown
//
// When the context of [Publisher.Run] ends, it stops claiming, lets running handlers
// finish within the drain time, gives back the rest, and returns nil.
package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/uptrace/bun"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/budget"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/engine/remote"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/instance"
	"github.com/bluecone-go/bluecone/internal/landing"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/spi"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// Status is the state of an event.
type Status string

// The states of an event.
const (
	// StatusNew is committed and due at once.
	StatusNew Status = "NEW"
	// StatusScheduled is due at next_retry_at: delayed by its producer, or parked because
	// nobody registered for its type.
	StatusScheduled Status = "SCHEDULED"
	// StatusDispatching is leased by an instance until next_retry_at.
	StatusDispatching Status = "DISPATCHING"
	// StatusSent is delivered to, or skipped by, every consumer.
	StatusSent Status = "SENT"
	// StatusFailed has a delivery that waits for another attempt.
	StatusFailed Status = "FAILED"
	// StatusDead has a delivery that waits for an operator, and none that waits for the engine.
	StatusDead Status = "DEAD"
)

// Config configures an [Outbox]. The zero value works.
type Config struct {
	// MaxRetryCount is how many failed attempts a delivery may have, unless its
	// consumer says otherwise. The demo's key for it is bluecone.outbox.max-retry-count. From 1 to 1000. Default: 10.
	MaxRetryCount int
	// MaxPayload is the largest payload that is accepted, in bytes of JSON: at most 4 MiB. Default: 256 KiB.
	MaxPayload int
	// DeleteSent deletes the row of an event at the moment at which it would become SENT, which
	// costs less than keeping it. The consume log is then the only trace: it says who consumed what
	// and still recognises what is repeated, but the payloads are gone, and so are archive and
	// replay. An event without any consumer stays, as SENT. Set it alike on all instances.
	// Default: false.
	DeleteSent bool
	// Instance names this process in leases and logs, at most 64 bytes. Give no two processes that run one name: the
	// one that starts takes over from a run before it under its name, at once.
	// Default: host name, process id and a random part.
	Instance string
	// Logger receives one line per outcome, never a payload. Default: slog.Default().
	Logger *slog.Logger
	// TracerProvider makes the producer spans. Default: the global provider.
	TracerProvider trace.TracerProvider
	// MeterProvider makes the instruments. Default: the global provider.
	MeterProvider metric.MeterProvider
}

func (c Config) withDefaults() Config {
	if c.MaxRetryCount == 0 {
		c.MaxRetryCount = store.DefaultMaxAttempts
	}
	if c.MaxPayload == 0 {
		c.MaxPayload = defaultPayload
	}
	if c.Instance == "" {
		c.Instance = instance.Name()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.MaxRetryCount < 0 || c.MaxRetryCount > 1000 {
		errs = append(errs, fmt.Errorf("outbox.Config.MaxRetryCount is %d: it must be between 1 and 1000 (0 means 10)", c.MaxRetryCount))
	}
	if c.MaxPayload < 0 || c.MaxPayload > maxPayload {
		errs = append(errs, fmt.Errorf("outbox.Config.MaxPayload is %d: it must be between 1 and %d bytes (0 means 256 KiB)", c.MaxPayload,
			maxPayload))
	}
	if len(c.Instance) > 64 {
		errs = append(errs, fmt.Errorf("outbox.Config.Instance %q has %d bytes: the limit is 64", c.Instance, len(c.Instance)))
	}
	return errors.Join(errs...)
}

// Outbox saves events, and answers and steers what has become of them.
// It is safe for concurrent use.
type Outbox struct {
	access // with which spi.LandingOf gets at what an inbox needs
	statements
	rooms
	cfg    Config
	reader *consumelog.Log
	logger *slog.Logger

	quoting *dialect.Quoting
	tracer  trace.Tracer
	metrics *telemetry.Metrics
	commits
	here publishers
}

type access = spi.Access

// rooms are those of the engine that operators use too.
type rooms struct {
	settler   *settle.Settler
	meter     *settle.Meter
	malformed *registry.MalformedRows
}

// statements are the database, and what is said to it.
type statements struct {
	db     *bun.DB
	d      dialect.Dialect
	stmts  *prepared.Statements
	log    store.Log
	saving store.Saving
	keys   store.Keys
}

// inTx runs one of the library's own short transactions.
func (s *statements) inTx(ctx context.Context, fn func(ctx context.Context, tx bun.Tx) error) error {
	return store.InTx(ctx, s.db, s.d, s.stmts, fn)
}

// New returns the outbox of db. It adds a query hook to db that notices the commits of
// transactions that saved something, so call it while wiring, before db is in use. It does not speak to the database. It
// returns an error if db is nil or not of MySQL, MariaDB, PostgreSQL or SQLite, and all mistakes in cfg at once.
func New(db *bun.DB, cfg Config) (*Outbox, error) {
	if db == nil {
		return nil, fmt.Errorf("outbox.New: %w", dialect.ErrNil)
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	d, err := dialect.Of(db)
	if err != nil {
		return nil, err
	}
	log, err := store.OpenLog(db)
	if err != nil {
		return nil, err
	}
	reader, err := consumelog.New(db)
	if err != nil {
		return nil, err
	}
	metrics, err := telemetry.NewMetrics(cfg.MeterProvider)
	if err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	stmts := prepared.New(db)
	ob := &Outbox{
		statements: statements{db: db, d: d, stmts: stmts, log: log, saving: store.NewSaving(d, stmts), keys: store.NewKeys(d)},
		cfg:        cfg, reader: reader,
		logger: cfg.Logger, metrics: metrics, quoting: dialect.NewQuoting(d),
		tracer: telemetry.Tracer(cfg.TracerProvider), here: newPublishers(),
	}
	ob.rooms = rooms{
		settler: settle.NewSettler(db, d, stmts, cfg.DeleteSent), meter: settle.NewMeter(metrics, cfg.Logger),
		malformed: registry.NewMalformedRows(cfg.Logger),
	}
	again, err := remote.New(db, ob.settler, ob.meter, cfg.Logger, landing.AgainConfig())
	if err != nil {
		return nil, err
	}
	ob.access = spi.AccessTo(landingOf(ob, again))
	ob.notice(ob)
	db.AddQueryHook(ob.hook) //nolint:staticcheck // WithQueryHook makes a copy; the user's own db must show its commits
	return ob, nil
}

// landingOf is what an inbox lands with.
func landingOf(o *Outbox, again *remote.Deliveries) *landing.Landing {
	return landing.New(landing.Config{
		DB: o.db, Dialect: o.d, Statements: o.stmts, Saving: o.saving, Metrics: o.metrics, Instance: o.cfg.Instance,
		Logger: o.cfg.Logger, MaxPayload: o.cfg.MaxPayload, MaxDepth: maxDepth, MaxMetadata: maxMetadata, MaxAttempts: o.cfg.MaxRetryCount,
		Deliveries: again, Notify: func(tx store.Tx) store.Tx { return o.notify.by(tx, true) }, HandOver: o.here.handOver,
	})
}

// Instance is the name of this process in leases and logs.
func (o *Outbox) Instance() string { return o.cfg.Instance }

// Database is where the outbox is: mysql (MariaDB, too), postgres or sqlite.
func (o *Outbox) Database() string { return o.d.Name }

// Log is the consume log beside the outbox.
func (o *Outbox) Log() *consumelog.Log { return o.reader }

// Sweep recomputes FAILED events none of whose deliveries waits, and makes rows due that
// wait for a time they do not have. Publishers do this by themselves every minute. An error is that of the database.
func (o *Outbox) Sweep(ctx context.Context) error {
	if err := o.settler.NewSweep().Run(ctx, o.meter, &budget.Transactions{}); err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	return nil
}
