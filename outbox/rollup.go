package outbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

const sweepEvery = time.Minute

// rollUpBatch is how many events one roll-up locks.
const rollUpBatch = 100

// sweepPage is how many events the sweep reads at once.
const sweepPage = 200

// settling are the statements that end leases and write what deliveries amount to.
func (o *Outbox) settling() store.Settling { return store.NewSettling(o.d, o.stmts) }

// rollUp brings events up to date after one of their retried deliveries has ended.
func (s *session) rollUp(ctx context.Context, eventIDs []string) {
	s.retried.Add(int64(len(eventIDs)))
	s.rollUps.do(eventIDs, func(eventIDs []string) {
		ctx, cancel := context.WithTimeout(ctx, s.p.cfg.Lease)
		defer cancel()
		for ids := range slices.Chunk(eventIDs, rollUpBatch) {
			if err := s.lanes.Write(ctx, func() error { return s.p.ob.rollUp(ctx, ids) }); err != nil {
				s.p.ob.logger.Log(ctx, s.outage.level(ctx, err), "the status of events could not be brought up to date; the sweep does it", telemetry.EventID, ids[0], telemetry.Count, len(ids), telemetry.Err, err)
			}
		}
	})
}

// rollUp computes the status of FAILED and DEAD events from their deliveries, in one
// short transaction of its own.
func (o *Outbox) rollUp(ctx context.Context, eventIDs []string) error {
	return o.inTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		events, err := o.settling().LockEvents(ctx, tx, eventIDs)
		if err != nil {
			return err
		}
		return o.rollUpIn(ctx, tx, events)
	})
}

// rollUpIn writes the status that the deliveries of locked events amount to. Events in
// the hands of a publisher are left to its settling, which looks under the same lock.
func (o *Outbox) rollUpIn(ctx context.Context, tx bun.Tx, events []store.LockedEvent) error {
	events = slices.DeleteFunc(events, func(e store.LockedEvent) bool {
		return e.Status != string(StatusFailed) && e.Status != string(StatusDead) && e.Status != string(StatusSent)
	})
	if len(events) == 0 {
		return nil
	}
	ids := make([]string, len(events))
	for i, e := range events {
		ids[i] = e.EventID
	}
	sums, err := o.log.Summaries(ctx, tx, ids)
	if err != nil {
		return err
	}
	changed := make(map[Status][]store.LockedEvent)
	for _, e := range events {
		if now := amountsTo(Status(e.Status), sums[e.EventID]); now != Status(e.Status) {
			changed[now] = append(changed[now], e)
		}
	}
	for now, events := range changed {
		if err := o.writeStatus(ctx, tx, now, events); err != nil {
			return err
		}
	}
	return nil
}

// amountsTo is the status that the deliveries of an event amount to.
func amountsTo(before Status, s store.Summary) Status {
	switch {
	case s.Rows == 0 && before == StatusFailed: // set by hand, say: nobody has been called yet
		return StatusNew
	case s.Rows == 0:
		return before
	case s.Waiting > 0:
		return StatusFailed
	case s.Dead > 0:
		return StatusDead
	}
	return StatusSent
}

// writeStatus gives locked events a status that follows from their deliveries.
func (o *Outbox) writeStatus(ctx context.Context, tx bun.Tx, now Status, events []store.LockedEvent) error {
	ids := make([]int64, len(events))
	for i, e := range events {
		ids[i] = e.ID
	}
	var err error
	if now == StatusSent && o.cfg.DeleteSent { // its deliveries have rows in the log
		err = o.settling().Delete(ctx, tx, ids)
	} else {
		err = o.settling().SetStatus(ctx, tx, ids, string(now))
	}
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	for _, e := range events {
		o.countStatus(ctx, now, e.EventID, e.EventType)
	}
	return nil
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
			s.p.ob.logger.WarnContext(ctx, "no running instance knows the schema version of an event, so its delivery waits, and later events of its aggregate with it: "+
				"start an instance of the release that knows it, or skip the delivery",
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

// sweep does it, each transaction when it is its turn: beside lanes that write without a break it would wait for
// seconds on SQLite, and all claims with it.
func (o *Outbox) sweep(ctx context.Context, inTurn func(ctx context.Context, write func() error) error) error {
	for {
		ids, err := o.settling().FailedButNotWaiting(ctx, o.db, sweepPage)
		if err != nil {
			return fmt.Errorf("outbox: sweep: %w", err)
		}
		for chunk := range slices.Chunk(ids, rollUpBatch) {
			if err := inTurn(ctx, func() error { return o.rollUp(ctx, chunk) }); err != nil {
				return err
			}
		}
		if len(ids) < sweepPage {
			break
		}
	}
	return inTurn(ctx, func() error { return o.mendTimes(ctx) })
}

// mendTimes makes rows due that wait for a time they do not have.
func (o *Outbox) mendTimes(ctx context.Context) error {
	names, err := o.queues.Timeless(ctx, o.db)
	if err == nil {
		err = o.inTx(ctx, func(ctx context.Context, tx bun.Tx) error { return o.settling().DateEvents(ctx, tx) })
	}
	for chunk := range slices.Chunk(names, store.MostDated) {
		if err == nil {
			err = o.inTx(ctx, func(ctx context.Context, tx bun.Tx) error { return o.settling().DateDeliveries(ctx, tx, chunk) })
		}
	}
	if err != nil {
		return fmt.Errorf("outbox: sweep: %w", err)
	}
	return nil
}
