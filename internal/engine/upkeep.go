package engine

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/bluecone-go/bluecone/internal/engine/budget"
	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/delivery"
	"github.com/bluecone-go/bluecone/internal/engine/health"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// sweepEvery is how often the loop sweeps at most.
const sweepEvery = time.Minute

// upkeep is what a run does beside the way of an event: it renews leases, sweeps, and succeeds the run before it.
type upkeep struct {
	e        *Engine
	claimer  *claim.Claimer
	settling *settle.Settling
	lanes    *delivery.Lanes
	roster   *registry.Roster
	budget   *budget.Transactions
	outage   *health.Outage
	queues   store.Queues

	swept    time.Time
	woken    time.Time // when what others may have left asleep was last looked for, after the start
	saidLeft sync.Map
}

// renewLeases renews all leases at a third of their length, until stop is closed.
func (u *upkeep) renewLeases(stop <-chan struct{}) {
	every := u.e.cfg.Lease / 3
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(context.Background(), every)
		if err := u.renew(ctx); err != nil {
			u.e.cfg.Logger.Log(ctx, u.outage.Level(ctx, err), "leases could not be renewed; the next beat tries again", telemetry.Err, err)
		}
		cancel()
	}
}

// renew prolongs the leases of the events in flight and of the deliveries from the consume log, and stops what runs under those
// that are lost.
func (u *upkeep) renew(ctx context.Context) error {
	lost, err := u.settling.Renew(ctx)
	if err != nil {
		return err
	}
	u.lanes.Lose(lost...)
	return u.lanes.Renew(ctx)
}

// sweep repairs, at most once a minute, what a crash between two transactions leaves: FAILED
// events none of whose deliveries waits any more, and leases and schedules without a time.
func (u *upkeep) sweep(ctx context.Context) error {
	if time.Since(u.swept) < sweepEvery {
		return nil
	}
	cfg := &u.e.cfg
	if err := cfg.Settler.NewSweep().Run(ctx, cfg.Meter, u.budget); err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	if err := u.warnLeft(ctx); err != nil {
		return err
	}
	u.swept = time.Now()
	return nil
}

// warnLeft reports, once for each consumer, event type and version, deliveries that no instance has taken for longer than
// the grace time, because those that run do not know the schema version of the event.
func (u *upkeep) warnLeft(ctx context.Context) error {
	cfg := &u.e.cfg
	left, err := cfg.Log.Left.Long(ctx, cfg.DB, cfg.UnroutableGrace)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	for _, d := range left {
		if u.roster.IsPaused(d.Consumer) {
			continue
		}
		if _, said := u.saidLeft.LoadOrStore(fmt.Sprintf("%s %s %d", d.Consumer, d.EventType, d.SchemaVersion), true); !said {
			cfg.Logger.WarnContext(ctx, "no running instance knows the schema version of an event, so its delivery waits, "+
				"and later events of its aggregate with it: start an instance of the release that knows it, or skip the delivery",
				telemetry.Consumer, d.Consumer, telemetry.EventType, d.EventType, telemetry.Version, d.SchemaVersion, telemetry.EventID, d.EventID)
		}
	}
	return nil
}

// succeedPredecessor ends the leases of the run before this one under the same name, if that has not ended as it should
// and is not about to.
// Names are unique in the deployment, so it is dead: nobody has to wait for the end of its leases. Should it be frozen,
// then it finds out by the lock versions, as when its leases run out.
func (u *upkeep) succeedPredecessor(ctx context.Context) {
	cfg := &u.e.cfg
	ctx, cancel := context.WithTimeout(ctx, cfg.Lease)
	defer cancel()
	if err := u.expirePredecessor(ctx); err != nil {
		cfg.Logger.Log(ctx, u.outage.Level(ctx, err), "the leases of the run before this one could not be ended; they run out by "+
			"themselves", telemetry.Err, err)
	}
	if err := u.wakeForgotten(ctx); err != nil {
		cfg.Logger.Log(ctx, u.outage.Level(ctx, err), "deliveries that a process may have left asleep could not be woken; they look again "+
			"by themselves", telemetry.Err, err)
	}
}

// wakeForgotten wakes deliveries that nothing is before any more. Whoever ends one wakes the next, unless it dies in between:
// then its successor does, under whatever name it starts.
func (u *upkeep) wakeForgotten(ctx context.Context) error {
	asleep, err := u.queues.Asleep(ctx, u.e.cfg.DB)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	return u.lanes.WakeForgotten(ctx, asleep)
}

// wakeAfterExpiry is wakeForgotten after leases of others have run out, at most once within the length of a lease: a process that has
// died seldom leaves nothing but a delivery asleep.
func (u *upkeep) wakeAfterExpiry(ctx context.Context) error {
	if !u.woken.IsZero() && time.Since(u.woken) < u.e.cfg.Lease {
		return nil
	}
	u.woken = time.Now()
	return u.wakeForgotten(ctx)
}

func (u *upkeep) expirePredecessor(ctx context.Context) error {
	cfg := &u.e.cfg
	before, err := store.NewInstances(cfg.Dialect).RunOf(ctx, cfg.DB, cfg.Name)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	if before == "" || before == cfg.Owner {
		return nil
	}
	for more := true; more; {
		if more, err = u.expireEvents(ctx, before); err != nil {
			return fmt.Errorf("outbox: end the leases of %s: %w", before, err)
		}
	}
	leased, err := u.queues.Leased(ctx, cfg.DB)
	if err != nil {
		return fmt.Errorf("outbox: end the leases of %s: %w", before, err)
	}
	return u.lanes.Expire(ctx, leased, before)
}

// expireEvents ends leases of events, and tells whether there may be more.
func (u *upkeep) expireEvents(ctx context.Context, owner string) (more bool, err error) {
	defer u.budget.Turn()()
	return u.claimer.ExpireLeases(ctx, owner)
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
		DB: cfg.DB, Dialect: cfg.Dialect, Queues: r.upkeep.queues, Events: store.NewSettling(cfg.Dialect, cfg.Statements),
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
