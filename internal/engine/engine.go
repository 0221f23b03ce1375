// Package engine brings committed events to the consumers of this process.
//
// One goroutine, the loop of [Engine.Run], decides: it waits for a commit, a due time or the poll, claims what is due, each kind
// in its turn (claims.go, internal/engine/claim), and offers the events to the lanes of their consumers (dispatch.go). The lanes
// deliver (internal/engine/delivery). Another goroutine settles the events whose deliveries have ended (internal/engine/settle).
// Beside that a run says which consumers it has (internal/engine/enroll), gives new ones the past (internal/engine/backfill), renews
// leases and sweeps (internal/engine/upkeep), and tells how it fares (internal/engine/health).
package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/backfill"
	"github.com/bluecone-go/bluecone/internal/engine/budget"
	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/delivery"
	"github.com/bluecone-go/bluecone/internal/engine/enroll"
	"github.com/bluecone-go/bluecone/internal/engine/health"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/engine/upkeep"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/schedule"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// Config is what an engine works with.
type Config struct {
	DB         *bun.DB
	Dialect    dialect.Dialect
	Statements *prepared.Statements
	Log        store.Log
	Handlers   *handler.Registrations
	Settler    *settle.Settler
	Meter      *settle.Meter
	Malformed  *registry.MalformedRows
	Metrics    *telemetry.Metrics
	Logger     *slog.Logger
	Quoting    *dialect.Quoting

	Identity
	Limits
}

// Identity is how others know this publisher.
type Identity struct {
	Instance string // this process, as the metadata of events names it
	Name     string // unique among the publishers that run
	Owner    string // of leases: the name, and which run of it this is
}

// Limits are how much the engine takes, how often it looks, and how long it waits.
type Limits struct {
	BatchSize       int           // events that one claim takes
	MaxBytes        int           // of their payloads in flight, and as many again of deliveries from the consume log
	Poll            time.Duration // how often to look for what is due
	Cron            schedule.Spec // when to look at everything
	Lease           time.Duration
	DrainTimeout    time.Duration
	UnroutableGrace time.Duration // after which events without a consumer are reported
}

// Engine is the publisher of one process to the consumers of one bus. It is safe for concurrent use: [Engine.Run] and
// [Engine.Once] may be at work at a time.
type Engine struct {
	cfg      Config
	handover *claim.Handover
	woken    chan struct{}
	tables   *enroll.Tables

	runs     atomic.Int32 // that are open
	isTaking atomic.Bool
}

// New returns an engine that does nothing yet.
func New(cfg Config) *Engine {
	return &Engine{
		cfg: cfg, handover: claim.NewHandover(), woken: make(chan struct{}, 1),
		tables: enroll.NewTables(cfg.DB, cfg.Dialect, cfg.Quoting, cfg.Lease),
	}
}

// Wake makes a running engine look for events at once.
func (e *Engine) Wake() { claim.Signal(e.woken) }

// Handover is the way of just committed events to a running engine.
func (e *Engine) Handover() *claim.Handover { return e.handover }

// IsTaking reports whether [Engine.Run] takes events now. One whose context has ended drains, and takes none.
func (e *Engine) IsTaking() bool { return e.isTaking.Load() }

// Run publishes until ctx ends, then drains and returns nil. It also ends when something is registered too late, or its pool is closed.
// As soon as the tables were seen it runs beside, whose context ends when the engine stops taking events.
func (e *Engine) Run(ctx context.Context, beside func(ctx context.Context)) error {
	r := e.open()
	if err := r.enrollment.Enroll(ctx, r.silence); err != nil {
		closed := r.close()
		if ctx.Err() != nil {
			return closed // it ended before the database came back
		}
		return errors.Join(err, closed)
	}
	logger := e.cfg.Logger
	logger.InfoContext(ctx, "publisher runs", "instance", e.cfg.Owner, "consumers", enroll.Describe(r.enrollment.Consumers()))
	r.upkeep.SucceedPredecessor(ctx)
	r.background.Go(func() { r.enrollment.KeepAlive(ctx, r.stop) })
	r.background.Go(func() { r.backfills.Run(r.stop) })
	r.background.Go(func() { r.heartbeat().Run(ctx, r.stop, r.signs) })
	r.background.Go(func() { r.brokers().Run(r.stop, readBrokers(r.enrollment.Consumers())...) })
	defer r.gauges().Register(context.WithoutCancel(ctx), r.signs)()
	while, over := context.WithCancel(ctx)
	r.background.Go(func() { beside(while) })
	e.isTaking.Store(true)
	err := r.loop(ctx)
	if ctx.Err() != nil {
		err = nil
	}
	e.isTaking.Store(false)
	over()
	err = errors.Join(err, r.close())
	logger.InfoContext(context.WithoutCancel(ctx), "publisher stopped", "instance", e.cfg.Owner, "drained", err == nil)
	return err
}

// Once publishes what is due now, waits for its deliveries, and answers how many events it has claimed and how many deliveries
// from the retry queues it has run.
func (e *Engine) Once(ctx context.Context) (claimed, retried int, err error) {
	r := e.open()
	if err = e.tables.Check(ctx); err == nil {
		err = r.once(ctx)
	}
	closed := r.close()
	return int(r.dispatch.claimed.Load()), int(r.rollUps.Deliveries()), errors.Join(err, closed)
}

// run is one run of an engine: its lanes, what is in flight, and the goroutines around them.
type run struct {
	e          *Engine
	outage     *health.Outage
	silence    *health.Silence
	enrollment *enroll.Enrollment
	upkeep     *upkeep.Upkeep
	claims     *claims
	dispatch   *dispatcher
	lanes      *delivery.Lanes
	flights    *settle.Flights
	spiller    *settle.Spiller
	settling   *settle.Settling
	rollUps    *settle.RollUps
	backfills  *backfill.Backfills

	stop       chan struct{}
	background sync.WaitGroup
}

func (e *Engine) open() *run {
	cfg := &e.cfg
	cfg.Handlers.Close()
	r := &run{e: e, stop: make(chan struct{}), outage: health.NewOutage(cfg.Logger), silence: health.NewSilence(cfg.Lease)}
	transactions := budget.New(cfg.Handlers)
	consumers := cfg.Handlers.ByName()
	known := registry.New(store.NewRegistry(cfg.Dialect, cfg.Statements), enroll.TypesOf(consumers))
	roster := registry.NewRoster(cfg.DB, known, cfg.Malformed)
	r.enrollment = enroll.New(enroll.Config{
		DB: cfg.DB, Consumers: consumers, Tables: e.tables, Registry: known, Roster: roster, Outage: r.outage, Logger: cfg.Logger,
		Limit: cfg.Lease,
	})
	r.rollUps = settle.NewRollUps(cfg.Settler, cfg.Meter, transactions, r.outage, cfg.Lease)
	r.lanes = delivery.Open(cfg.Handlers, delivery.Config{
		Dialect: cfg.Dialect, Instance: cfg.Owner, Lease: cfg.Lease, MaxBytes: cfg.MaxBytes, Budget: transactions, Roster: roster,
		Outage: r.outage, RollUps: r.rollUps,
	})
	r.flights = settle.NewFlights(r.lanes.Most()+settle.Batch, cfg.MaxBytes)
	r.spiller = settle.NewSpiller(settle.SpillerConfig{
		DB: cfg.DB, Log: cfg.Log, Logger: cfg.Logger, Budget: transactions, Outage: r.outage, Limit: cfg.Lease,
	})
	r.settling = settle.NewSettling(settle.SettlingConfig{
		DB: cfg.DB, Log: cfg.Log, Settler: cfg.Settler, Meter: cfg.Meter, Instance: cfg.Instance, Owner: cfg.Owner, Lease: cfg.Lease,
		Flights: r.flights, Registry: known, Outage: r.outage, Budget: transactions,
	})
	claimer := claim.NewClaimer(cfg.DB, cfg.Dialect, cfg.Statements, known, store.Lease{Owner: cfg.Owner, For: cfg.Lease})
	r.upkeep = upkeep.New(upkeep.Config{
		DB: cfg.DB, Dialect: cfg.Dialect, Statements: cfg.Statements, Log: cfg.Log, Logger: cfg.Logger, Name: cfg.Name, Owner: cfg.Owner,
		Lease: cfg.Lease, LeftGrace: cfg.UnroutableGrace, Rooms: upkeep.Rooms{
			Claimer: claimer, Settler: cfg.Settler, Settling: r.settling, Meter: cfg.Meter,
			Lanes: r.lanes, Roster: roster, Budget: transactions, Outage: r.outage,
		},
	})
	r.backfills = backfill.New(backfill.Config{
		DB: cfg.DB, Dialect: cfg.Dialect, Statements: cfg.Statements, Log: cfg.Log, Logger: cfg.Logger, Consumers: consumers,
		Limit: cfg.Lease, Settler: cfg.Settler, Meter: cfg.Meter, Roster: roster, Lanes: r.lanes, Budget: transactions, Outage: r.outage,
	})
	r.dispatch = newDispatcher(cfg, consumers, roster)
	r.dispatch.lanes, r.dispatch.flights, r.dispatch.spiller, r.dispatch.settling = r.lanes, r.flights, r.spiller, r.settling
	r.claims = &claims{
		cfg: cfg, handover: e.handover, claimer: claimer, plan: claim.NewPlan(cfg.BatchSize), alarm: claim.NewAlarm(),
		more: make(chan struct{}, 1), statements: newStatements(cfg), lanes: r.lanes, flights: r.flights, settling: r.settling, roster: roster,
		budget: transactions, silence: r.silence, dispatch: r.dispatch,
	}
	r.start()
	return r
}

// start starts the goroutines that work until the run ends.
func (r *run) start() {
	cfg := &r.e.cfg
	r.e.runs.Add(1)
	r.background.Go(func() { r.settling.Run(r.stop) })
	r.background.Go(func() { r.spiller.Run(r.stop) })
	r.background.Go(func() { r.upkeep.RenewLeases(r.stop) })
	if cfg.Dialect.KeepsPlans {
		st := health.Statistics{DB: cfg.DB, Logger: cfg.Logger, Outage: r.outage, Limit: cfg.Lease}
		r.background.Go(func() { st.Run(r.stop, &r.dispatch.claimed) })
	}
}

// pass is what one pass of the loop is about.
type pass struct {
	isHandedOver bool // events were handed over
	isBeat       bool // it is time to look at what has fallen due
	isFull       bool // it is time to look at everything
	isExhaustive bool // it goes on until nothing is due any more
}

// loop claims until ctx ends: at once when woken, what has fallen due at every beat (Poll, or more often while there is
// something to do), and everything when Cron says so. It returns the error for which it gives up before.
func (r *run) loop(ctx context.Context) error {
	cfg, plan := &r.e.cfg, r.claims.plan
	next := cfg.Cron.Next(time.Now())
	timer := time.NewTimer(0)
	defer timer.Stop()
	for try := 0; ctx.Err() == nil; {
		t := pass{}
		select {
		case <-ctx.Done():
			return nil
		case <-r.e.woken:
			plan.Add(time.Now(), claim.Of(claim.New))
		case <-r.e.handover.Calls():
			t.isHandedOver = true
		case <-r.claims.alarm.Rings():
			r.claims.alarm.Heard()
			plan.Add(time.Now(), claim.Of(claim.New))
		case <-r.lanes.Signals.DueAgain():
			plan.Worked(time.Now())
		case <-r.claims.more:
		case <-timer.C:
		}
		t.isBeat = !time.Now().Before(plan.NextLook(cfg.Poll))
		if t.isBeat && cfg.Handlers.HasLate() { // the bus says so
			return nil
		}
		began := time.Now()
		t.isFull = t.isBeat && !began.Before(next)
		err := r.silence.Limit(ctx, func(ctx context.Context) error { return r.take(ctx, t) })
		timer.Reset(time.Until(plan.NextLook(cfg.Poll)))
		if err == nil && t.isFull {
			next = cfg.Cron.Next(began)
		}
		if err == nil && r.outage.IsFading() {
			if err = r.enrollment.Register(ctx); err == nil { // that it can be read does not mean that it can be written
				r.outage.End(ctx)
			}
		}
		if err == nil {
			try = 0
			continue
		}
		r.settling.NoteOrphans()
		try++
		if err = r.outage.Wait(ctx, err, try); err != nil {
			return err
		}
		r.flights.Wake() // whatever was missed meanwhile
	}
	return nil
}

// take does one pass: first what was handed over; if that was not all, or it is time to look, a cycle of claims.
func (r *run) take(ctx context.Context, t pass) error {
	if err := r.releaseOrphans(ctx); err != nil {
		return err
	}
	if t.isHandedOver {
		ids, areAll := r.claims.handedOver()
		if err := r.claims.takeByID(ctx, ids); err != nil || (areAll && !t.isBeat) {
			return err
		}
	}
	return r.cycle(ctx, t)
}

// takeByID leases events that nobody has claimed yet, and dispatches them. It gives back those that an earlier event of their
// aggregate blocks.
func (c *claims) takeByID(ctx context.Context, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	if _, age := c.roster.Last(); age > registryFor {
		if err := c.roster.Refresh(ctx); err != nil {
			return err
		}
	}
	over, err := c.budget.Acquire(ctx)
	if err != nil {
		return err
	}
	r, blocked, err := c.claimer.ClaimByID(ctx, ids)
	if err == nil {
		r.Rows, blocked = c.flights.Without(r.Rows), c.flights.Without(blocked)
		err = c.settling.GiveBack(ctx, blocked, settle.Return{Status: settle.New})
	}
	over()
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	if len(blocked) > 0 {
		c.alarm.Set(claim.BlockedFor)
	}
	r.Registry, _ = c.roster.Last()
	return c.dispatch.dispatch(ctx, claimed{Result: r, isByID: true})
}

// close drains: nothing new starts, what runs may finish, the rest is given back.
func (r *run) close() error {
	defer r.e.runs.Add(-1)
	r.settling.Drain()
	cfg := &r.e.cfg
	ctx, cancel := context.WithTimeout(context.Background(), cfg.DrainTimeout)
	defer cancel()
	r.lanes.Quiesce(ctx)
	err := r.lanes.Drain(ctx)
	if err := r.spiller.Write(ctx); err != nil {
		cfg.Logger.WarnContext(ctx, "deliveries could not be queued; their events are claimed again", telemetry.Err, err)
	}
	close(r.stop)
	r.background.Wait()
	if err := r.releaseOrphans(ctx); err != nil { // the end may have come while a claim was being stored
		cfg.Logger.WarnContext(ctx, "leased events could not be given back; they are due when their leases are out", telemetry.Err, err)
	}
	if err != nil {
		return fmt.Errorf("outbox: handlers were still running %v after the end: %w", cfg.DrainTimeout, err)
	}
	return nil
}

// releaseOrphans gives back, after trouble, what this instance has leased and does not work on.
func (r *run) releaseOrphans(ctx context.Context) error {
	if r.e.runs.Load() > 1 { // the leases of another open run would look like orphans
		return nil
	}
	return r.settling.ReleaseOrphans(ctx, r.claims.claimer)
}

// signs are what the heartbeat and the gauges tell of this run.
func (r *run) signs() health.Signs {
	return health.Signs{InFlight: r.flights.Len(), Broken: r.lanes.Broken()}
}

// heartbeat is that of this run.
func (r *run) heartbeat() health.Heartbeat {
	cfg := &r.e.cfg
	return health.Heartbeat{DB: cfg.DB, Rows: store.NewInstances(cfg.Dialect), Logger: cfg.Logger, Name: cfg.Name, Owner: cfg.Owner}
}

// brokers says what the relays of this run know of theirs.
func (r *run) brokers() health.Brokers {
	cfg := &r.e.cfg
	return health.Brokers{DB: cfg.DB, Rows: store.NewBrokers(cfg.Dialect), Logger: cfg.Logger, Instance: cfg.Name}
}

// gauges are those of this run.
func (r *run) gauges() health.Gauges {
	cfg := &r.e.cfg
	return health.Gauges{
		DB: cfg.DB, Dialect: cfg.Dialect, Queues: r.claims.queues, Events: store.NewSettling(cfg.Dialect, cfg.Statements),
		Consumers: r.enrollment.Consumers(), Metrics: cfg.Metrics, Logger: cfg.Logger,
	}
}

// readBrokers tell what is known of the brokers that consumers of this instance give events to.
func readBrokers(consumers []*handler.Consumer) (read []func(ctx context.Context) store.Broker) {
	for _, c := range consumers {
		if c.Broker != nil {
			read = append(read, c.Broker)
		}
	}
	return read
}
