package outbox

import (
	"context"
	"slices"
	"time"

	"github.com/bluecone-go/bluecone/bus"
	due "github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/delivery"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

const (
	// parkFor is how long an event that nobody consumes is left alone.
	parkFor = 30 * time.Second
)

// dispatch hands claimed events, in id order, to the lanes of their consumers. What a lane does
// not take, and what belongs to consumers of other instances, is held until it waits in the consume log.
func (s *session) dispatch(ctx context.Context, c claim) error {
	if !c.handed {
		s.roster.Learn(ctx, c.Registry)
	}
	rows, err := s.park(ctx, c)
	if err != nil || len(rows) == 0 {
		return err
	}
	flights := make([]*flight, len(rows))
	for i, row := range rows {
		flights[i] = newFlight(row, c, s.flights.land)
		s.flights.add(flights[i])
		s.claimed.Add(1)
		s.route(flights[i], c.Registry)
	}
	s.offerAll(flights, c.Kind)
	var held []*flight
	for _, f := range flights {
		if len(f.waits) > 0 {
			held = append(held, f)
		} else {
			f.done(delivery.Succeeded) // the dispatch itself
		}
	}
	s.spill(held)
	return nil
}

// takers are the consumers of this process that take an event type, in the order of their names.
type takers struct {
	consumers []*bus.Consumer
	keys      []string // theirs
}

func takersOf(consumers []*bus.Consumer) map[string]takers {
	of := make(map[string]takers)
	for _, c := range consumers {
		for _, t := range c.EventTypes() {
			of[t] = takers{append(of[t].consumers, c), append(of[t].keys, c.Key())}
		}
	}
	return of
}

// route notes who must get the event; consumers that live in other instances only have to wait for it, and so have those
// of which other instances know the event's schema version.
func (s *session) route(f *flight, all *registry.Snapshot) {
	here, others := s.takers[f.row.Type], all.Elsewhere[f.row.Type]
	f.needed = append(slices.Clip(here.keys), others...)
	local := int32(0)
	for _, c := range here.consumers {
		if c.Knows(f.row.Type, f.row.SchemaVersion) {
			local++
		} else {
			f.leave(c.Key())
		}
	}
	f.open.Store(local + 1)
	for _, key := range others {
		f.wait(key)
	}
}

// offerAll hands each consumer the events that it takes, all at once.
func (s *session) offerAll(flights []*flight, kind due.Kind) {
	var order []*bus.Consumer
	wanted := make(map[*bus.Consumer][]*flight)
	for _, f := range flights {
		for _, c := range s.takers[f.row.Type].consumers {
			if !c.Knows(f.row.Type, f.row.SchemaVersion) {
				continue
			}
			if wanted[c] == nil {
				order = append(order, c)
			}
			wanted[c] = append(wanted[c], f)
		}
	}
	for _, c := range order {
		s.offer(c, wanted[c], kind)
	}
}

// offer hands events to the lane of a consumer.
func (s *session) offer(c *bus.Consumer, wanted []*flight, kind due.Kind) {
	events := make([]delivery.Claimed, len(wanted))
	for i, f := range wanted {
		events[i] = delivery.Claimed{
			Kind: kind, Event: &f.row, Lease: &f.lease, Payloads: &f.decoded, Done: f.report, Fresh: f.fresh, Suspect: s.isSuspect(f, c.Key()),
		}
	}
	taken := s.lanes.Offer(c.Key(), events)
	for _, f := range wanted[taken:] {
		f.wait(c.Key())
		f.open.Add(-1) // never the last one: the dispatch itself is still open
	}
}

// isSuspect reports whether a process that has died may have started the event's delivery to a consumer, if that has no row
// yet: a lease of the event has run out. A delivery without a transaction of ours has a row before it starts.
func (s *session) isSuspect(f *flight, key string) bool {
	c := s.local[key]
	return f.row.RetryCount > 0 && (c == nil || !slices.Contains(c.ExternalTypes(), f.row.Type))
}

// park puts events whose type nobody consumes aside for a while, and returns the rest.
func (s *session) park(ctx context.Context, c claim) (rows []eventrow.Row, err error) {
	o := s.p.ob
	var park []*flight
	for _, row := range c.Rows {
		if !s.unroutable(row, c.Registry) {
			rows = append(rows, row)
			continue
		}
		park = append(park, &flight{row: row})
		telemetry.Add(ctx, o.metrics.Unroutable, 1, telemetry.EventType, row.Type)
		s.warnUnroutable(ctx, row)
	}
	if len(park) == 0 {
		return rows, nil
	}
	why := "no consumer is registered for " + park[0].row.Type
	return rows, s.settling.giveBack(ctx, park, settle.Return{Status: settle.Scheduled, Delay: parkFor, Why: why})
}

func (s *session) unroutable(row eventrow.Row, all *registry.Snapshot) bool {
	return len(s.takers[row.Type].keys) == 0 && len(all.Elsewhere[row.Type]) == 0 && !s.p.bus.Ignores(row.Type)
}

// warnUnroutable reports an event type without a consumer once, after the grace time.
func (s *session) warnUnroutable(ctx context.Context, row eventrow.Row) {
	if time.Since(row.CreatedAt) < s.p.cfg.UnroutableGrace {
		return
	}
	if _, said := s.saidUnroutable.LoadOrStore(row.Type, true); !said {
		s.p.ob.logger.WarnContext(ctx, "events of a type that nobody consumes are parked: register a consumer, "+
			"or declare the type with Bus.Unconsumed", telemetry.EventType, row.Type, telemetry.EventID, row.ID,
			telemetry.AggregateType, row.AggregateType, telemetry.AggregateID, row.AggregateID)
	}
}
