package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/telemetry"
)

const sweepEvery = time.Minute

// rollUp brings events up to date after one of their retried deliveries has ended.
func (s *session) rollUp(ctx context.Context, eventIDs []string) {
	s.retried.Add(int64(len(eventIDs)))
	for _, id := range eventIDs {
		if err := s.p.ob.rollUp(ctx, id); err != nil {
			s.p.ob.logger.WarnContext(ctx, "the status of an event could not be brought up to date; the sweep does it", telemetry.EventID, id, telemetry.Err, err)
		}
	}
}

// rollUp computes the status of a FAILED or DEAD event from its deliveries, in one
// short transaction of its own.
func (o *Outbox) rollUp(ctx context.Context, eventID string) error {
	return o.inTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		e, err := o.lockEvent(ctx, tx, eventID)
		if err != nil {
			return err
		}
		return o.rollUpIn(ctx, tx, e)
	})
}

// locked is what the outbox says of an event whose row is locked by the transaction.
type locked struct {
	eventID, eventType string
	status             Status // "" if there is no such event
}

func (o *Outbox) lockEvent(ctx context.Context, tx bun.Tx, eventID string) (locked, error) {
	e := locked{eventID: eventID}
	err := tx.QueryRowContext(ctx, "SELECT event_type, status FROM "+table+" WHERE event_id = ?"+o.d.ForUpdate, eventID).Scan(&e.eventType, &e.status)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return e, fmt.Errorf("outbox: lock event %s: %w", eventID, err)
	}
	return e, nil
}

// rollUpIn writes the status that the deliveries of a locked event amount to. Events in
// the hands of a publisher are left to its settling, which looks under the same lock.
func (o *Outbox) rollUpIn(ctx context.Context, tx bun.Tx, e locked) error {
	if e.status != StatusFailed && e.status != StatusDead && e.status != StatusSent {
		return nil
	}
	states, err := o.log.States(ctx, tx, []string{e.eventID})
	if err != nil {
		return err
	}
	now := statusOf(states[e.eventID], false)
	if len(states[e.eventID]) == 0 { // set to FAILED by hand, say: nobody has been called yet
		if now = e.status; e.status == StatusFailed {
			now = StatusNew
		}
	}
	if now == e.status {
		return nil
	}
	set := "last_error = (" + lastError + "), sent_at = NULL"
	if now == StatusSent {
		set = "last_error = NULL, sent_at = " + o.d.Now
	}
	_, err = tx.ExecContext(ctx, o.aliased("status = ?, "+set+", next_retry_at = NULL, lock_version = lock_version + 1, updated_at = "+o.d.Now), string(now), e.eventID)
	if err != nil {
		return fmt.Errorf("outbox: roll up event %s: %w", e.eventID, err)
	}
	o.countStatus(ctx, now, e.eventID, e.eventType)
	return nil
}

// aliased is an UPDATE of one event, by event_id, whose SET may call the table e.
func (o *Outbox) aliased(set string) string {
	if o.d.Name == "mysql" {
		return "UPDATE " + table + " e SET " + set + " WHERE e.event_id = ?"
	}
	return "UPDATE " + table + " AS e SET " + set + " WHERE e.event_id = ?"
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
	if err := s.p.ob.Sweep(ctx); err != nil {
		return err
	}
	s.lastSweep = time.Now()
	return nil
}

// Sweep recomputes FAILED events none of whose deliveries waits, and makes rows due that
// wait for a time they do not have. Publishers do this by themselves every minute.
func (o *Outbox) Sweep(ctx context.Context) error {
	for {
		ids, err := o.strings(ctx, o.db, "SELECT e.event_id FROM "+table+" e WHERE e.status = 'FAILED' AND NOT EXISTS (SELECT 1 FROM bc_event_consume_log l "+
			"WHERE l.event_id = e.event_id AND l.status IN ('PENDING', 'FAILED', 'PROCESSING')) ORDER BY e.next_retry_at, e.id LIMIT 200")
		if err != nil {
			return fmt.Errorf("outbox: sweep: %w", err)
		}
		for _, id := range ids {
			if err := o.rollUp(ctx, id); err != nil {
				return err
			}
		}
		if len(ids) < 200 {
			break
		}
	}
	return o.mendTimes(ctx)
}

// mendTimes makes rows due that wait for a time they do not have.
func (o *Outbox) mendTimes(ctx context.Context) error {
	names, err := o.strings(ctx, o.db, "SELECT name FROM bc_consumer")
	if err != nil {
		return fmt.Errorf("outbox: sweep: %w", err)
	}
	for query, args := range map[string][]any{
		"UPDATE " + table + " SET next_retry_at = " + o.d.Now + " WHERE status IN ('SCHEDULED', 'DISPATCHING') AND next_retry_at IS NULL":                                        nil,
		"UPDATE bc_event_consume_log SET next_retry_at = " + o.d.Now + " WHERE consumer_name IN (?) AND status IN ('PENDING', 'FAILED', 'PROCESSING') AND next_retry_at IS NULL": {bun.List(names)},
	} {
		if _, err := o.db.ExecContext(ctx, query, args...); err != nil {
			return fmt.Errorf("outbox: sweep: %w", err)
		}
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
