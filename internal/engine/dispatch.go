package engine

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/delivery"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// parkFor is how long an event that nobody consumes is left alone.
const parkFor = 30 * time.Second

// claimed is what one claim has leased.
type claimed struct {
	claim.Result
	isByID bool // not searched for: its registry may be a little old
}

// takers are the consumers of this process that take an event type, in the order of their names.
type takers struct {
	consumers []*handler.Consumer
	keys      []string // theirs
}

// dispatcher hands claimed events to the lanes of their consumers. Only the goroutine of the loop uses it.
type dispatcher struct {
	cfg      *Config
	takers   map[string]takers            // by event type
	local    map[string]*handler.Consumer // by their keys
	roster   *registry.Roster
	lanes    *delivery.Lanes
	flights  *settle.Flights
	spiller  *settle.Spiller
	settling *settle.Settling

	claimed        atomic.Int64    // events, so far
	saidUnroutable map[string]bool // event types
}

func newDispatcher(cfg *Config, consumers []*handler.Consumer, roster *registry.Roster) *dispatcher {
	d := &dispatcher{
		cfg: cfg, roster: roster, takers: make(map[string]takers), local: make(map[string]*handler.Consumer),
		saidUnroutable: make(map[string]bool),
	}
	for _, c := range consumers {
		d.local[c.Key] = c
		for _, t := range c.EventTypes() {
			d.takers[t] = takers{append(d.takers[t].consumers, c), append(d.takers[t].keys, c.Key)}
		}
	}
	return d
}

// dispatch hands claimed events, in id order, to the lanes of their consumers. What a lane does
// not take, and what belongs to consumers of other instances, is held until it waits in the consume log.
func (d *dispatcher) dispatch(ctx context.Context, c claimed) error {
	var routed *registry.Snapshot
	if c.isByID {
		routed = c.Registry
	} else {
		d.roster.Learn(ctx, c.Registry)
	}
	rows, err := d.park(ctx, c)
	if err != nil || len(rows) == 0 {
		return err
	}
	flights := make([]*settle.Flight, len(rows))
	for i, row := range rows {
		flights[i] = d.flights.Begin(row, c.Until, routed)
		d.claimed.Add(1)
		d.route(flights[i], c.Registry)
	}
	for _, o := range d.offers(flights, c.Kind) {
		taken := d.lanes.Offer(o.consumer, o.events)
		for _, ev := range o.events[taken:] {
			ev.Flight.Refuse(o.consumer)
		}
	}
	var spilled []settle.Spilled
	for _, f := range flights {
		waiting := f.Waiting()
		if len(waiting) == 0 {
			f.Done(settle.Succeeded) // the dispatch itself
			continue
		}
		for i := range waiting {
			waiting[i].Suspect = d.isSuspect(f, waiting[i].Consumer)
		}
		spilled = append(spilled, settle.Spilled{Flight: f, Deliveries: waiting})
	}
	d.spiller.Add(spilled)
	return nil
}

// route notes who must get the event; consumers that live in other instances only have to wait for it, and so have those
// of which other instances know the event's schema version.
func (d *dispatcher) route(f *settle.Flight, all *registry.Snapshot) {
	here, others := d.takers[f.Row.Type], all.Elsewhere[f.Row.Type]
	offered := 0
	for _, c := range here.consumers {
		if c.Knows(f.Row.Type, f.Row.SchemaVersion) {
			offered++
		} else {
			f.Leave(c.Key)
		}
	}
	f.Route(append(slices.Clip(here.keys), others...), offered)
	for _, key := range others {
		f.Wait(key)
	}
}

// offer is what is offered to the lane of one consumer.
type offer struct {
	consumer string // its key
	events   []delivery.Offered
}

// offers are the events that each consumer takes, all of them at once.
func (d *dispatcher) offers(flights []*settle.Flight, kind claim.Kind) []*offer {
	var all []*offer
	of := make(map[string]*offer)
	for _, f := range flights {
		for _, c := range d.takers[f.Row.Type].consumers {
			if !c.Knows(f.Row.Type, f.Row.SchemaVersion) {
				continue
			}
			if of[c.Key] == nil {
				of[c.Key] = &offer{consumer: c.Key}
				all = append(all, of[c.Key])
			}
			of[c.Key].events = append(of[c.Key].events, delivery.Offered{Flight: f, Kind: kind, Suspect: d.isSuspect(f, c.Key)})
		}
	}
	return all
}

// isSuspect reports whether a process that has died may have started the event's delivery to a consumer, if that has no row
// yet: a lease of the event has run out. A delivery without a transaction of ours has a row before it starts.
func (d *dispatcher) isSuspect(f *settle.Flight, key string) bool {
	c := d.local[key]
	return f.Row.RetryCount > 0 && (c == nil || !c.IsExternal(f.Row.Type))
}

// park puts events whose type nobody consumes aside for a while, and returns the rest.
func (d *dispatcher) park(ctx context.Context, c claimed) (rows []eventrow.Row, err error) {
	park := make(map[string][]eventrow.Row)
	for _, row := range c.Rows {
		if !d.isUnroutable(row, c.Registry) {
			rows = append(rows, row)
			continue
		}
		park[row.Type] = append(park[row.Type], row)
		telemetry.Add(ctx, d.cfg.Metrics.Unroutable, 1, telemetry.EventType, row.Type)
		d.warnUnroutable(ctx, row)
	}
	for eventType, same := range park {
		why := "no consumer is registered for " + eventType
		err = errors.Join(err, d.settling.GiveBack(ctx, same, settle.Return{Status: settle.Scheduled, Delay: parkFor, Why: why}))
	}
	return rows, err
}

func (d *dispatcher) isUnroutable(row eventrow.Row, all *registry.Snapshot) bool {
	return len(d.takers[row.Type].keys) == 0 && len(all.Elsewhere[row.Type]) == 0 && !d.cfg.Handlers.Ignores(row.Type)
}

// warnUnroutable reports an event type without a consumer once, after the grace time.
func (d *dispatcher) warnUnroutable(ctx context.Context, row eventrow.Row) {
	if time.Since(row.CreatedAt) < d.cfg.UnroutableGrace {
		return
	}
	if !d.saidUnroutable[row.Type] {
		d.saidUnroutable[row.Type] = true
		d.cfg.Logger.WarnContext(ctx, "events of a type that nobody consumes are parked: register a consumer, "+
			"or declare the type with Bus.Unconsumed", telemetry.EventType, row.Type, telemetry.EventID, row.ID,
			telemetry.AggregateType, row.AggregateType, telemetry.AggregateID, row.AggregateID)
	}
}
