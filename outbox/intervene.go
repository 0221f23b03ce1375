package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"

	claiming "github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/kind"
	"github.com/bluecone-go/bluecone/internal/store"
)

// The actions of an [Intervention], as the audit log names them.
const (
	ActionRetry    = "retry"     // makes deliveries due at once: see [Outbox.Retry]
	ActionSkip     = "skip"      // closes a delivery without an effect: see [Outbox.Skip]
	ActionDiscard  = "discard"   // closes every open delivery of the event: see [Outbox.Discard]
	ActionReplay   = "replay"    // runs a delivery again that has succeeded: see [Outbox.Replay]
	ActionBackfill = "backfill"  // gives a past event to a consumer that has never had it
	ActionMarkDead = "mark dead" // stops the attempts at a delivery: see [Outbox.MarkDead]
)

// Intervention is what an operator does to the deliveries of one event.
type Intervention struct {
	Action    string        // one of the actions above
	EventID   string        // of the event whose deliveries change
	Consumers []string      // whose deliveries: of all if it is empty, for retry and discard only; replay and backfill take exactly one
	Delay     time.Duration // until what is retried, replayed or backfilled is due; 0 means at once
	// KeepSkipped leaves deliveries closed that somebody has skipped or discarded, even if a retry names their consumer.
	KeepSkipped bool
	Note        string // goes into the details of the audit row
}

// ErrNotReplayable means that no instance has the consumer as bus.ConsumerConfig.Replayable.
var ErrNotReplayable = errors.New("the consumer is not replayable: running its past events again has to be allowed by " +
	"bus.ConsumerConfig.Replayable")

// ErrInFlight means that an instance is delivering the event at this moment. It is an [ErrNotFound], too.
var ErrInFlight = kind.Of(errors.New("the event is being delivered at this moment: try again when that has ended"), ErrNotFound)

// refusedf is an [ErrNotFound] that says what is so.
func refusedf(format string, args ...any) error {
	return kind.Of(fmt.Errorf(format, args...), ErrNotFound)
}

// change is how an action changes rows of the consume log.
type change struct {
	from    []store.Status // the states that allow it
	to      store.DeliveryChange
	deliver bool // the event is to be delivered, so its row must be there
	pass    bool // later events may pass
}

func changeOf(op Operation, iv Intervention) (change, error) {
	closed := change{
		from: []store.Status{store.Dead, store.Failed, store.Pending},
		to:   store.DeliveryChange{To: string(store.Skipped), Why: op.said()}, pass: true,
	}
	due := change{to: store.DeliveryChange{To: string(store.Pending)}, deliver: true}
	if iv.Delay > 0 { // what ends before a PENDING delivery of the aggregate makes it due
		due.to = store.DeliveryChange{To: string(store.Failed), Delay: iv.Delay}
	}
	needs := func(c change) (change, error) {
		if len(iv.Consumers) == 0 || iv.Consumers[0] == "" {
			return c, errors.New("Intervention.Consumers is empty: name the consumer")
		}
		return c, nil
	}
	needsOne := func(c change) (change, error) {
		if len(iv.Consumers) > 1 {
			return c, fmt.Errorf("Intervention.Consumers has %d names: name one, and do it again for the next", len(iv.Consumers))
		}
		return needs(c)
	}
	switch iv.Action {
	case ActionRetry:
		due.from = []store.Status{store.Dead, store.Failed}
		if len(iv.Consumers) > 0 {
			due.from = append(due.from, store.Pending)
			if !iv.KeepSkipped {
				due.from = append(due.from, store.Skipped)
			}
		}
		return due, nil
	case ActionReplay:
		due.from = []store.Status{store.Success, store.Skipped, store.Dead}
		return needsOne(due)
	case ActionBackfill:
		due.from = []store.Status{store.Skipped} // as prepareBackfill leaves it
		return needsOne(due)
	case ActionSkip:
		return needs(closed)
	case ActionDiscard:
		return closed, nil
	case ActionMarkDead:
		return needs(change{
			from: []store.Status{store.Failed, store.Pending},
			to:   store.DeliveryChange{To: string(store.Dead), Why: op.said()},
		})
	}
	return change{}, fmt.Errorf("there is no action %q: the actions are %s, %s, %s, %s, %s and %q", iv.Action, ActionRetry, ActionSkip,
		ActionDiscard, ActionReplay, ActionBackfill, ActionMarkDead)
}

// Intervene changes deliveries, the status of their event and the audit log in one
// transaction, under the lock of the event's row. It returns [ErrNotFound] if the event has no such delivery in a state that
// allows the action, or is gone and cannot be delivered; [ErrInFlight] if what is to be discarded or backfilled is being delivered;
// [ErrNotReplayable] if the consumer of a replay is not replayable;
// what is wrong with op or iv; or an error of the database. With an error nothing has changed.
func (o *Outbox) Intervene(ctx context.Context, op Operation, iv Intervention) error {
	err := o.inTx(ctx, func(ctx context.Context, tx bun.Tx) error { return o.InterveneIn(ctx, tx, op, iv) })
	if errors.Is(err, errBegun) { // what it had changed is rolled back
		return kind.Of(kind.Of(err, ErrInFlight), ErrNotFound)
	}
	return err
}

// InterveneIn is [Outbox.Intervene] in a transaction of the caller, which must be READ COMMITTED.
// An error of [ErrNotFound] has changed nothing, and the transaction can go on.
func (o *Outbox) InterveneIn(ctx context.Context, tx bun.Tx, op Operation, iv Intervention) error {
	c, err := changeOf(op, iv)
	if err = errors.Join(op.Validate(), err); err == nil {
		err = newAct(o, tx, op).intervene(ctx, iv, c)
	}
	if err != nil {
		return fmt.Errorf("outbox: %s %s: %w", iv.Action, iv.EventID, err)
	}
	return nil
}

func (a act) intervene(ctx context.Context, iv Intervention, c change) error {
	events, err := a.o.settler.Lock(ctx, a.tx, []string{iv.EventID})
	if err != nil {
		return err
	}
	if c.deliver && len(events) == 0 {
		return refusedf("the event has no row (any more), there is nothing to deliver")
	}
	names, err := a.keysOf(ctx, iv.Consumers)
	if err != nil {
		return err
	}
	switch iv.Action {
	case ActionDiscard:
		err = a.notInFlight(ctx, iv.EventID, events)
	case ActionReplay:
		names, err = a.prepareReplay(ctx, events[0], names[0])
	case ActionBackfill:
		err = a.prepareBackfill(ctx, events[0], names[0])
	}
	if err != nil {
		return err
	}
	changed, err := a.changeRows(ctx, iv.EventID, names, c)
	if err != nil {
		return err
	}
	given := false
	if iv.Action == ActionDiscard {
		if given, err = a.giveUp(ctx, iv.EventID, events, len(changed) > 0); err != nil {
			return err
		}
	}
	if len(changed) == 0 && !given {
		return ErrNotFound
	}
	if c.pass && len(events) > 0 && len(changed) > 0 { // before the roll-up, which may delete the event
		head := store.Delivery{OutboxID: events[0].ID}
		if _, err := claiming.WakeNext(ctx, a.tx, a.o.log.Order, changed, claiming.MostWoken, head); err != nil {
			return err
		}
	}
	changes, err := a.o.settler.RollUpIn(ctx, a.tx, events)
	if err != nil {
		return err
	}
	a.o.meter.Count(ctx, changes...)
	details := strings.Join(changed, ", ")
	if iv.Note != "" {
		details = iv.Note + ": " + details
	}
	return a.audit(ctx, iv.Action, iv.EventID, details)
}

// notInFlight makes sure that no instance is delivering the event: after a claim of it, or as a delivery in the log.
func (a act) notInFlight(ctx context.Context, eventID string, events []store.LockedEvent) error {
	if slices.ContainsFunc(events, func(e store.LockedEvent) bool { return Status(e.Status) == StatusDispatching }) {
		return ErrInFlight
	}
	isRunning, err := a.rows.IsRunning(ctx, a.tx, eventID)
	if err == nil && isRunning {
		err = ErrInFlight
	}
	return err
}

// changeRows changes the deliveries that allow it, and tells whose they are.
func (a act) changeRows(ctx context.Context, eventID string, names []string, c change) ([]string, error) {
	states := make([]string, len(c.from))
	for i, st := range c.from {
		states[i] = string(st)
	}
	return a.rows.ChangeDeliveries(ctx, a.tx, eventID, names, states, c.to)
}

// prepareReplay makes sure that the delivery may be repeated and that its repetition has a row. It
// returns the name of that row.
func (a act) prepareReplay(ctx context.Context, e store.LockedEvent, consumer string) ([]string, error) {
	may, err := a.rows.IsReplayable(ctx, a.tx, consumer)
	if err != nil {
		return nil, err
	}
	if !may {
		return nil, fmt.Errorf("%s: %w", consumer, ErrNotReplayable)
	}
	if st := Status(e.Status); st != StatusSent && st != StatusFailed && st != StatusDead {
		return nil, refusedf("the event is %s and not delivered yet", st)
	}
	done, err := a.o.log.Existing(ctx, a.tx, consumer, []string{e.EventID})
	if err != nil {
		return nil, err
	}
	if done[e.EventID] != store.Success { // not even a skipped one: its first run waits for its turn, a replay does not
		return nil, refusedf("%s has not succeeded with the event, so there is nothing to repeat (retry it instead)", consumer)
	}
	name := store.ReplayName(consumer)
	return []string{name}, a.rows.AddSkipped(ctx, a.tx, e.ID, name)
}

// prepareBackfill makes sure that the consumer takes events of the type and has never had this one, and gives the delivery a
// row. An event that is not delivered yet gets there by itself.
func (a act) prepareBackfill(ctx context.Context, e store.LockedEvent, consumer string) error {
	switch st := Status(e.Status); st {
	case StatusSent, StatusFailed, StatusDead:
	case StatusDispatching: // the instance that claimed it may not have known the consumer
		return ErrInFlight
	default:
		return refusedf("the event is %s and on its way to every consumer", st)
	}
	takes, err := a.rows.TakesType(ctx, a.tx, consumer, e.EventType)
	if err != nil {
		return err
	}
	if !takes {
		return refusedf("no instance takes %s for %s", e.EventType, consumer)
	}
	had, err := a.o.log.Existing(ctx, a.tx, consumer, []string{e.EventID})
	if err != nil {
		return err
	}
	if _, ok := had[e.EventID]; ok {
		return refusedf("%s has had the event (retry or replay it instead)", consumer)
	}
	return a.rows.AddSkipped(ctx, a.tx, e.ID, consumer)
}

// errBegun means that something has changed already in the transaction, and must not be stored.
var errBegun = errors.New("a delivery of the event has just begun, so nothing was changed: try again when it has ended")

// giveUp skips whoever is registered for an event and has no delivery of it, so that no backfill gives it to them later, and ends an
// event that nobody has been called for yet. A delivery that has begun since the look before could not be closed: nothing is to be
// then.
func (a act) giveUp(ctx context.Context, eventID string, events []store.LockedEvent, isClosed bool) (bool, error) {
	if isRunning, err := a.rows.IsRunning(ctx, a.tx, eventID); err != nil || isRunning {
		return false, cmp.Or(err, errBegun)
	}
	if len(events) == 0 {
		return false, nil
	}
	e := events[0]
	if st := Status(e.Status); st != StatusNew && st != StatusScheduled {
		if isClosed {
			_, err := a.rows.SkipRegistered(ctx, a.tx, e.ID, a.op.said())
			return false, err
		}
		return false, nil
	}
	inLog, err := a.rows.SkipRegistered(ctx, a.tx, e.ID, a.op.said())
	if err != nil {
		return false, err
	}
	changes, err := a.o.settler.Set(ctx, a.tx, settle.Sent, []store.LockedEvent{e}, inLog)
	if err == nil {
		a.o.meter.Count(ctx, changes...)
	}
	return err == nil, err
}
