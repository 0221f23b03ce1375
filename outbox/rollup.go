package outbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

const sweepEvery = time.Minute

// rollUpBatch is how many events one roll-up locks.
const rollUpBatch = 100

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
		events, err := o.lockEvents(ctx, tx, eventIDs)
		if err != nil {
			return err
		}
		return o.rollUpIn(ctx, tx, events)
	})
}

// locked is what the outbox says of an event whose row is locked by the transaction.
type locked struct {
	outboxID           int64
	eventID, eventType string
	status             Status
}

// lockEvents locks the rows of the events that exist, in id order.
func (o *Outbox) lockEvents(ctx context.Context, tx bun.Tx, eventIDs []string) ([]locked, error) {
	rows, err := o.stmts.On(tx).QueryContext(ctx, "SELECT id, event_id, event_type, status FROM "+table+" WHERE event_id IN (?) ORDER BY id"+o.d.ForUpdate, eventIDs)
	if err != nil {
		return nil, fmt.Errorf("outbox: lock events: %w", err)
	}
	defer rows.Close()
	var events []locked
	for rows.Next() {
		var e locked
		if err := rows.Scan(&e.outboxID, &e.eventID, &e.eventType, &e.status); err != nil {
			return nil, fmt.Errorf("outbox: lock events: %w", err)
		}
		events = append(events, e)
	}
	return events, rows.Err()
}

// rollUpIn writes the status that the deliveries of locked events amount to. Events in
// the hands of a publisher are left to its settling, which looks under the same lock.
func (o *Outbox) rollUpIn(ctx context.Context, tx bun.Tx, events []locked) error {
	events = slices.DeleteFunc(events, func(e locked) bool {
		return e.status != StatusFailed && e.status != StatusDead && e.status != StatusSent
	})
	if len(events) == 0 {
		return nil
	}
	ids := make([]string, len(events))
	for i, e := range events {
		ids[i] = e.eventID
	}
	sums, err := o.log.Summaries(ctx, tx, ids)
	if err != nil {
		return err
	}
	changed := make(map[Status][]locked)
	for _, e := range events {
		if now := e.amountsTo(sums[e.eventID]); now != e.status {
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

// amountsTo is the status that the event's deliveries amount to.
func (e locked) amountsTo(s consumelog.Summary) Status {
	switch {
	case s.Rows == 0 && e.status == StatusFailed: // set by hand, say: nobody has been called yet
		return StatusNew
	case s.Rows == 0:
		return e.status
	case s.Waiting > 0:
		return StatusFailed
	case s.Dead > 0:
		return StatusDead
	}
	return StatusSent
}

// writeStatus gives locked events a status that follows from their deliveries.
func (o *Outbox) writeStatus(ctx context.Context, tx bun.Tx, now Status, events []locked) error {
	pairs := make([]dialect.Pair, len(events))
	for i, e := range events {
		pairs[i] = dialect.Pair{ID: e.outboxID}
	}
	set := "last_error = (" + lastError + "), sent_at = NULL"
	if now == StatusSent {
		set = "last_error = NULL, sent_at = " + o.d.Now
	}
	query, args := o.d.UpdateIDs(table, pairs, "status = ?, "+set+", next_retry_at = NULL, lock_version = lock_version + 1, updated_at = "+o.d.Now, "1 = 1"), []any{string(now)}
	if now == StatusSent && o.cfg.DeleteSent { // its deliveries have rows in the log
		query, args = o.d.DeleteIDs(table, pairs, "1 = 1"), nil
	}
	if _, err := tx.ExecContext(ctx, query, args...); err != nil {
		return fmt.Errorf("outbox: roll up events: %w", err)
	}
	for _, e := range events {
		o.countStatus(ctx, now, e.eventID, e.eventType)
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
	left, err := s.p.ob.log.LeftLong(ctx, s.p.cfg.UnroutableGrace)
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
		ids, err := o.strings(ctx, o.db, "SELECT e.event_id FROM "+table+" e WHERE e.status = 'FAILED'"+inDueIndex+" AND NOT EXISTS (SELECT 1 FROM bc_event_consume_log l "+
			"WHERE l.event_id = e.event_id AND l.status IN ('PENDING', 'FAILED', 'PROCESSING')) ORDER BY e.next_retry_at, e.id LIMIT 200")
		if err != nil {
			return fmt.Errorf("outbox: sweep: %w", err)
		}
		for chunk := range slices.Chunk(ids, rollUpBatch) {
			if err := inTurn(ctx, func() error { return o.rollUp(ctx, chunk) }); err != nil {
				return err
			}
		}
		if len(ids) < 200 {
			break
		}
	}
	return inTurn(ctx, func() error { return o.mendTimes(ctx) })
}

// namesPerStatement is for how many consumers a statement looks at the places of three states in an index: with thousands
// MariaDB makes a table of the list, and reads the history.
const namesPerStatement = 300

// mendTimes makes rows due that wait for a time they do not have.
func (o *Outbox) mendTimes(ctx context.Context) error {
	names, err := o.queues.Timeless(ctx, o.db)
	if err != nil {
		return fmt.Errorf("outbox: sweep: %w", err)
	}
	if err := o.mend(ctx, table, "status IN ('SCHEDULED', 'DISPATCHING') AND status <> 'SENT' AND next_retry_at IS NULL"); err != nil {
		return err
	}
	for chunk := range slices.Chunk(names, namesPerStatement) {
		err := o.mend(ctx, "bc_event_consume_log", "consumer_name IN (?) AND status IN ('PENDING', 'FAILED', 'PROCESSING') AND status <> 'SUCCESS' AND next_retry_at IS NULL", bun.List(chunk))
		if err != nil {
			return err
		}
	}
	return nil
}

// mend makes rows due. It leaves those alone that somebody is writing: a delivery that runs would hold
// it up for as long as its handler takes.
func (o *Outbox) mend(ctx context.Context, table, where string, args ...any) error {
	err := o.inTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		var ids []int64
		if err := tx.NewRaw("SELECT id FROM "+table+" WHERE "+where+o.d.SkipLocked, args...).Scan(ctx, &ids); err != nil || len(ids) == 0 {
			return err
		}
		_, err := tx.ExecContext(ctx, "UPDATE "+table+" SET next_retry_at = "+o.d.Now+" WHERE id IN (?)", bun.List(ids))
		return err
	})
	if err != nil {
		return fmt.Errorf("outbox: sweep: %w", err)
	}
	return nil
}

func (o *Outbox) strings(ctx context.Context, idb bun.IDB, query string, args ...any) ([]string, error) {
	rows, err := idb.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []string
	for rows.Next() {
		var v string
		if err := rows.Scan(&v); err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, rows.Err()
}
