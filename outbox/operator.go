package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/kind"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/text"
)

// Operation is who intervenes, and why. Both go into the audit log.
type Operation struct {
	Actor  string // at most 128 bytes
	Reason string // at most 2,000 characters
}

// Validate reports what is missing: an operation has an actor and a reason.
func (op Operation) Validate() error {
	err := text.Key("operation: actor", op.Actor, 128)
	switch {
	case strings.TrimSpace(op.Reason) == "":
		err = errors.Join(err, errors.New("operation: reason is empty: say why, it is kept in the audit log"))
	case text.Clean(op.Reason, text.MaxError) != op.Reason:
		err = errors.Join(err, fmt.Errorf("operation: reason %s is not valid UTF-8, contains NUL or has more than %d characters",
			text.Quote(op.Reason), text.MaxError))
	}
	return err
}

// said is what an operation leaves at a delivery.
func (op Operation) said() string { return text.Clean(op.Actor+": "+op.Reason, text.MaxError) }

// ErrNotFound means that there is no such thing, or none in a state that allows the operation.
var ErrNotFound = errors.New("there is nothing of that name in a state that allows this")

// Retry makes deliveries of the event due at once and gives them all their attempts again:
// those of the named consumers, or every DEAD or FAILED one. The errors of Retry, [Outbox.Skip], [Outbox.Discard],
// [Outbox.Replay] and [Outbox.MarkDead] are those of [Outbox.Intervene].
func (o *Outbox) Retry(ctx context.Context, op Operation, eventID string, consumers ...string) error {
	return o.Intervene(ctx, op, Intervention{Action: ActionRetry, EventID: eventID, Consumers: consumers})
}

// Skip closes a delivery without an effect. Later events of its aggregate may then pass.
func (o *Outbox) Skip(ctx context.Context, op Operation, eventID, consumer string) error {
	return o.Intervene(ctx, op, Intervention{Action: ActionSkip, EventID: eventID, Consumers: []string{consumer}})
}

// Discard gives up an event: every delivery that is not done is closed without an effect. While an instance delivers the event, the
// answer is [ErrInFlight].
func (o *Outbox) Discard(ctx context.Context, op Operation, eventID string) error {
	return o.Intervene(ctx, op, Intervention{Action: ActionDiscard, EventID: eventID})
}

// Replay runs the delivery of an event to a consumer again although it is done, in a lane of its
// own. The consumer must be bus.ConsumerConfig.Replayable: otherwise the error is [ErrNotReplayable].
func (o *Outbox) Replay(ctx context.Context, op Operation, eventID, consumer string) error {
	return o.Intervene(ctx, op, Intervention{Action: ActionReplay, EventID: eventID, Consumers: []string{consumer}})
}

// MarkDead makes a delivery DEAD, so that the engine does not try it again. It waits until an operator retries or skips it.
func (o *Outbox) MarkDead(ctx context.Context, op Operation, eventID, consumer string) error {
	return o.Intervene(ctx, op, Intervention{Action: ActionMarkDead, EventID: eventID, Consumers: []string{consumer}})
}

// Pause stops a consumer in the whole deployment, for d (0 means until it is resumed).
// Its deliveries wait; nobody else's do. The error of Pause, [Outbox.Resume] and [Outbox.Retire] is [ErrNotFound] if no
// instance has ever registered the consumer; otherwise it says what is wrong with what was given, or is that of the database.
func (o *Outbox) Pause(ctx context.Context, op Operation, consumer string, d time.Duration) error {
	if d < 0 {
		return fmt.Errorf("outbox: pause %s for %v: the duration must not be negative", consumer, d)
	}
	if d == 0 {
		d = 100 * 365 * 24 * time.Hour
	}
	return steer(ctx, o, op, "pause", consumer, func(a act, key string) (bool, error) {
		return true, a.rows.PauseConsumer(ctx, a.tx, key, d, op.Actor, text.Clean(op.Reason, text.MaxError))
	})
}

// Resume ends a pause. If there is none, it changes nothing and leaves nothing in the audit log.
func (o *Outbox) Resume(ctx context.Context, op Operation, consumer string) error {
	return steer(ctx, o, op, "resume", consumer, func(a act, key string) (bool, error) {
		return a.rows.ResumeConsumer(ctx, a.tx, key)
	})
}

// Retire removes a consumer that no code registers any more from the registry, with its replays, so
// that new events no longer wait for it; or, if there are any event types, only these of them. Nothing else ends
// a registration: events wait for a consumer however long its instances are away. Skip what already
// waits. An instance that still has the consumer, or the type, registers it again within half a minute. The error is
// [ErrNotFound], too, if the consumer takes none of eventTypes.
func (o *Outbox) Retire(ctx context.Context, op Operation, consumer string, eventTypes ...string) error {
	return steer(ctx, o, op, "retire", consumer, func(a act, key string) (bool, error) {
		if len(eventTypes) > 0 {
			return true, a.retireTypes(ctx, key, eventTypes)
		}
		return true, a.rows.RetireConsumers(ctx, a.tx, []string{key, store.ReplayName(key)})
	}, eventTypes...)
}

// retireTypes takes event types from what instances have said that they take for a consumer.
func (a act) retireTypes(ctx context.Context, key string, eventTypes []string) error {
	retired, err := a.rows.RetireTypes(ctx, a.tx, key, eventTypes)
	if err != nil {
		return err
	}
	column, err := a.rows.LockTypes(ctx, a.tx, key)
	if err != nil {
		return err
	}
	types, err := registry.TypesIn(column)
	if err != nil {
		a.o.malformed.Report(ctx, key, err)
	}
	left := slices.DeleteFunc(slices.Clone(types), func(t string) bool { return slices.Contains(eventTypes, t) })
	if retired == 0 && len(left) == len(types) {
		return kind.Of(fmt.Errorf("the consumer does not take %s", strings.Join(eventTypes, ", ")), ErrNotFound)
	}
	list, err := json.Marshal(append([]string{}, left...))
	if err != nil {
		return err
	}
	return a.rows.SetTypes(ctx, a.tx, key, string(list))
}

// act is what an operator does, in one transaction.
type act struct {
	o    *Outbox
	tx   bun.Tx
	op   Operation
	rows store.Operations
}

func newAct(o *Outbox, tx bun.Tx, op Operation) act {
	return act{o: o, tx: tx, op: op, rows: store.NewOperations(o.d)}
}

// steer changes a registered consumer, in a transaction that writes the audit log if anything has changed.
func steer(ctx context.Context, o *Outbox, op Operation, action, consumer string, change func(a act, key string) (bool, error),
	details ...string,
) error {
	if err := errors.Join(op.Validate(), text.ConsumerName("consumer", consumer)); err != nil {
		return fmt.Errorf("outbox: %s a consumer: %w", action, err)
	}
	return o.inTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		a := newAct(o, tx, op)
		keys, err := a.keysOf(ctx, []string{consumer})
		if err != nil {
			return fmt.Errorf("outbox: %s %s: %w", action, consumer, err)
		}
		registered, err := a.rows.IsRegistered(ctx, a.tx, keys[0])
		if err != nil {
			return fmt.Errorf("outbox: %s %s: %w", action, consumer, err)
		}
		if !registered {
			err := fmt.Errorf("outbox: %s %s: no instance has ever registered a consumer %q", action, consumer, consumer)
			return kind.Of(kind.Of(err, kind.ErrUnknown), ErrNotFound)
		}
		changed, err := change(a, keys[0])
		if err != nil {
			return fmt.Errorf("outbox: %s %s: %w", action, consumer, err)
		}
		if !changed {
			return nil
		}
		return a.audit(ctx, action, keys[0], strings.Join(details, ", "))
	})
}

// keysOf are the keys of consumers that an operator names by key or by name. What the registry does not
// know is a key: deliveries may wait for it all the same. Replays of a consumer are named like the consumer.
func (a act) keysOf(ctx context.Context, consumers []string) ([]string, error) {
	keys := make([]string, len(consumers))
	for i, consumer := range consumers {
		keys[i] = consumer
		key, known, err := a.rows.KeyOf(ctx, a.tx, consumer)
		if err != nil {
			return nil, fmt.Errorf("look up the key of consumer %s: %w", consumer, err)
		}
		if known {
			keys[i] = key
		}
	}
	return keys, nil
}

func (a act) audit(ctx context.Context, action, target, details string) error {
	if err := store.WriteAudit(ctx, a.tx, a.o.d, store.AuditEntry{
		Actor: a.op.Actor, Action: action, Target: target, Reason: a.op.Reason, Details: details,
	}); err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	a.o.logger.InfoContext(ctx, "operator", "actor", a.op.Actor, "action", action, "target", target, "reason", a.op.Reason)
	return nil
}
