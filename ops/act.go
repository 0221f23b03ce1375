package ops

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/text"
)

// acts is the way of every write: somebody may do it, it is written down, and readers see it at once.
type acts struct {
	db     *bun.DB
	d      dialect.Dialect
	access *access
	log    *slog.Logger
}

// changeEvent changes deliveries of an event that the caller may see. The name is that of the action for people.
func (a *acts) changeEvent(ctx context.Context, op Operation, name, eventID string, consumers []string, do func() error) error {
	typed := []field{{"event id", eventID}}
	for _, c := range consumers {
		typed = append(typed, field{"consumer", c})
	}
	return a.change(op, typed, func() error {
		if err := a.access.mayChange(ctx, eventID); err != nil {
			return err
		}
		return a.explain(ctx, do(), name, eventID, consumers)
	})
}

// explain puts what is so in the place of an error that only says that nothing of the event allows the action.
func (a *acts) explain(ctx context.Context, err error, name, eventID string, consumers []string) error {
	switch {
	case errors.Is(err, ErrNotReplayable):
		return a.explainReplay(ctx, err, consumers)
	case !errors.Is(err, ErrNotFound):
		return err
	}
	there, lookErr := a.access.exists(ctx, eventID)
	if lookErr != nil {
		return errors.Join(err, lookErr)
	}
	prefix := fmt.Sprintf("ops: %s %s: ", name, text.Quote(eventID))
	if !there {
		return unknownf("%sthere is no event %s", prefix, text.Quote(eventID))
	}
	if said := errors.Unwrap(err); said != nil && said != ErrNotFound { //nolint:errorlint // the question is whether it says anything more
		return fmt.Errorf("%s%w", prefix, said)
	}
	return unfitf("%s%s", prefix, nothingTo(name, consumers))
}

// explainReplay tells a consumer that does not exist from one that must not be replayed.
func (a *acts) explainReplay(ctx context.Context, err error, consumers []string) error {
	k, readErr := a.access.readRegistry(ctx)
	if readErr != nil {
		return errors.Join(err, readErr)
	}
	if len(consumers) == 1 && !k.has(consumers[0]) {
		return unknownf("ops: replay: no instance has ever registered a consumer %s", text.Quote(consumers[0]))
	}
	return err
}

// nothingTo says in which states a delivery of the consumers, or of any, must be for an action.
func nothingTo(name string, consumers []string) string {
	to := ""
	if len(consumers) > 0 {
		to = " to " + text.Clean(strings.Join(consumers, ", "), longest)
	}
	states := "DEAD, FAILED or PENDING"
	switch {
	case name == "replay":
		return "a replay of the event" + to + " waits already"
	case name == "retry" && len(consumers) == 0:
		states = "DEAD or FAILED"
	case name == "reopen":
		states = "DEAD, FAILED, PENDING or SKIPPED"
	}
	return fmt.Sprintf("nothing to %s: no delivery of the event%s is %s", name, to, states)
}

// steer changes a consumer in the whole deployment.
func (a *acts) steer(ctx context.Context, op Operation, typed []field, do func() error) error {
	if err := CallerOf(ctx).whole("a consumer"); err != nil {
		return err
	}
	return a.change(op, typed, do)
}

// change does something with what somebody has typed, and forgets the answers that it makes stale.
func (a *acts) change(op Operation, typed []field, do func() error) error {
	errs := []error{op.Validate()}
	for _, f := range typed {
		errs = append(errs, text.Key("ops: "+f.name, f.value, longest))
	}
	if err := asInvalid(errors.Join(errs...)); err != nil {
		return err
	}
	defer a.access.forget()
	return do()
}

// audited runs fn and writes the audit row in one transaction.
func (a *acts) audited(
	ctx context.Context, op Operation, action, target, details string, fn func(ctx context.Context, tx bun.Tx) error,
) error {
	err := asInvalid(op.Validate())
	if err == nil {
		entry := store.AuditEntry{Actor: op.Actor, Action: action, Target: target, Reason: op.Reason, Details: details}
		err = a.db.RunInTx(ctx, a.d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) error {
			if fn != nil {
				if err := fn(ctx, tx); err != nil {
					return err
				}
			}
			return store.WriteAudit(ctx, tx, a.d, entry)
		})
	}
	if err != nil {
		return fmt.Errorf("ops: %s %s: %w", action, text.Quote(target), err)
	}
	a.done(ctx, op, action, target)
	return nil
}

// done lets readers see what was done, and says it to the log.
func (a *acts) done(ctx context.Context, op Operation, action, target string) {
	a.access.forget()
	a.log.InfoContext(ctx, "operator", "actor", op.Actor, "action", action, "target", target, "reason", op.Reason)
}
