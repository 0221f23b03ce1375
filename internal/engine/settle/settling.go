package settle

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/engine/budget"
	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/health"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// MetaInstance is the entry of an event's metadata that names the instance that saved it.
const MetaInstance = "instance"

// SettlingConfig is what a [Settling] works with.
type SettlingConfig struct {
	DB       *bun.DB
	Log      store.Log
	Settler  *Settler
	Meter    *Meter
	Instance string // this process, as the metadata of events names it
	Owner    string // of the leases
	Lease    time.Duration
	Flights  *Flights
	Registry *registry.Registry
	Outage   *health.Outage
	Budget   *budget.Transactions
}

// Settling settles the events whose deliveries have ended, in a goroutine of its own, and renews the leases of the others.
type Settling struct {
	cfg            SettlingConfig
	isDraining     atomic.Bool
	mayHaveOrphans atomic.Bool // something may be leased that is not in flight
}

// NewSettling returns the settling of one run of a publisher.
func NewSettling(cfg SettlingConfig) *Settling { return &Settling{cfg: cfg} }

// Drain says that this instance ends: what has to be claimed again is due at once.
func (g *Settling) Drain() { g.isDraining.Store(true) }

// Done takes the outcome of one delivery, or of the dispatch itself. After the last one the event is to be settled, by another
// goroutine: see [Settling.Run].
func (f *Flight) Done(outcome Outcome) {
	if outcome != Succeeded {
		f.clean.Store(false)
	}
	if f.open.Add(-1) != 0 {
		return
	}
	f.in.mu.Lock()
	f.in.queue.Add(f, f.event(), time.Now())
	f.in.mu.Unlock()
	claim.Signal(f.in.ended)
}

// Run settles what has ended, as many events at once as there are, until stop is closed, and then all that have ended.
func (g *Settling) Run(stop <-chan struct{}) {
	for isOver := false; !isOver; {
		select {
		case <-g.cfg.Flights.ended:
			g.linger(stop)
		case <-stop:
			isOver = true
		}
		for batch := g.cfg.Flights.take(isOver); len(batch) > 0; batch = g.cfg.Flights.take(isOver) {
			ctx, cancel := context.WithTimeout(context.Background(), g.cfg.Lease)
			if err := insist(ctx, func() error { return g.settle(ctx, batch) }); err != nil {
				g.giveUp(ctx, batch, err)
			} else {
				g.announce(ctx, batch)
			}
			cancel()
			g.cfg.Flights.remove(batch)
		}
	}
}

// linger waits a moment for others to be settled with, if there are any.
func (g *Settling) linger(stop <-chan struct{}) {
	if !g.cfg.Flights.isWorthWaiting() {
		return
	}
	select {
	case <-time.After(Linger):
	case <-stop:
	}
}

// insist does something up to five times while the database is in trouble, with pauses.
func insist(ctx context.Context, do func() error) error {
	for try := 1; ; try++ {
		err := do()
		if err == nil || try == settleTries || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(rand.N(time.Duration(try) * 50 * time.Millisecond)):
		case <-ctx.Done():
		}
	}
}

const settleTries = 5

// settle ends flights: it writes the status of their events and their leases are over. What an earlier try has settled, or found
// lost, is left alone.
func (g *Settling) settle(ctx context.Context, flights []*Flight) error {
	slices.SortFunc(flights, byID)
	if err := g.recheck(ctx, flights); err != nil {
		return err
	}
	var ended []Event
	for _, f := range flights {
		if f.status == "" && !f.isLost {
			ended = append(ended, f.event())
		}
	}
	over, err := g.cfg.Budget.Acquire(ctx)
	if err != nil {
		return err
	}
	defer over()
	done, err := g.cfg.Settler.Settle(ctx, g.cfg.Owner, ended, g.isDraining.Load())
	for _, f := range flights {
		if status, ok := done.Status[f.Row.OutboxID]; ok {
			f.status = status
		}
		f.isLost = f.isLost || slices.Contains(done.Lost, f.Row.OutboxID)
		f.isRetry = err != nil
	}
	g.countLost(ctx, len(done.Lost))
	return err
}

// giveUp leaves events that could not be settled to the end of their leases, or to what is done when the database answers.
func (g *Settling) giveUp(ctx context.Context, flights []*Flight, err error) {
	g.cfg.Meter.logger.Log(ctx, g.cfg.Outage.Level(ctx, err), "events could not be settled; they are claimed again when the "+
		"database answers, or their leases expire", telemetry.Count, len(flights), telemetry.Err, err)
	g.NoteOrphans()
}

// Settle ends the leases of the owner on events: what is SENT for certain with one statement, and the rest in one transaction.
// An event of which a delivery is missing is due again at once if the instance is draining, or else after a second. If it
// fails, the answer tells what was settled all the same.
func (s *Settler) Settle(ctx context.Context, owner string, events []Event, isDraining bool) (Settled, error) {
	done := Settled{Status: make(map[int64]Status, len(events))}
	var sent, rest []Event
	for _, e := range events {
		if e.IsDelivered() {
			sent = append(sent, e)
		} else {
			rest = append(rest, e)
		}
	}
	if err := s.end(ctx, s.db, owner, sent, store.Ending{Status: string(Sent)}, &done); err != nil || len(rest) == 0 {
		return done, err
	}
	looked := Settled{Status: make(map[int64]Status, len(rest))}
	err := s.inTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		return s.settleIn(ctx, tx, owner, rest, isDraining, &looked)
	})
	if err == nil {
		maps.Copy(done.Status, looked.Status)
		done.Lost = append(done.Lost, looked.Lost...)
	}
	return done, err
}

// end ends leases in one way. With deleteSent it deletes what is SENT, but for events without a consumer: nothing else would
// tell that they have been there.
func (s *Settler) end(ctx context.Context, idb bun.IDB, owner string, events []Event, e store.Ending, done *Settled) error {
	if Status(e.Status) == Sent && s.deletesSent {
		var traced []Event
		traced, events = split(events, func(e Event) bool { return len(e.Needed) > 0 })
		if len(traced) > 0 {
			missed, err := s.events.DeleteHeld(ctx, idb, owner, leasesOf(traced))
			if err == nil {
				err = s.note(ctx, idb, traced, Sent, missed, true, done)
			}
			if err != nil {
				return fmt.Errorf("settle as %s: %w", e.Status, err)
			}
		}
	}
	for version, same := range byVersion(events) {
		missed, err := s.events.End(ctx, idb, owner, idsOf(same), version, e)
		if err == nil {
			err = s.note(ctx, idb, same, Status(e.Status), missed, false, done)
		}
		if err != nil {
			return fmt.Errorf("settle as %s: %w", e.Status, err)
		}
	}
	return nil
}

// announce counts and logs what has been settled.
func (g *Settling) announce(ctx context.Context, flights []*Flight) {
	m := g.cfg.Meter
	talks := m.logger.Enabled(ctx, slog.LevelDebug)
	for _, f := range flights {
		m.Count(ctx, Change{EventID: f.Row.ID, EventType: f.Row.Type, Status: f.status})
		if f.status != Sent {
			continue
		}
		if f.event().IsDelivered() && f.Row.Metadata[MetaInstance] == g.cfg.Instance {
			telemetry.Add(ctx, m.metrics.LocalFirst, 1, telemetry.EventType, f.Row.Type)
		}
		if talks {
			m.logger.DebugContext(ctx, "event sent", telemetry.EventID, f.Row.ID, telemetry.EventType, f.Row.Type,
				telemetry.AggregateID, f.Row.AggregateID,
				telemetry.TraceID, f.Row.Metadata[telemetry.TraceID], telemetry.RequestID, f.Row.Metadata[telemetry.RequestID])
		}
	}
}

// recheck makes up for the age of the registry: a handed over event is not SENT as long as a
// consumer waits for it that has registered since.
func (g *Settling) recheck(ctx context.Context, flights []*Flight) error {
	var all *registry.Snapshot
	var late []store.Delivery
	for _, f := range flights {
		if f.routed == nil {
			continue
		}
		if all == nil {
			read, _, err := g.cfg.Registry.Read(ctx, g.cfg.DB)
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
	return g.cfg.Log.Defer(ctx, g.cfg.DB, late, 0)
}

// routeAgain adds the consumers of other instances that have to get the event by a newer registry.
func (f *Flight) routeAgain(all *registry.Snapshot) (late []store.Delivery) {
	needed := make(map[string]bool, len(f.needed))
	for _, name := range f.needed {
		needed[name] = true
	}
	for _, name := range all.Elsewhere[f.Row.Type] {
		if !needed[name] {
			f.needed = append(f.needed, name)
			f.clean.Store(false)
			late = append(late, f.delivery(name))
		}
	}
	return late
}
