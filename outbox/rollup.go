package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/bluecone-go/bluecone/internal/engine/budget"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

const sweepEvery = time.Minute

// sweep repairs, at most once a minute, what a crash between two transactions leaves: FAILED
// events none of whose deliveries waits any more, and leases and schedules without a time.
func (s *session) sweep(ctx context.Context) error {
	if time.Since(s.lastSweep) < sweepEvery {
		return nil
	}
	if err := s.p.ob.settler.NewSweep().Run(ctx, s.p.ob.meter, s.budget); err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	if err := s.warnLeft(ctx); err != nil {
		return err
	}
	s.lastSweep = time.Now()
	return nil
}

// warnLeft reports, once for each consumer, event type and version, deliveries that no instance has taken for longer than
// the grace time, because those that run do not know the schema version of the event.
func (s *session) warnLeft(ctx context.Context) error {
	left, err := s.p.ob.log.Left.Long(ctx, s.p.ob.db, s.p.cfg.UnroutableGrace)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	for _, d := range left {
		if s.roster.IsPaused(d.Consumer) {
			continue
		}
		if _, said := s.saidUnroutable.LoadOrStore(fmt.Sprintf("%s %s %d", d.Consumer, d.EventType, d.SchemaVersion), true); !said {
			s.p.ob.logger.WarnContext(ctx, "no running instance knows the schema version of an event, so its delivery waits, "+
				"and later events of its aggregate with it: start an instance of the release that knows it, or skip the delivery",
				telemetry.Consumer, d.Consumer, telemetry.EventType, d.EventType, telemetry.Version, d.SchemaVersion, telemetry.EventID, d.EventID)
		}
	}
	return nil
}

// Sweep recomputes FAILED events none of whose deliveries waits, and makes rows due that
// wait for a time they do not have. Publishers do this by themselves every minute.
func (o *Outbox) Sweep(ctx context.Context) error {
	if err := o.settler.NewSweep().Run(ctx, o.meter, &budget.Transactions{}); err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	return nil
}
