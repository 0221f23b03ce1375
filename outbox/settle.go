package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/engine/budget"
	"github.com/bluecone-go/bluecone/internal/engine/delivery"
	"github.com/bluecone-go/bluecone/internal/engine/health"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// settling settles the events whose deliveries have ended, and renews the leases of the others.
type settling struct {
	ob       *Outbox
	owner    string
	lease    time.Duration
	lanes    *delivery.Lanes
	flights  *flights
	registry *registry.Registry
	outage   *health.Outage
	budget   *budget.Transactions
	stop     <-chan struct{}

	isDraining         *atomic.Bool
	mustReleaseOrphans *atomic.Bool // set when something may be leased that is not in flight
}

// loop settles what has landed, as many events at once as there are.
func (g *settling) loop() {
	for {
		select {
		case <-g.flights.ended:
			g.linger()
		case <-g.stop:
			g.settleLanded(true)
			return
		}
		g.settleLanded(false)
	}
}

// linger waits a moment for others to be settled with, if there are any.
func (g *settling) linger() {
	if !g.flights.isWorthWaiting() {
		return
	}
	select {
	case <-time.After(settle.Linger):
	case <-g.stop:
	}
}

func (g *settling) settleLanded(all bool) {
	for batch := g.flights.take(all); len(batch) > 0; batch = g.flights.take(all) {
		ctx, cancel := context.WithTimeout(context.Background(), g.lease)
		err := g.settle(ctx, batch)
		if err == nil {
			g.announce(ctx, batch)
		} else {
			g.ob.logger.Log(ctx, g.outage.Level(ctx, err), "events could not be settled; they are claimed again when the database answers, "+
				"or their leases expire", telemetry.Count, len(batch), telemetry.Err, err)
		}
		cancel()
		if err != nil {
			g.mustReleaseOrphans.Store(true)
		}
		g.flights.remove(batch)
	}
}

const settleTries = 5

// settle ends flights: it writes the status of their events and their leases are over.
// A database in trouble is tried again a few times; then the leases expire.
func (g *settling) settle(ctx context.Context, flights []*flight) error {
	slices.SortFunc(flights, byID)
	for try := 1; ; try++ {
		err := g.settleOnce(ctx, flights)
		if err == nil || try == settleTries || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(rand.N(time.Duration(try) * 50 * time.Millisecond)):
		case <-ctx.Done():
		}
	}
}

// settleOnce tries it once. What an earlier try has settled is left alone.
func (g *settling) settleOnce(ctx context.Context, flights []*flight) error {
	if err := g.recheck(ctx, flights); err != nil {
		return err
	}
	var ended []settle.Event
	for _, f := range flights {
		if f.status == "" {
			ended = append(ended, f.event())
		}
	}
	defer g.budget.Turn()()
	done, err := g.ob.settler.Settle(ctx, g.owner, ended, g.isDraining.Load())
	for _, f := range flights {
		if status, ok := done.Status[f.row.OutboxID]; ok {
			f.status = Status(status)
		}
	}
	g.countLost(ctx, done.Lost)
	return err
}

// giveBack returns leased events that were not dispatched.
func (g *settling) giveBack(ctx context.Context, flights []*flight, r settle.Return) error {
	lost, err := g.ob.settler.GiveBack(ctx, g.owner, pairsOf(flights), r)
	g.countLost(ctx, lost)
	return err
}

func (g *settling) countLost(ctx context.Context, n int) {
	if n <= 0 {
		return
	}
	telemetry.Add(ctx, g.ob.metrics.LeaseLost, int64(n))
	g.ob.logger.WarnContext(ctx, "events were taken over by another instance before they were settled", telemetry.Count, n)
}

// announce counts and logs what has been settled.
func (g *settling) announce(ctx context.Context, flights []*flight) {
	o := g.ob
	talks := o.logger.Enabled(ctx, slog.LevelDebug)
	for _, f := range flights {
		o.meter.Count(ctx, settle.Change{EventID: f.row.ID, EventType: f.row.Type, Status: settle.Status(f.status)})
		if f.status != StatusSent {
			continue
		}
		if f.event().IsDelivered() && f.row.Metadata[metaInstance] == o.cfg.Instance {
			telemetry.Add(ctx, o.metrics.LocalFirst, 1, telemetry.EventType, f.row.Type)
		}
		if talks {
			o.logger.DebugContext(ctx, "event sent", telemetry.EventID, f.row.ID, telemetry.EventType, f.row.Type,
				telemetry.AggregateID, f.row.AggregateID,
				telemetry.TraceID, f.row.Metadata[bus.MetaTraceID], telemetry.RequestID, f.row.Metadata[bus.MetaRequestID])
		}
	}
}

// renew prolongs the leases of all flights. A flight whose lease is lost is cancelled. It waits for nobody:
// a row that somebody writes is being settled, or is lost in a moment.
func (g *settling) renew(ctx context.Context) error {
	flights := g.flights.all()
	if len(flights) == 0 {
		return g.lanes.Renew(ctx)
	}
	r, err := g.ob.settler.Renew(ctx, g.owner, pairsOf(flights), g.lease)
	if err != nil {
		return fmt.Errorf("outbox: renew leases: %w", err)
	}
	var lost []*delivery.Lease
	for _, f := range flights {
		switch id := f.row.OutboxID; {
		case r.IsRenewed(id):
			f.lease.Extend(r.Until)
		case r.IsLost(id) && f.open.Load() > 0:
			lost = append(lost, &f.lease)
		}
	}
	g.lanes.Lose(lost...)
	return g.lanes.Renew(ctx)
}

// recheck makes up for the age of the registry: a handed over event is not SENT as long as a
// consumer waits for it that has registered since.
func (g *settling) recheck(ctx context.Context, flights []*flight) error {
	var all *registry.Snapshot
	var late []store.Delivery
	for _, f := range flights {
		if f.routed == nil {
			continue
		}
		if all == nil {
			read, _, err := g.registry.Read(ctx, g.ob.db)
			if err != nil {
				return err
			}
			all = read
		}
		if f.routed != all {
			late = append(late, f.routeAgain(all)...)
		}
		f.routed = nil
	}
	return g.ob.log.Defer(ctx, g.ob.db, late, 0)
}

// routeAgain adds the consumers of other instances that have to get the event by a newer registry.
func (f *flight) routeAgain(all *registry.Snapshot) (late []store.Delivery) {
	needed := make(map[string]bool, len(f.needed))
	for _, name := range f.needed {
		needed[name] = true
	}
	for _, name := range all.Elsewhere[f.row.Type] {
		if !needed[name] {
			f.needed = append(f.needed, name)
			f.clean.Store(false)
			late = append(late, f.delivery(name))
		}
	}
	return late
}

// renewLoop renews all leases at a third of their length.
func (g *settling) renewLoop() {
	tick := time.NewTicker(g.lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-g.stop:
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(context.Background(), g.lease/3)
		if err := g.renew(ctx); err != nil {
			g.ob.logger.Log(ctx, g.outage.Level(ctx, err), "leases could not be renewed; the next beat tries again", telemetry.Err, err)
		}
		cancel()
	}
}
