package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/dialect"
)

// The actions of an [Intervention], as the audit log names them.
const (
	ActionRetry    = "retry"
	ActionSkip     = "skip"
	ActionDiscard  = "discard"
	ActionReplay   = "replay"
	ActionMarkDead = "mark dead"
)

// Intervention is what an operator does to the deliveries of one event.
type Intervention struct {
	Action    string
	EventID   string
	Consumers []string      // whose deliveries; empty means all, which skip, replay and mark dead do not take
	Delay     time.Duration // until what is retried or replayed is due
	// KeepSkipped leaves deliveries closed that somebody has skipped or discarded, even if a retry names their consumer.
	KeepSkipped bool
	Note        string // goes into the details of the audit row
}

// ErrNotReplayable means that no instance has the consumer as bus.ConsumerConfig.Replayable.
var ErrNotReplayable = errors.New("the consumer is not replayable: running its past events again has to be allowed by bus.ConsumerConfig.Replayable")

// change is how an action changes rows of the consume log.
type change struct {
	from    []consumelog.Status // the states that allow it
	set     string
	setArgs []any
	deliver bool // the event is to be delivered, so its row must be there
	pass    bool // later events may pass
}

func (o *Outbox) changeOf(op Operation, iv Intervention) (change, error) {
	closed := change{
		from: []consumelog.Status{consumelog.Dead, consumelog.Failed, consumelog.Pending},
		set:  "status = 'SKIPPED', next_retry_at = NULL, error_message = ?", setArgs: []any{op.said()}, pass: true,
	}
	due := change{set: "status = 'PENDING', attempts = 0, first_run_at = NULL, next_retry_at = " + o.d.After, setArgs: []any{dialect.Micro(iv.Delay)}, deliver: true}
	needs := func(c change) (change, error) {
		if len(iv.Consumers) == 0 || iv.Consumers[0] == "" {
			return c, errors.New("name the consumer")
		}
		return c, nil
	}
	switch iv.Action {
	case ActionRetry:
		due.from = []consumelog.Status{consumelog.Dead, consumelog.Failed}
		if len(iv.Consumers) > 0 {
			due.from = append(due.from, consumelog.Pending)
			if !iv.KeepSkipped {
				due.from = append(due.from, consumelog.Skipped)
			}
		}
		return due, nil
	case ActionReplay:
		due.from = []consumelog.Status{consumelog.Success, consumelog.Skipped, consumelog.Dead}
		return needs(due)
	case ActionSkip:
		return needs(closed)
	case ActionDiscard:
		return closed, nil
	case ActionMarkDead:
		return needs(change{
			from: []consumelog.Status{consumelog.Failed, consumelog.Pending},
			set:  "status = 'DEAD', next_retry_at = NULL, error_message = ?", setArgs: []any{op.said()},
		})
	}
	return change{}, fmt.Errorf("there is no action %q", iv.Action)
}

// Intervene changes deliveries, the status of their event and the audit log in one
// transaction, under the lock of the event's row.
func (o *Outbox) Intervene(ctx context.Context, op Operation, iv Intervention) error {
	return o.inTx(ctx, func(ctx context.Context, tx bun.Tx) error { return o.InterveneIn(ctx, tx, op, iv) })
}

// InterveneIn is [Outbox.Intervene] in a transaction of the caller, which must be READ COMMITTED.
// An error of [ErrNotFound] has changed nothing, and the transaction can go on.
func (o *Outbox) InterveneIn(ctx context.Context, tx bun.Tx, op Operation, iv Intervention) error {
	c, err := o.changeOf(op, iv)
	if err = errors.Join(op.Validate(), err); err == nil {
		err = o.intervene(ctx, tx, op, iv, c)
	}
	if err != nil {
		return fmt.Errorf("outbox: %s %s: %w", iv.Action, iv.EventID, err)
	}
	return nil
}

func (o *Outbox) intervene(ctx context.Context, tx bun.Tx, op Operation, iv Intervention, c change) error {
	events, err := o.lockEvents(ctx, tx, []string{iv.EventID})
	if err != nil {
		return err
	}
	if c.deliver && len(events) == 0 {
		return fmt.Errorf("the event has no row (any more), there is nothing to deliver: %w", ErrNotFound)
	}
	names, err := o.keysOf(ctx, tx, iv.Consumers)
	if err != nil {
		return err
	}
	if iv.Action == ActionReplay {
		if names, err = o.prepareReplay(ctx, tx, events[0], names[0]); err != nil {
			return err
		}
	}
	changed, err := o.changeRows(ctx, tx, iv.EventID, names, c)
	if err != nil {
		return err
	}
	given := false
	if iv.Action == ActionDiscard && len(events) > 0 {
		if given, err = o.giveUp(ctx, tx, op, events[0]); err != nil {
			return err
		}
	}
	if len(changed) == 0 && !given {
		return ErrNotFound
	}
	if c.pass && len(events) > 0 && len(changed) > 0 { // before the roll-up, which may delete the event
		if _, err := o.log.WakeNext(ctx, tx, changed, consumelog.Delivery{OutboxID: events[0].outboxID}); err != nil {
			return err
		}
	}
	if err := o.rollUpIn(ctx, tx, events); err != nil {
		return err
	}
	details := strings.Join(changed, ", ")
	if iv.Note != "" {
		details = iv.Note + ": " + details
	}
	return o.audit(ctx, tx, op, iv.Action, iv.EventID, details)
}

// changeRows changes the deliveries that allow it, and tells whose they are.
func (o *Outbox) changeRows(ctx context.Context, tx bun.Tx, eventID string, names []string, c change) ([]string, error) {
	where, args := "event_id = ? AND status IN (?)", []any{eventID, bun.List(c.from)}
	if len(names) > 0 {
		where, args = where+" AND consumer_name IN (?)", append(args, bun.List(names))
	}
	changed, err := o.strings(ctx, tx, "SELECT consumer_name FROM bc_event_consume_log WHERE "+where+" ORDER BY id"+o.d.ForUpdate, args...)
	if err != nil || len(changed) == 0 {
		return nil, err
	}
	_, err = tx.ExecContext(ctx, "UPDATE bc_event_consume_log SET "+c.set+", started = 0, locked_by = NULL, lock_version = lock_version + 1, updated_at = "+o.d.Now+
		" WHERE event_id = ? AND consumer_name IN (?)", append(slices.Clone(c.setArgs), eventID, bun.List(changed))...)
	return changed, err
}

// prepareReplay makes sure that the delivery may be repeated and that its repetition has a row. It
// returns the name of that row.
func (o *Outbox) prepareReplay(ctx context.Context, tx bun.Tx, e locked, consumer string) ([]string, error) {
	var may int
	if err := tx.QueryRowContext(ctx, "SELECT COALESCE(MAX(replayable), 0) FROM bc_consumer WHERE name = ?", consumer).Scan(&may); err != nil {
		return nil, err
	}
	if may == 0 {
		return nil, fmt.Errorf("%s: %w", consumer, ErrNotReplayable)
	}
	if e.status != StatusSent && e.status != StatusFailed && e.status != StatusDead {
		return nil, fmt.Errorf("the event is %s and not delivered yet: %w", e.status, ErrNotFound)
	}
	done, err := o.log.Existing(ctx, tx, consumer, []string{e.eventID})
	if err != nil {
		return nil, err
	}
	if !done[e.eventID].Done() {
		return nil, fmt.Errorf("%s is not done with the event, so there is nothing to repeat (retry it instead): %w", consumer, ErrNotFound)
	}
	name := consumelog.ReplayName(consumer)
	_, err = tx.ExecContext(ctx, "INSERT INTO bc_event_consume_log (tenant_id, consumer_name, event_id, event_type, status, outbox_id, aggregate_type, aggregate_id, next_retry_at) "+
		"SELECT tenant_id, ?, event_id, event_type, 'SKIPPED', id, aggregate_type, aggregate_id, NULL FROM bc_outbox_event WHERE id = ?"+o.ignoreSelected("consumer_name,event_id"), name, e.outboxID)
	return []string{name}, err
}

// ignoreSelected ends an INSERT from a SELECT that leaves an existing row with the same key alone.
func (o *Outbox) ignoreSelected(keyColumns string) string {
	if o.d.Name == "mysql" {
		return " ON DUPLICATE KEY UPDATE bc_event_consume_log.consumer_name = bc_event_consume_log.consumer_name"
	}
	return o.d.Ignore(keyColumns)
}

// giveUp ends an event that nobody has been called for yet: whoever is registered for it is skipped.
func (o *Outbox) giveUp(ctx context.Context, tx bun.Tx, op Operation, e locked) (bool, error) {
	if e.status != StatusNew && e.status != StatusScheduled {
		return false, nil
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO bc_event_consume_log (tenant_id, consumer_name, event_id, event_type, status, outbox_id, aggregate_type, aggregate_id, error_message) "+
		"SELECT e.tenant_id, t.consumer_name, e.event_id, e.event_type, 'SKIPPED', e.id, e.aggregate_type, e.aggregate_id, ? FROM bc_outbox_event e JOIN bc_consumer_type t ON t.event_type = e.event_type WHERE e.id = ?"+
		o.ignoreSelected("consumer_name,event_id"), op.said(), e.outboxID)
	if err != nil {
		return false, err
	}
	return true, o.writeStatus(ctx, tx, StatusSent, []locked{e})
}
