package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/text"
)

// Operation is who intervenes, and why. Both go into the audit log.
type Operation struct {
	Actor  string // at most 128 bytes
	Reason string
}

func (op Operation) validate() error {
	err := text.Key("operation: actor", op.Actor, 128)
	if op.Reason == "" {
		err = errors.Join(err, errors.New("operation: reason is empty: say why, it is kept in the audit log"))
	}
	return err
}

// ErrNotFound means that there is no such delivery, or none in a state that allows the operation.
var ErrNotFound = errors.New("no such delivery in a state that allows this")

// Retry makes deliveries of the event due at once, with all their attempts before them:
// those of the named consumers, or every DEAD or FAILED one.
func (o *Outbox) Retry(ctx context.Context, op Operation, eventID string, consumers ...string) error {
	where, args := "status IN ('DEAD', 'FAILED')", []any{}
	if len(consumers) > 0 {
		where, args = "status IN ('DEAD', 'FAILED', 'PENDING', 'SKIPPED') AND consumer_name IN (?)", []any{bun.List(consumers)}
	}
	return o.intervene(ctx, op, "retry", eventID, "status = 'PENDING', attempts = 0, next_retry_at = "+o.d.Now, where, args)
}

// Skip closes a delivery without an effect. Later events of its aggregate may then pass.
func (o *Outbox) Skip(ctx context.Context, op Operation, eventID, consumer string) error {
	err := o.intervene(ctx, op, "skip", eventID, "status = 'SKIPPED', next_retry_at = NULL, error_message = ?",
		"status IN ('DEAD', 'FAILED', 'PENDING') AND consumer_name = ?", []any{consumer}, text.Clean(op.Actor+": "+op.Reason, text.MaxError))
	if err != nil {
		return err
	}
	return o.wakeBehind(ctx, eventID, consumer)
}

// MarkDead takes a delivery out of the engine's hands until an operator retries or skips it.
func (o *Outbox) MarkDead(ctx context.Context, op Operation, eventID, consumer string) error {
	return o.intervene(ctx, op, "mark dead", eventID, "status = 'DEAD', next_retry_at = NULL, error_message = ?",
		"status IN ('FAILED', 'PENDING') AND consumer_name = ?", []any{consumer}, text.Clean(op.Actor+": "+op.Reason, text.MaxError))
}

// intervene changes deliveries, the status of their event and the audit log in one
// transaction, under the lock of the event's row.
func (o *Outbox) intervene(ctx context.Context, op Operation, action, eventID, set, where string, whereArgs []any, setArgs ...any) error {
	if err := op.validate(); err != nil {
		return fmt.Errorf("outbox: %s %s: %w", action, eventID, err)
	}
	return o.inTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		events, err := o.lockEvents(ctx, tx, []string{eventID})
		if err != nil {
			return err
		}
		res, err := tx.ExecContext(ctx, "UPDATE bc_event_consume_log SET "+set+", locked_by = NULL, lock_version = lock_version + 1, updated_at = "+o.d.Now+" WHERE event_id = ? AND "+where,
			append(append(setArgs, eventID), whereArgs...)...)
		if err != nil {
			return fmt.Errorf("outbox: %s %s: %w", action, eventID, err)
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, fmt.Errorf("outbox: %s %s: %w", action, eventID, ErrNotFound))
		}
		if err := o.rollUpIn(ctx, tx, events); err != nil {
			return err
		}
		return o.audit(ctx, tx, op, action, eventID, fmt.Sprint(whereArgs...))
	})
}

func (o *Outbox) wakeBehind(ctx context.Context, eventID, consumer string) error {
	var d consumelog.Delivery
	err := o.db.QueryRowContext(ctx, "SELECT id, aggregate_type, aggregate_id FROM "+table+" WHERE event_id = ?", eventID).Scan(&d.OutboxID, &d.AggregateType, &d.AggregateID)
	if err != nil {
		return fmt.Errorf("outbox: event %s: %w", eventID, err)
	}
	d.EventID = eventID
	return o.log.WakeNext(ctx, o.db, []string{consumer}, d)
}

// Pause stops a consumer in the whole deployment, for d (0 means until it is resumed).
// Its deliveries wait; nobody else's do.
func (o *Outbox) Pause(ctx context.Context, op Operation, consumer string, d time.Duration) error {
	if d < 0 {
		return fmt.Errorf("outbox: pause %s for %v: the duration must not be negative", consumer, d)
	}
	if d == 0 {
		d = 100 * 365 * 24 * time.Hour
	}
	return o.steer(ctx, op, "pause", consumer, "paused_until = "+o.d.After+", paused_by = ?, pause_reason = ?", dialect.Micro(d), op.Actor, text.Clean(op.Reason, text.MaxError))
}

// Resume ends a pause.
func (o *Outbox) Resume(ctx context.Context, op Operation, consumer string) error {
	return o.steer(ctx, op, "resume", consumer, "paused_until = NULL, paused_by = NULL, pause_reason = NULL")
}

// Retire removes a consumer that no code registers any more from the registry, so that
// new events no longer wait for it. Skip what already waits.
func (o *Outbox) Retire(ctx context.Context, op Operation, consumer string) error {
	return o.steer(ctx, op, "retire", consumer, "")
}

func (o *Outbox) steer(ctx context.Context, op Operation, action, consumer, set string, args ...any) error {
	if err := op.validate(); err != nil {
		return fmt.Errorf("outbox: %s %s: %w", action, consumer, err)
	}
	query := "UPDATE bc_consumer SET " + set + " WHERE name = ?"
	if set == "" {
		query = "DELETE FROM bc_consumer WHERE name = ?"
	}
	return o.inTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		var n int
		if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM bc_consumer WHERE name = ?", consumer).Scan(&n); err != nil {
			return fmt.Errorf("outbox: %s %s: %w", action, consumer, err)
		}
		if n == 0 {
			return fmt.Errorf("outbox: %s %s: no instance has ever registered a consumer of that name", action, consumer)
		}
		if _, err := tx.ExecContext(ctx, query, append(args, consumer)...); err != nil {
			return fmt.Errorf("outbox: %s %s: %w", action, consumer, err)
		}
		return o.audit(ctx, tx, op, action, consumer, "")
	})
}

func (o *Outbox) audit(ctx context.Context, tx bun.Tx, op Operation, action, target, details string) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO bc_audit_log (actor, action, target, reason, details, created_at) VALUES (?, ?, ?, ?, ?, "+o.d.Now+")",
		op.Actor, action, text.Clean(target, 255), text.Clean(op.Reason, text.MaxError), text.Clean(details, text.MaxError))
	if err != nil {
		return fmt.Errorf("outbox: audit %s: %w", action, err)
	}
	o.logger.InfoContext(ctx, "operator", "actor", op.Actor, "action", action, "target", target, "reason", op.Reason)
	return nil
}
