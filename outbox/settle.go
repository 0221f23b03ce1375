package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/engine/delivery"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

const settleTries = 5

// settle ends flights: it writes the status of their events and their leases are over.
// A database in trouble is tried again a few times; then the leases expire.
func (s *session) settle(ctx context.Context, flights []*flight) error {
	slices.SortFunc(flights, byID)
	for try := 1; ; try++ {
		err := s.settleOnce(ctx, flights)
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
func (s *session) settleOnce(ctx context.Context, flights []*flight) error {
	if err := s.recheck(ctx, flights); err != nil {
		return err
	}
	var ended []settle.Event
	for _, f := range flights {
		if f.status == "" {
			ended = append(ended, f.event())
		}
	}
	defer s.lanes.Turn()()
	done, err := s.p.ob.settler.Settle(ctx, s.p.owner, ended, s.draining.Load())
	for _, f := range flights {
		if status, ok := done.Status[f.row.OutboxID]; ok {
			f.status = Status(status)
		}
	}
	s.countLost(ctx, done.Lost)
	return err
}

// giveBack returns leased events that were not dispatched.
func (s *session) giveBack(ctx context.Context, flights []*flight, r settle.Return) error {
	lost, err := s.p.ob.settler.GiveBack(ctx, s.p.owner, pairsOf(flights), r)
	s.countLost(ctx, lost)
	return err
}

func (s *session) countLost(ctx context.Context, n int) {
	if n <= 0 {
		return
	}
	telemetry.Add(ctx, s.p.ob.metrics.LeaseLost, int64(n))
	s.p.ob.logger.WarnContext(ctx, "events were taken over by another instance before they were settled", telemetry.Count, n)
}

// announce counts and logs what has been settled.
func (s *session) announce(ctx context.Context, flights []*flight) {
	o := s.p.ob
	talks := o.logger.Enabled(ctx, slog.LevelDebug)
	for _, f := range flights {
		o.countStatus(ctx, f.status, f.row.ID, f.row.Type)
		if f.status != StatusSent {
			continue
		}
		if f.event().IsDelivered() && f.row.Metadata[metaInstance] == o.cfg.Instance {
			telemetry.Add(ctx, o.metrics.LocalFirst, 1, telemetry.EventType, f.row.Type)
		}
		if talks {
			o.logger.DebugContext(ctx, "event sent", telemetry.EventID, f.row.ID, telemetry.EventType, f.row.Type, telemetry.AggregateID, f.row.AggregateID,
				telemetry.TraceID, f.row.Metadata[bus.MetaTraceID], telemetry.RequestID, f.row.Metadata[bus.MetaRequestID])
		}
	}
}

// renew prolongs the leases of all flights. A flight whose lease is lost is cancelled. It waits for nobody:
// a row that somebody writes is being settled, or is lost in a moment.
func (s *session) renew(ctx context.Context) error {
	flights := s.inFlight()
	if len(flights) == 0 {
		return s.lanes.Renew(ctx)
	}
	r, err := s.p.ob.settler.Renew(ctx, s.p.owner, pairsOf(flights), s.p.cfg.Lease)
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
	s.lanes.Lose(lost...)
	return s.lanes.Renew(ctx)
}
