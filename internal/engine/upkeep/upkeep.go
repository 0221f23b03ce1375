// Package upkeep does what a run of a publisher needs beside the way of an event.
//
// It renews the leases of what is in flight. Once a minute it sweeps: it repairs what a crash between two transactions has left. At
// the start it ends the leases of the run before under the same name, and wakes deliveries that a dead process has put off.
package upkeep

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/budget"
	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/delivery"
	"github.com/bluecone-go/bluecone/internal/engine/health"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// sweepEvery is how often the loop sweeps at most.
const sweepEvery = time.Minute

// Config is what an [Upkeep] works with.
type Config struct {
	DB         *bun.DB
	Dialect    dialect.Dialect
	Statements *prepared.Statements
	Log        store.Log
	Logger     *slog.Logger

	Name      string // of the publisher
	Owner     string // of its leases: the name, and which run of it this is
	Lease     time.Duration
	LeftGrace time.Duration // after which it says that a delivery waits for an instance that knows the schema version

	Rooms
}

// Rooms are the parts of the run's engine that the upkeep calls.
type Rooms struct {
	Claimer  *claim.Claimer
	Settler  *settle.Settler
	Settling *settle.Settling
	Meter    *settle.Meter
	Lanes    *delivery.Lanes
	Roster   *registry.Roster
	Budget   *budget.Transactions
	Outage   *health.Outage
}

// Upkeep is that of one run of a publisher. [Upkeep.RenewLeases] has a goroutine of its own; the goroutine of the loop calls the rest.
type Upkeep struct {
	cfg       Config
	queues    store.Queues
	instances store.Instances

	swept    time.Time
	woken    time.Time       // when what others may have put off was last looked for, after the start
	saidLeft map[string]bool // consumers, types and versions; of the loop, as the times are
}

// New returns one that has done nothing yet.
func New(cfg Config) *Upkeep {
	return &Upkeep{
		cfg: cfg, queues: store.NewQueues(cfg.Dialect, cfg.Statements), instances: store.NewInstances(cfg.Dialect),
		saidLeft: make(map[string]bool),
	}
}

// RenewLeases renews all leases at a third of their length, until stop is closed.
func (u *Upkeep) RenewLeases(stop <-chan struct{}) {
	every := u.cfg.Lease / 3
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
			u.cfg.Logger.Log(ctx, u.cfg.Outage.Level(ctx, err), "leases could not be renewed; it is tried again in a moment", telemetry.Err, err)
		}
		cancel()
	}
}

// renew prolongs the leases of the events in flight and of the deliveries from the consume log, and stops what runs under those
// that are lost.
func (u *Upkeep) renew(ctx context.Context) error {
	lost, err := u.cfg.Settling.Renew(ctx)
	if err != nil {
		return err
	}
	u.cfg.Lanes.Lose(lost...)
	return u.cfg.Lanes.Renew(ctx)
}

// Sweep repairs, at most once a minute, what a crash between two transactions leaves: FAILED
// events none of whose deliveries waits any more, and leases and schedules without a time.
func (u *Upkeep) Sweep(ctx context.Context) error {
	if time.Since(u.swept) < sweepEvery {
		return nil
	}
	cfg := &u.cfg
	if err := cfg.Settler.NewSweep().Run(ctx, cfg.Meter, cfg.Budget); err != nil {
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
func (u *Upkeep) warnLeft(ctx context.Context) error {
	cfg := &u.cfg
	left, err := cfg.Log.Left.Long(ctx, cfg.DB, cfg.LeftGrace)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	for _, d := range left {
		if cfg.Roster.IsPaused(d.Consumer) {
			continue
		}
		if key := fmt.Sprintf("%s %s %d", d.Consumer, d.EventType, d.SchemaVersion); !u.saidLeft[key] {
			u.saidLeft[key] = true
			cfg.Logger.WarnContext(ctx, "no running instance knows the schema version of an event, so its delivery waits, "+
				"and later events of its aggregate with it: start an instance of the release that knows it, or skip the delivery",
				telemetry.Consumer, d.Consumer, telemetry.EventType, d.EventType, telemetry.Version, d.SchemaVersion, telemetry.EventID, d.EventID)
		}
	}
	return nil
}

// SucceedPredecessor ends the leases of the run before this one under the same name, if that has not ended as it should
// and is not about to.
// Names are unique in the deployment, so it is dead: nobody has to wait for the end of its leases. Should it be frozen,
// then it finds out by the lock versions, as when its leases run out.
func (u *Upkeep) SucceedPredecessor(ctx context.Context) {
	cfg := &u.cfg
	ctx, cancel := context.WithTimeout(ctx, cfg.Lease)
	defer cancel()
	if err := u.expirePredecessor(ctx); err != nil {
		cfg.Logger.Log(ctx, cfg.Outage.Level(ctx, err), "the leases of the run before this one could not be ended; they expire after "+
			"their time", telemetry.Err, err)
	}
	if err := u.wakeForgotten(ctx); err != nil {
		cfg.Logger.Log(ctx, cfg.Outage.Level(ctx, err), "waiting deliveries could not be made due; they fall due within "+
			"a minute", telemetry.Err, err)
	}
}

// wakeForgotten wakes deliveries that nothing is before any more. Whoever ends one wakes the next, unless it dies in between:
// then its successor does, under whatever name it starts.
func (u *Upkeep) wakeForgotten(ctx context.Context) error {
	putOff, err := u.queues.PutOff(ctx, u.cfg.DB)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	return u.cfg.Lanes.WakeForgotten(ctx, putOff)
}

// WakeAfterExpiry wakes what a dead process has put off, after leases of others have run out. It does so at most once within the
// length of a lease: a process that has died seldom leaves nothing but a delivery that is put off.
func (u *Upkeep) WakeAfterExpiry(ctx context.Context) error {
	if !u.woken.IsZero() && time.Since(u.woken) < u.cfg.Lease {
		return nil
	}
	u.woken = time.Now()
	return u.wakeForgotten(ctx)
}

// expirePredecessor ends the leases of the last run under this name, unless it has ended or is about to.
func (u *Upkeep) expirePredecessor(ctx context.Context) error {
	cfg := &u.cfg
	before, err := u.instances.RunOf(ctx, cfg.DB, cfg.Name)
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
	return cfg.Lanes.Expire(ctx, leased, before)
}

// expireEvents ends leases of events, and tells whether there may be more.
func (u *Upkeep) expireEvents(ctx context.Context, owner string) (more bool, err error) {
	over, err := u.cfg.Budget.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer over()
	return u.cfg.Claimer.ExpireLeases(ctx, owner)
}
