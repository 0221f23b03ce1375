package outbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

const sweepEvery = time.Minute

// rollUp brings events up to date after one of their retried deliveries has ended.
func (s *session) rollUp(ctx context.Context, eventIDs []string) {
	s.retried.Add(int64(len(eventIDs)))
	s.rollUps.Do(eventIDs, func(eventIDs []string) {
		ctx, cancel := context.WithTimeout(ctx, s.p.cfg.Lease)
		defer cancel()
		for ids := range slices.Chunk(eventIDs, settle.RollUpBatch) {
			if err := s.lanes.Write(ctx, func() error { return s.p.ob.rollUp(ctx, ids) }); err != nil {
				s.p.ob.logger.Log(ctx, s.outage.level(ctx, err), "the status of events could not be brought up to date; the sweep does it",
					telemetry.EventID, ids[0], telemetry.Count, len(ids), telemetry.Err, err)
			}
		}
	})
}

// rollUp brings events up to date, and counts what has changed.
func (o *Outbox) rollUp(ctx context.Context, eventIDs []string) error {
	changes, err := o.settler.RollUp(ctx, eventIDs)
	o.countChanges(ctx, changes)
	return err
}

// countChanges counts events that have got a new status.
func (o *Outbox) countChanges(ctx context.Context, changes []settle.Change) {
	for _, c := range changes {
		o.countStatus(ctx, Status(c.Status), c.EventID, c.EventType)
	}
}

// countStatus counts an event that has got a new status.
func (o *Outbox) countStatus(ctx context.Context, status Status, eventID, eventType string) {
	switch status {
	case StatusSent:
		telemetry.Add(ctx, o.metrics.Sent, 1, telemetry.EventType, eventType)
	case StatusFailed:
		telemetry.Add(ctx, o.metrics.Failed, 1, telemetry.EventType, eventType)
	case StatusDead:
		telemetry.Add(ctx, o.metrics.Dead, 1, telemetry.EventType, eventType)
		o.logger.ErrorContext(ctx, "event is DEAD and waits for an operator", telemetry.EventID, eventID, telemetry.EventType, eventType)
	default:
	}
}

// sweep repairs, at most once a minute, what a crash between two transactions leaves: FAILED
// events none of whose deliveries waits any more, and leases and schedules without a time.
func (s *session) sweep(ctx context.Context) error {
	if time.Since(s.lastSweep) < sweepEvery {
		return nil
	}
	if err := s.p.ob.sweep(ctx, s.lanes.Write); err != nil {
		return err
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
		if s.isPaused(d.Consumer) {
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
	return o.sweep(ctx, func(_ context.Context, write func() error) error { return write() })
}

// sweep does it, each step when it is its turn: beside lanes that write without a break it would wait for
// seconds on SQLite, and all claims with it.
func (o *Outbox) sweep(ctx context.Context, inTurn func(ctx context.Context, write func() error) error) error {
	for sweep := o.settler.NewSweep(); ; {
		more, err := sweep.Next(ctx)
		if err == nil && more {
			err = inTurn(ctx, func() error {
				changes, err := sweep.Step(ctx)
				o.countChanges(ctx, changes)
				return err
			})
		}
		if err != nil {
			return fmt.Errorf("outbox: sweep: %w", err)
		}
		if !more {
			return nil
		}
	}
}
