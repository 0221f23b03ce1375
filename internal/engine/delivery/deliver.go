package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/flow"
	"github.com/bluecone-go/bluecone/internal/engine/health"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/inject"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
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
	if len(ready) > 0 && ready[0].isSuspect() {
		r.runSuspects(ctx, ready)
		return
	}
	ready = r.announce(ctx, ready)
	switch {
	case len(ready) == 0:
	case r.ln.c.IsExternal(ready[0].Event.Type):
		r.deliverExternal(ctx, ready)
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
	case d.isLost():
		r.out.setAside(ctx, d, store.Lost)
	case r.ln.isHalted():
		r.out.setAside(ctx, d, store.Blocked)
	case d.isSuspect() && d.Attempt > r.c.MaxAttempts(d.Event):
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
// refuses is run in parts, so that only the refused event fails.
func (r *runner) deliver(ctx context.Context, ds []*delivery) {
	for try := 1; len(ds) > 0; {
		aside, err := r.transact(ctx, ds)
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
			r.deliverParts(ctx, ds, err)
			return
		case errors.Is(err, store.ErrLeaseLost), ds[0].isLost(), ctx.Err() != nil:
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
	over, err := r.l.cfg.Budget.AcquireForLane(ctx)
	if err != nil {
		return nil, &infraError{err: err}
	}
	defer over()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(r.l.cfg.Lease, func() { cancel(health.ErrSilent) }) // handlers have limits of their own
	defer silence.Stop()
	defer r.ln.guard(ds, cancel)()
	faults, ids, began := &r.l.regs.Faults, eventIDs(ds), time.Now()
	if err := inject.Call(faults.BeforeDelivery, r.c.Name, ids); err != nil {
		return nil, &infraError{err: err}
	}
	tx, fence, err := handler.Begin(ctx, r.l.regs.DB, r.l.cfg.Dialect.ReadCommitted())
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
	if err == nil && fence.Poisoned() == nil {
		silence.Reset(r.l.cfg.Lease)
		aside, err = r.marks.verify(ctx, tx, ds)
	}
	if p := fence.Poisoned(); errors.Is(p, handler.ErrEnds) || errors.Is(p, handler.ErrNotAlone) {
		return nil, errors.Join(p, err)
	} else if p != nil {
		return nil, &infraError{err: errors.Join(p, err), wasHandled: true}
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
	if errors.Is(context.Cause(ctx), health.ErrSilent) {
		return health.ErrSilent
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

// pause waits a little, longer with every try, with jitter.
func pause(ctx context.Context, try int) {
	select {
	case <-time.After(rand.N(time.Duration(try) * 20 * time.Millisecond)):
	case <-ctx.Done():
	}
}

// mark writes the SUCCESS rows first, so that a concurrent twin stops before its handler, and then asks, once for the
// batch, whether each delivery may run. What its claim has seen is no answer: it may have changed since.
func (m *marks) mark(ctx context.Context, tx bun.Tx, ds []*delivery) (map[*delivery]store.Answer, error) {
	aside := make(map[*delivery]store.Answer)
	if ds[0].isDirect() {
		if err := m.findRecorded(ctx, tx, ds, aside); err != nil || len(aside) > 0 {
			return aside, err
		}
	}
	if err := m.writeMarkers(ctx, tx, ds); err != nil {
		return nil, err
	}
	return m.ask(ctx, tx, ds)
}

// writeMarkers turns the deliveries into SUCCESS rows: new ones, or those that are leased.
func (m *marks) writeMarkers(ctx context.Context, tx bun.Tx, ds []*delivery) error {
	if !ds[0].isDirect() {
		return m.l.regs.Log.Finish(ctx, tx, m.l.cfg.Instance, leasesOf(ds))
	}
	err := m.l.regs.Log.MarkSuccess(ctx, tx, rowsOf(ds, m.c), pairsOf(ds))
	if dialect.Classify(err) == dialect.Duplicate {
		forget(ds) // a twin was faster: look up next time
		return &infraError{err: err}
	}
	return err
}

// ask returns the deliveries that may not run.
func (m *marks) ask(ctx context.Context, tx bun.IDB, ds []*delivery) (map[*delivery]store.Answer, error) {
	aside := make(map[*delivery]store.Answer)
	if len(ds) == 0 {
		return aside, nil
	}
	asked := make([]store.Asked, len(ds))
	for i, d := range ds {
		asked[i] = d.asks()
	}
	gate := m.l.gateOf(m.c)
	gate.Marked = true
	answers, err := m.l.regs.Log.Ask(ctx, tx, gate, asked)
	if err != nil {
		return nil, err
	}
	for _, d := range ds {
		if a := answers[d.Event.OutboxID]; a != store.MayRun {
			aside[d] = a
		}
	}
	return aside, nil
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

// verify stores what the handlers recorded, and is the last look before COMMIT whether the
// transaction and its marks still exist, and whether the events are still leased: a process that
// was frozen finds here that others have gone on without it.
func (m *marks) verify(ctx context.Context, tx bun.Tx, ds []*delivery) (aside map[*delivery]store.Answer, err error) {
	var notes []store.Note
	for _, d := range ds {
		if d.Record != (handler.Record{}) {
			notes = append(notes, store.Note{EventID: d.Event.ID, IdempotencyKey: d.Record.Key, Result: d.Record.Result})
		}
	}
	if err := m.l.regs.Log.Annotate(ctx, tx, m.c.Key, notes); err != nil {
		return nil, handler.Unusable(ctx, err)
	}
	began := time.Now()
	held, err := m.l.regs.Log.Holds(ctx, tx, m.c.Key, ds[0].Event.ID, m.l.cfg.Instance, ds[0].pair())
	switch {
	case err != nil: // PostgreSQL refuses everything after a failed statement
		return nil, handler.Unusable(ctx, err)
	case !held.Marked:
		return nil, &infraError{err: errors.New("the handler's transaction has ended before the engine could commit it")}
	}
	m.ln.adjust(func(s *flow.Speed) { s.Pressure.Observe(time.Since(began), s.Settings.Workers) })
	switch {
	case !ds[0].isDirect(): // its lease is the mark
	case !held.Leased, slices.ContainsFunc(ds, func(d *delivery) bool { return d.held.IsOver(held.Now) }):
		return m.ask(ctx, tx, ds) // until a lease is out, nobody can have taken over the event
	}
	return aside, nil
}

// succeed reports deliveries whose transaction has committed.
func (o *outcomes) succeed(ctx context.Context, ds []*delivery) {
	m := o.l.regs.Metrics
	for _, d := range ds {
		telemetry.Add(ctx, m.Consumed, 1, telemetry.Consumer, o.c.Name, telemetry.EventType, d.Event.Type)
		telemetry.Observe(ctx, m.Latency, time.Since(d.Event.CreatedAt), telemetry.Consumer, o.c.Name, telemetry.EventType, d.Event.Type)
		o.line(ctx, slog.LevelDebug, d, "event consumed", telemetry.Took, time.Since(d.Started))
	}
	o.wakeNext(ctx, ds...)
	o.report(ctx, settle.Succeeded, ds...)
}

// wakeNext makes the deliveries due that wait behind retried ones, or behind what a dead process had in flight, which have got out of the
// way, and claims them at once.
func (o *outcomes) wakeNext(ctx context.Context, ds ...*delivery) {
	var ended []store.Delivery
	for _, d := range ds {
		if d.done == nil || d.kind == claim.Expired {
			ended = append(ended, d.row(o.c))
		}
	}
	if len(ended) > 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
		defer cancel()
		woken, err := claim.WakeNext(ctx, o.l.regs.DB, o.l.regs.Log.Order, []string{o.c.Key}, claim.MostWoken, ended...)
		if err != nil {
			o.warn(ctx, ds[0], "later deliveries of the aggregate could not be made due; they fall due within a minute", err)
		}
		if woken > 0 {
			o.ln.retries.refill()
		}
	}
}

// report says how deliveries ended: a direct one to its event in flight, retried ones to the roll-up of their events.
func (o *outcomes) report(ctx context.Context, outcome settle.Outcome, ds ...*delivery) {
	var ids []string
	for _, d := range ds {
		if d.done != nil {
			d.done(outcome)
		} else {
			ids = append(ids, d.Event.ID)
		}
	}
	if len(ids) > 0 {
		o.l.cfg.RollUps.Ended(context.WithoutCancel(ctx), ids)
	}
}
