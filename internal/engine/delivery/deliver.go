package delivery

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/engine/flow"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/inject"
	"github.com/bluecone-go/bluecone/internal/store"
)

// infraTries is how often in a row a transaction that the database poisoned is run
// again before it counts as an attempt.
const infraTries = 5

// recorded is an answer beside those of the gate: the delivery has a row already.
const recorded store.Answer = "recorded"

// runner runs the batches of one lane, several at a time: it has no state of its own.
type runner struct {
	l     *Lanes
	c     *handler.Consumer
	ln    *lane
	marks marks
	out   *outcomes
}

// run works off a batch of one consumer.
func (r *runner) run(ctx context.Context, batch []*delivery) {
	ready := make([]*delivery, 0, len(batch))
	for _, d := range batch {
		if r.mayRun(ctx, d) {
			ready = append(ready, d)
		}
	}
	if len(ready) > 0 && ready[0].suspect() {
		r.runSuspects(ctx, ready)
		return
	}
	ready = r.announce(ctx, ready)
	switch {
	case len(ready) == 0:
	case r.ln.c.IsExternal(ready[0].Event.Type):
		r.deliverExternal(ctx, ready[0])
	case r.together(ready) < len(ready):
		r.inParts(ctx, ready, len(ready))
	default:
		r.deliver(ctx, ready)
	}
}

// together is how many of the deliveries run in the next transaction: all or a part of them, none beside one that runs alone.
func (r *runner) together(ds []*delivery) int {
	alone := slices.IndexFunc(ds, func(d *delivery) bool { return r.c.RunsAlone(d.Event.Type) })
	switch alone {
	case -1:
		return r.ln.together(ds)
	case 0:
		return 1
	}
	return min(r.ln.together(ds), alone)
}

// mayRun ends deliveries that need no transaction to be decided.
func (r *runner) mayRun(ctx context.Context, d *delivery) bool {
	switch {
	case d.lost():
		r.out.setAside(ctx, d, store.Lost)
	case r.ln.isHalted():
		r.out.setAside(ctx, d, store.Blocked)
	case d.suspect() && d.Attempt > r.c.MaxAttempts(d.Event):
		r.out.fail(ctx, d, fmt.Errorf("all %d attempts are used up, the last of them ended without an answer: the process died, or lost its "+
			"lease, while it ran alone", r.c.MaxAttempts(d.Event)))
	default:
		if err := r.c.Decode(&d.Message); err != nil {
			r.out.fail(ctx, d, err)
			return false
		}
		return true
	}
	return false
}

// deliver runs a batch in one transaction. What is not to run now is set aside, a
// poisoned transaction is run again (a batch in halves), and a batch that a handler
// refuses is run in parts, so that only the event at fault fails.
func (r *runner) deliver(ctx context.Context, ds []*delivery) {
	for try := 1; len(ds) > 0; {
		aside, err := r.transact(ctx, ds)
		if isInfra(err) {
			r.ln.adjust(func(s *flow.Speed) { s.Pressure.Shrink(s.Settings.Workers) })
		}
		switch {
		case len(aside) > 0:
			ds = r.sortOut(ctx, ds, aside)
		case err == nil:
			r.ln.adjust(func(s *flow.Speed) { s.Pressure.Grow() })
			r.ln.accepted(ctx, ds)
			r.out.succeed(ctx, ds)
			return
		case len(ds) > 1 && errors.Is(err, handler.ErrNotAlone):
			r.inParts(ctx, ds, len(ds)) // from now on they run alone
			return
		case len(ds) > 1 && (isInfra(err) || errors.Is(err, store.ErrLeaseLost)):
			r.deliver(ctx, ds[:len(ds)/2])
			r.deliver(ctx, ds[len(ds)/2:])
			return
		case len(ds) > 1:
			r.ln.refused(ds)
			r.deliverParts(ctx, ds, err)
			return
		case errors.Is(err, store.ErrLeaseLost), ds[0].lost(), ctx.Err() != nil:
			r.out.setAside(ctx, ds[0], store.Lost)
			return
		case isInfra(err) && try < infraTries:
			try++
			pause(ctx, try)
		case isOutage(err) && (!lostByHandler(err) || !r.reaches(ctx)):
			r.out.postpone(ctx, ds[0], err)
			return
		default:
			r.refuse(ctx, ds[0], err)
			return
		}
	}
}

// transact runs the handlers of ds in one transaction: mark, check, handle, verify, commit.
// If it returns deliveries to set aside, or an error, nothing has taken effect.
func (r *runner) transact(ctx context.Context, ds []*delivery) (aside map[*delivery]store.Answer, err error) {
	defer r.l.cfg.Budget.LaneTurn()()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(r.l.cfg.Lease, func() { cancel(errSilent) }) // handlers have limits of their own
	defer silence.Stop()
	defer r.ln.guard(ds, cancel)()
	faults, ids, began := &r.l.regs.Faults, eventIDs(ds), time.Now()
	if err := inject.Call(faults.BeforeDelivery, r.c.Name, ids); err != nil {
		return nil, &infraError{err: err}
	}
	tx, fence, err := handler.Begin(ctx, r.l.regs.DB, r.l.options())
	if err != nil {
		return nil, &infraError{err: silenced(ctx, err)}
	}
	defer func() {
		fence.End(tx, err != nil || len(aside) > 0, errors.Is(err, handler.ErrStuck))
		if silent := silenced(ctx, err); err != nil && silent != err { //nolint:errorlint // another one, or the same
			err = &infraError{err: silent}
		}
	}()
	if aside, err = r.marks.mark(ctx, tx, ds); err != nil || len(aside) > 0 {
		return aside, asInfra(fence, err)
	}
	silence.Stop()
	handled, err := r.handle(ctx, r.handed(fence, tx, ds), ds)
	if err == nil {
		silence.Reset(r.l.cfg.Lease)
		aside, err = r.marks.verify(ctx, tx, ds)
	}
	if p := fence.Poisoned(); errors.Is(p, handler.ErrEnds) || errors.Is(p, handler.ErrNotAlone) {
		return nil, errors.Join(p, err)
	} else if p != nil {
		return nil, &infraError{err: errors.Join(p, err), handled: true}
	}
	if err != nil || len(aside) > 0 {
		return aside, asInfra(fence, err)
	}
	if err = inject.Call(faults.BeforeCommit, r.c.Name, ids); err == nil {
		if err = tx.Commit(); err == nil {
			err = inject.Call(faults.AfterCommit, r.c.Name, ids)
		}
	}
	if err != nil {
		fence.End(tx, true, false) // reading back may need the connection
		return nil, r.marks.readBack(ctx, ds, err)
	}
	r.ln.adjust(func(s *flow.Speed) { s.Times.ObserveOverhead(time.Since(began) - handled) })
	return aside, nil
}

// handed is the transaction as handlers get it.
func (r *runner) handed(fence *handler.Fence, tx bun.Tx, ds []*delivery) handler.Transaction {
	return fence.Transaction(tx, r.l.regs.Log.Statements(), len(ds))
}

// silenced is what really went wrong if the database's silence has ended ctx.
func silenced(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errSilent) {
		return errSilent
	}
	return err
}

func eventIDs(ds []*delivery) []string {
	ids := make([]string, len(ds))
	for i, d := range ds {
		ids[i] = d.Event.ID
	}
	return ids
}

// handle calls the handlers of ds, and learns how long they take.
func (r *runner) handle(ctx context.Context, tx handler.Transaction, ds []*delivery) (took time.Duration, err error) {
	ms := make([]*handler.Message, len(ds))
	for i, d := range ds {
		ms[i] = &d.Message
	}
	call, err := r.c.Prepare(ms)
	if err != nil {
		return 0, err
	}
	took, err = call.Run(ctx, tx)
	r.ln.adjust(func(s *flow.Speed) { s.Times.ObserveCall(took / time.Duration(len(ds))) })
	return took, err
}

// pause waits a little, longer with every try, with jitter.
func pause(ctx context.Context, try int) {
	select {
	case <-time.After(rand.N(time.Duration(try) * 20 * time.Millisecond)):
	case <-ctx.Done():
	}
}
