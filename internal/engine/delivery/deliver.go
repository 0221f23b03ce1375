package delivery

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/inject"
	"github.com/bluecone-go/bluecone/internal/store"
)

// infraTries is how often in a row a transaction that the database spoilt is run
// again before it counts as an attempt.
const infraTries = 5

// recorded is an answer beside those of the gate: the delivery has a row already.
const recorded store.Answer = "recorded"

// run works off a batch of one consumer.
func (ln *lane) run(ctx context.Context, batch []*delivery) {
	ready := make([]*delivery, 0, len(batch))
	for _, d := range batch {
		if ln.mayRun(ctx, d) {
			ready = append(ready, d)
		}
	}
	if len(ready) > 0 && ready[0].suspect() {
		ln.runSuspects(ctx, ready)
		return
	}
	ready = ln.announce(ctx, ready)
	switch {
	case len(ready) == 0:
	case ln.external(ready[0]):
		ln.deliverExternal(ctx, ready[0])
	case ln.together(ready) < len(ready):
		ln.inParts(ctx, ready, len(ready))
	default:
		ln.deliver(ctx, ready)
	}
}

// mayRun ends deliveries that need no transaction to be decided.
func (ln *lane) mayRun(ctx context.Context, d *delivery) bool {
	switch {
	case d.lost():
		ln.setAside(ctx, d, store.Lost)
	case ln.isHalted():
		ln.setAside(ctx, d, store.Blocked)
	case d.suspect() && d.Attempt > ln.c.MaxAttempts(d.Event):
		ln.fail(ctx, d, fmt.Errorf("all %d attempts are used up, the last of them ended without an answer: the process died, or lost its lease, while it ran alone", ln.c.MaxAttempts(d.Event)))
	default:
		if err := ln.c.Decode(&d.Message); err != nil {
			ln.fail(ctx, d, err)
			return false
		}
		return true
	}
	return false
}

// deliver runs a batch in one transaction. What is not to run now is set aside, a
// spoilt transaction is run again (a batch in halves), and a batch that a handler
// refuses is run in parts, so that only the event at fault fails.
func (ln *lane) deliver(ctx context.Context, ds []*delivery) {
	for try := 1; len(ds) > 0; {
		aside, err := ln.transact(ctx, ds)
		if isInfra(err) {
			ln.adjust(func(p *pace) { p.ease(ln.limit) })
		}
		switch {
		case len(aside) > 0:
			ds = ln.sortOut(ctx, ds, aside)
		case err == nil:
			ln.adjust((*pace).bear)
			ln.accepted(ctx, ds)
			ln.succeed(ctx, ds)
			return
		case len(ds) > 1 && (isInfra(err) || errors.Is(err, store.ErrLeaseLost)):
			ln.deliver(ctx, ds[:len(ds)/2])
			ln.deliver(ctx, ds[len(ds)/2:])
			return
		case len(ds) > 1:
			ln.refused(ds)
			ln.deliverParts(ctx, ds, err)
			return
		case errors.Is(err, store.ErrLeaseLost), ds[0].lost(), ctx.Err() != nil:
			ln.setAside(ctx, ds[0], store.Lost)
			return
		case isInfra(err) && try < infraTries:
			try++
			ln.pause(ctx, try)
		case isOutage(err) && (!lostByHandler(err) || !ln.reaches(ctx)):
			ln.postpone(ctx, ds[0], err)
			return
		default:
			ln.refuse(ctx, ds[0], err)
			return
		}
	}
}

// transact runs the handlers of ds in one transaction: mark, check, handle, verify, commit.
// If it returns deliveries to set aside, or an error, nothing has taken effect.
func (ln *lane) transact(ctx context.Context, ds []*delivery) (aside map[*delivery]store.Answer, err error) {
	defer ln.l.laneTurn()()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(ln.l.host.Lease, func() { cancel(errSilent) }) // handlers have limits of their own
	defer silence.Stop()
	defer ln.guard(ds, cancel)()
	faults, ids, began := &ln.l.regs.Faults, eventIDs(ds), time.Now()
	if err := inject.Call(faults.BeforeDelivery, ln.c.Name, ids); err != nil {
		return nil, &infraError{err: err}
	}
	tx, fence, err := handler.Begin(ctx, ln.l.regs.DB, ln.options())
	if err != nil {
		return nil, &infraError{err: silenced(ctx, err)}
	}
	defer func() {
		fence.End(tx, err != nil || len(aside) > 0, errors.Is(err, handler.ErrStuck))
		if silent := silenced(ctx, err); err != nil && silent != err { //nolint:errorlint // another one, or the same
			err = &infraError{err: silent}
		}
	}()
	if aside, err = ln.mark(ctx, tx, ds); err != nil || len(aside) > 0 {
		return aside, asInfra(fence, err)
	}
	silence.Stop()
	handled, err := ln.handle(ctx, tx, ds)
	if err == nil {
		silence.Reset(ln.l.host.Lease)
		aside, err = ln.verify(ctx, tx, ds)
	}
	if p := fence.Poisoned(); errors.Is(p, handler.ErrEnds) {
		return nil, errors.Join(p, err)
	} else if p != nil {
		return nil, &infraError{err: errors.Join(p, err), handled: true}
	}
	if err != nil || len(aside) > 0 {
		return aside, asInfra(fence, err)
	}
	if err = inject.Call(faults.BeforeCommit, ln.c.Name, ids); err == nil {
		if err = tx.Commit(); err == nil {
			err = inject.Call(faults.AfterCommit, ln.c.Name, ids)
		}
	}
	if err != nil {
		fence.End(tx, true, false) // reading back may need the connection
		return nil, ln.readBack(ctx, ds, err)
	}
	ln.observeOverhead(time.Since(began) - handled)
	return aside, nil
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
func (ln *lane) handle(ctx context.Context, tx bun.Tx, ds []*delivery) (took time.Duration, err error) {
	ms := make([]*handler.Message, len(ds))
	for i, d := range ds {
		ms[i] = &d.Message
	}
	call, err := ln.c.Prepare(ms)
	if err != nil {
		return 0, err
	}
	took, err = call.Run(ctx, tx)
	ln.observeTime(took / time.Duration(len(ds)))
	return took, err
}

// writeMarkers turns the deliveries into SUCCESS rows: new ones, or those that are leased.
func (ln *lane) writeMarkers(ctx context.Context, tx bun.Tx, ds []*delivery) error {
	if !ds[0].direct() {
		leases := make([]store.Leased, len(ds))
		for i, d := range ds {
			leases[i] = *d.lease
		}
		return ln.l.regs.Log.Finish(ctx, tx, ln.l.host.Instance, leases)
	}
	rows := make([]store.Delivery, len(ds))
	for i, d := range ds {
		rows[i] = d.row(ln.c)
	}
	err := ln.l.regs.Log.MarkSuccess(ctx, tx, rows, pairsOf(ds))
	if dialect.Classify(err) == dialect.Duplicate {
		forget(ds) // a twin was faster: look up next time
		return &infraError{err: err}
	}
	return err
}

// mark writes the SUCCESS rows first, so that a concurrent twin stops before its handler, and then asks, once for the
// batch, whether each delivery may run. What its claim has seen is no answer: it may have changed since.
func (ln *lane) mark(ctx context.Context, tx bun.Tx, ds []*delivery) (map[*delivery]store.Answer, error) {
	aside := make(map[*delivery]store.Answer)
	if ds[0].direct() {
		if err := ln.findRecorded(ctx, tx, ds, aside); err != nil || len(aside) > 0 {
			return aside, err
		}
	}
	if err := ln.writeMarkers(ctx, tx, ds); err != nil {
		return nil, err
	}
	return ln.ask(ctx, tx, ds)
}

// ask returns the deliveries that may not run.
func (ln *lane) ask(ctx context.Context, tx bun.IDB, ds []*delivery) (map[*delivery]store.Answer, error) {
	aside := make(map[*delivery]store.Answer)
	if len(ds) == 0 {
		return aside, nil
	}
	asked := make([]store.Asked, len(ds))
	for i, d := range ds {
		asked[i] = d.asks()
	}
	gate := ln.gate()
	gate.Marked = true
	answers, err := ln.l.regs.Log.Ask(ctx, tx, gate, asked)
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

func pairsOf(ds []*delivery) []dialect.Pair {
	pairs := make([]dialect.Pair, len(ds))
	for i, d := range ds {
		pairs[i] = d.pair()
	}
	return pairs
}

// findRecorded sets aside what has a row already. Events that nobody ever claimed
// before can have none, and the unique key guards them all the same.
func (ln *lane) findRecorded(ctx context.Context, tx bun.IDB, ds []*delivery, aside map[*delivery]store.Answer) error {
	ids := make([]string, 0, len(ds))
	for _, d := range ds {
		if !d.fresh {
			ids = append(ids, d.Event.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	existing, err := ln.l.regs.Log.Existing(ctx, tx, ln.c.Key, ids)
	for _, d := range ds {
		if _, ok := existing[d.Event.ID]; ok {
			aside[d] = recorded
		}
	}
	return err
}

func forget(ds []*delivery) {
	for _, d := range ds {
		d.fresh = false
	}
}

// verify stores what the handlers recorded, and is the last look before COMMIT whether the
// transaction and its marks still exist, and whether the events are still leased: a process that
// was frozen finds here that others have gone on without it.
func (ln *lane) verify(ctx context.Context, tx bun.Tx, ds []*delivery) (aside map[*delivery]store.Answer, err error) {
	for _, d := range ds {
		if d.Record == (handler.Record{}) {
			continue
		}
		note := store.Note{EventID: d.Event.ID, IdempotencyKey: d.Record.Key, Result: d.Record.Result}
		if err := ln.l.regs.Log.Annotate(ctx, tx, ln.c.Key, []store.Note{note}); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	held, err := ln.l.regs.Log.Holds(ctx, tx, ln.c.Key, ds[0].Event.ID, ln.l.host.Instance, ds[0].pair())
	switch {
	case err != nil: // PostgreSQL refuses everything after a failed statement
		return nil, fmt.Errorf("the transaction cannot be used any more (an error of the database that the handler swallowed does this): %w", err)
	case !held.Marked:
		return nil, &infraError{err: errors.New("the transaction was ended behind the handler's back")}
	}
	ln.adjust(func(p *pace) { p.feel(time.Since(began), ln.limit) })
	switch {
	case !ds[0].direct(): // its lease is the mark
	case !held.Leased, slices.ContainsFunc(ds, func(d *delivery) bool { return held.Now >= d.held.until.Load() }):
		return ln.ask(ctx, tx, ds) // until a lease is out, nobody can have taken over the event
	}
	return aside, nil
}

// readBack decides an unknown COMMIT: whether it happened is in the consume log. One row does not tell: if the lease of
// its event has run out, another instance may have written it. If the COMMIT did not happen, running again is safe: the
// unique key stops it until a COMMIT still under way is over.
func (ln *lane) readBack(ctx context.Context, ds []*delivery, commitErr error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	for try := 1; ; try++ {
		there, err := ln.l.regs.Log.Marked(ctx, ln.l.regs.DB, ln.c.Key, eventIDs(ds))
		switch {
		case err == nil && there:
			return nil
		case err == nil:
			forget(ds)
			return &infraError{err: fmt.Errorf("commit: %w", commitErr)}
		case try == infraTries:
			forget(ds)
			return &infraError{err: fmt.Errorf("commit: %w; its outcome could not be read back: %w", commitErr, err)}
		}
		ln.pause(ctx, try)
	}
}

// pause waits a little, longer with every try, with jitter.
func (ln *lane) pause(ctx context.Context, try int) {
	select {
	case <-time.After(rand.N(time.Duration(try) * 20 * time.Millisecond)):
	case <-ctx.Done():
	}
}
