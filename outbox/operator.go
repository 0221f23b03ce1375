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
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/text"
)

// Operation is who intervenes, and why. Both go into the audit log.
type Operation struct {
	Actor  string // at most 128 bytes
	Reason string
}

// Validate reports what is missing: an operation has an actor and a reason.
func (op Operation) Validate() error {
	err := text.Key("operation: actor", op.Actor, 128)
	switch {
	case op.Reason == "":
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

// Retry makes deliveries of the event due at once, with all their attempts before them:
// those of the named consumers, or every DEAD or FAILED one.
func (o *Outbox) Retry(ctx context.Context, op Operation, eventID string, consumers ...string) error {
	return o.Intervene(ctx, op, Intervention{Action: ActionRetry, EventID: eventID, Consumers: consumers})
}

// Skip closes a delivery without an effect. Later events of its aggregate may then pass.
func (o *Outbox) Skip(ctx context.Context, op Operation, eventID, consumer string) error {
	return o.Intervene(ctx, op, Intervention{Action: ActionSkip, EventID: eventID, Consumers: []string{consumer}})
}

// Discard gives up an event: every delivery that is not done is closed without an effect.
func (o *Outbox) Discard(ctx context.Context, op Operation, eventID string) error {
	return o.Intervene(ctx, op, Intervention{Action: ActionDiscard, EventID: eventID})
}

// Replay runs the delivery of an event to a consumer again although it is done, in a lane of its
// own. The consumer must be bus.ConsumerConfig.Replayable.
func (o *Outbox) Replay(ctx context.Context, op Operation, eventID, consumer string) error {
	return o.Intervene(ctx, op, Intervention{Action: ActionReplay, EventID: eventID, Consumers: []string{consumer}})
}

// MarkDead takes a delivery out of the engine's hands until an operator retries or skips it.
func (o *Outbox) MarkDead(ctx context.Context, op Operation, eventID, consumer string) error {
	return o.Intervene(ctx, op, Intervention{Action: ActionMarkDead, EventID: eventID, Consumers: []string{consumer}})
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
	return o.steer(ctx, op, "pause", consumer, func(tx bun.Tx, key string) error {
		return o.operations().PauseConsumer(ctx, tx, key, d, op.Actor, text.Clean(op.Reason, text.MaxError))
	})
}

// Resume ends a pause.
func (o *Outbox) Resume(ctx context.Context, op Operation, consumer string) error {
	return o.steer(ctx, op, "resume", consumer, func(tx bun.Tx, key string) error {
		return o.operations().ResumeConsumer(ctx, tx, key)
	})
}

// Retire removes a consumer that no code registers any more from the registry, with its replays, so
// that new events no longer wait for it; or, if there are any event types, only these of them. Nothing else ends
// a registration: events wait for a consumer however long its instances are away. Skip what already
// waits. An instance that still has the consumer, or the type, registers it again within half a minute.
func (o *Outbox) Retire(ctx context.Context, op Operation, consumer string, eventTypes ...string) error {
	return o.steer(ctx, op, "retire", consumer, func(tx bun.Tx, key string) error {
		if len(eventTypes) > 0 {
			return o.retireTypes(ctx, tx, key, eventTypes)
		}
		return o.operations().RetireConsumers(ctx, tx, []string{key, store.ReplayName(key)})
	}, eventTypes...)
}

// retireTypes takes event types from what instances have said that they take for a consumer.
func (o *Outbox) retireTypes(ctx context.Context, tx bun.Tx, key string, eventTypes []string) error {
	retired, err := o.operations().RetireTypes(ctx, tx, key, eventTypes)
	if err != nil {
		return err
	}
	column, err := o.operations().LockTypes(ctx, tx, key)
	if err != nil {
		return err
	}
	types, err := registry.TypesIn(column)
	if err != nil {
		o.rotten.Report(ctx, key, err)
	}
	left := slices.DeleteFunc(slices.Clone(types), func(t string) bool { return slices.Contains(eventTypes, t) })
	if retired == 0 && len(left) == len(types) {
		return fmt.Errorf("the consumer does not take %s: %w", strings.Join(eventTypes, ", "), ErrNotFound)
	}
	list, err := json.Marshal(append([]string{}, left...))
	if err != nil {
		return err
	}
	return o.operations().SetTypes(ctx, tx, key, string(list))
}

// operations are the statements of operators.
func (o *Outbox) operations() store.Operations { return store.NewOperations(o.d) }

// steer changes a registered consumer, in a transaction that writes the audit log.
func (o *Outbox) steer(ctx context.Context, op Operation, action, consumer string, change func(tx bun.Tx, key string) error,
	details ...string,
) error {
	if err := errors.Join(op.Validate(), text.ConsumerName("consumer", consumer)); err != nil {
		return fmt.Errorf("outbox: %s a consumer: %w", action, err)
	}
	return o.inTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		keys, err := o.keysOf(ctx, tx, []string{consumer})
		if err != nil {
			return fmt.Errorf("outbox: %s %s: %w", action, consumer, err)
		}
		registered, err := o.operations().IsRegistered(ctx, tx, keys[0])
		if err != nil {
			return fmt.Errorf("outbox: %s %s: %w", action, consumer, err)
		}
		if !registered {
			return fmt.Errorf("outbox: %s %s: no instance has ever registered a consumer of that name or key: %w", action, consumer, ErrNotFound)
		}
		if err := change(tx, keys[0]); err != nil {
			return fmt.Errorf("outbox: %s %s: %w", action, consumer, err)
		}
		return o.audit(ctx, tx, op, action, keys[0], strings.Join(details, ", "))
	})
}

// keysOf are the keys of consumers that an operator names by key or by name. What the registry does not
// know is a key: deliveries may wait for it all the same. Replays of a consumer are named like the consumer.
func (o *Outbox) keysOf(ctx context.Context, idb bun.IDB, consumers []string) ([]string, error) {
	keys := make([]string, len(consumers))
	for i, consumer := range consumers {
		keys[i] = consumer
		key, known, err := o.operations().KeyOf(ctx, idb, consumer)
		if err != nil {
			return nil, fmt.Errorf("look up the key of consumer %s: %w", consumer, err)
		}
		if known {
			keys[i] = key
		}
	}
	return keys, nil
}

func (o *Outbox) audit(ctx context.Context, tx bun.Tx, op Operation, action, target, details string) error {
	if err := store.WriteAudit(ctx, tx, o.d, store.AuditEntry{
		Actor: op.Actor, Action: action, Target: target, Reason: op.Reason, Details: details,
	}); err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	o.logger.InfoContext(ctx, "operator", "actor", op.Actor, "action", action, "target", target, "reason", op.Reason)
	return nil
}
