package delivery

import (
	"context"
	"errors"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
)

// deliverExternal runs a handler without a transaction, for one delivery, or for several of which no two are of one
// aggregate. They are leased in the consume log while it runs, so that each has one runner at a time; if the process
// dies after the effect and before the result is stored, it runs again.
func (r *runner) deliverExternal(ctx context.Context, ds []*delivery) {
	if ds = r.beginExternal(ctx, ds); len(ds) == 0 {
		return
	}
	runCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer r.ln.guard(ds, cancel)()
	_, err := r.handle(runCtx, handler.Transaction{}, ds)
	if err != nil && runCtx.Err() != nil && !errors.Is(err, handler.ErrStuck) { // the handler was told to stop: that is no failure of its own
		for _, d := range ds {
			r.out.setAside(ctx, d, store.Lost)
		}
		return
	}
	accepted := make([]*delivery, 0, len(ds))
	for i, d := range ds {
		if answer := handler.AnswerTo(err, i, len(ds)); answer != nil {
			r.refuse(ctx, d, answer)
		} else {
			accepted = append(accepted, d)
		}
	}
	r.finishExternal(ctx, accepted)
}

// finishExternal stores that the handler has accepted the deliveries: together, or one by one if that fails.
func (r *runner) finishExternal(ctx context.Context, ds []*delivery) {
	if len(ds) == 0 {
		return
	}
	limited, done := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer done()
	err := r.l.cfg.Budget.Write(limited, func() error {
		return r.l.regs.DB.RunInTx(limited, r.l.cfg.Dialect.ReadCommitted(), func(ctx context.Context, tx bun.Tx) error {
			if err := r.l.regs.Log.Finish(ctx, tx, r.l.cfg.Instance, leasesOf(ds)); err != nil {
				return err
			}
			_, err := r.marks.verify(ctx, tx, ds)
			return err
		})
	})
	switch {
	case err == nil:
		r.ln.accepted(limited, ds)
		r.out.succeed(limited, ds)
	case len(ds) > 1:
		for i := range ds {
			r.finishExternal(ctx, ds[i:i+1])
		}
	case errors.Is(err, store.ErrLeaseLost):
		r.out.setAside(limited, ds[0], store.Lost)
	default:
		r.out.warn(limited, ds[0], "the effect happened but its result could not be stored; it will happen again", err)
		r.out.fail(limited, ds[0], err)
	}
}

// beginExternal checks the order, also for what was claimed from the log together with the one before it,
// which may have failed since, and leases direct deliveries. It returns those that may run.
func (r *runner) beginExternal(ctx context.Context, ds []*delivery) []*delivery {
	limited, cancel := context.WithTimeout(ctx, r.l.cfg.Lease) // a connection may be lost without a word
	defer cancel()
	aside, err := r.marks.askExternal(limited, ds)
	if err == nil {
		ds = r.sortOut(ctx, ds, aside)
	}
	if err == nil && len(ds) > 0 && ds[0].isDirect() {
		err = r.begin(limited, ds)
	}
	if err != nil {
		for _, d := range ds {
			r.out.postpone(ctx, d, err)
		}
		return nil
	}
	begun := ds[:0:0]
	for _, d := range ds {
		if d.isDirect() { // it has a row already
			r.out.setAside(ctx, d, recorded)
		} else {
			begun = append(begun, d)
		}
	}
	return begun
}

// askExternal returns the deliveries without a transaction that may not run now.
func (m *marks) askExternal(ctx context.Context, ds []*delivery) (map[*delivery]store.Answer, error) {
	aside, log := make(map[*delivery]store.Answer), m.l.regs.Log
	if ds[0].isDirect() {
		existing, err := log.Existing(ctx, m.l.regs.DB, m.c.Key, eventIDs(ds))
		if err != nil {
			return nil, err
		}
		for _, d := range ds {
			if _, ok := existing[d.Event.ID]; ok {
				aside[d] = recorded
			}
		}
	}
	asked := make([]store.Asked, 0, len(ds))
	for _, d := range ds {
		if aside[d] == "" {
			asked = append(asked, d.asks())
		}
	}
	if len(asked) == 0 {
		return aside, nil
	}
	answers, err := log.Ask(ctx, m.l.regs.DB, m.l.gateOf(m.c), asked)
	for _, d := range ds {
		if a := answers[d.Event.OutboxID]; aside[d] == "" && a != store.MayRun {
			aside[d] = a
		}
	}
	return aside, err
}
