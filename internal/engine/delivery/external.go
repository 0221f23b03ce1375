package delivery

import (
	"context"
	"errors"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
)

// deliverExternal runs a handler that has no transaction of ours. The delivery is leased
// in the consume log while it runs, so that it has one runner at a time; if the process
// dies after the effect and before the result is stored, it runs again.
func (r *runner) deliverExternal(ctx context.Context, d *delivery) {
	log := r.l.regs.Log
	answer, err := r.beginExternal(ctx, d)
	if err != nil {
		r.out.postpone(ctx, d, err)
		return
	}
	if answer != store.MayRun {
		r.out.setAside(ctx, d, answer)
		return
	}
	runCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer r.ln.guard([]*delivery{d}, cancel)()
	if _, err := r.handle(runCtx, handler.Transaction{}, []*delivery{d}); err != nil {
		if runCtx.Err() != nil && !errors.Is(err, handler.ErrStuck) { // the handler was told to stop: that is no failure of its own
			r.out.setAside(ctx, d, store.Lost)
			return
		}
		r.refuse(ctx, d, err)
		return
	}
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer done()
	err = r.l.cfg.Budget.Write(ctx, func() error {
		return r.l.regs.DB.RunInTx(ctx, r.l.options(), func(ctx context.Context, tx bun.Tx) error {
			if err := log.Finish(ctx, tx, r.l.cfg.Instance, []store.Leased{*d.lease}); err != nil {
				return err
			}
			_, err := r.marks.verify(ctx, tx, []*delivery{d})
			return err
		})
	})
	switch {
	case err == nil:
		r.ln.accepted(ctx, []*delivery{d})
		r.out.succeed(ctx, []*delivery{d})
	case errors.Is(err, store.ErrLeaseLost):
		r.out.setAside(ctx, d, store.Lost)
	default:
		r.out.warn(ctx, d, "the effect happened but its result could not be stored; it will happen again", err)
		r.out.fail(ctx, d, err)
	}
}

// beginExternal checks the order, also for what was claimed from the log together with the one before it,
// which may have failed since, and leases a direct delivery.
func (r *runner) beginExternal(ctx context.Context, d *delivery) (store.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, r.l.cfg.Lease) // a connection may be lost without a word
	defer cancel()
	log := r.l.regs.Log
	if d.direct() {
		existing, err := log.Existing(ctx, r.l.regs.DB, r.c.Key, []string{d.Event.ID})
		if err != nil {
			return "", err
		}
		if len(existing) > 0 {
			return recorded, nil
		}
	}
	answers, err := log.Ask(ctx, r.l.regs.DB, gateOf(r.c, r.l.cfg.Instance), []store.Asked{d.asks()})
	if err != nil {
		return "", err
	}
	if a := answers[d.Event.OutboxID]; a != store.MayRun || !d.direct() {
		return a, nil
	}
	if begun, err := r.begin(ctx, []*delivery{d}); err != nil || len(begun) == 0 {
		return recorded, err
	}
	return store.MayRun, nil
}
