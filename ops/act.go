package ops

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

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

// changeEvent changes an event that the caller may see.
func (a *acts) changeEvent(ctx context.Context, op Operation, typed []field, eventID string, do func() error) error {
	return a.change(op, typed, func() error {
		if err := a.access.mayChange(ctx, eventID); err != nil {
			return err
		}
		return do()
	})
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
