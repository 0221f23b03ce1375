package delivery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/flow"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
)

// marks writes and asks what must stand in the transaction of a batch: the SUCCESS rows, whether each delivery may run, and whether
// both still hold before COMMIT.
type marks struct {
	l  *Lanes
	c  *handler.Consumer
	ln *lane
}

// writeMarkers turns the deliveries into SUCCESS rows: new ones, or those that are leased.
func (m *marks) writeMarkers(ctx context.Context, tx bun.Tx, ds []*delivery) error {
	if !ds[0].direct() {
		leases := make([]store.Leased, len(ds))
		for i, d := range ds {
			leases[i] = *d.lease
		}
		return m.l.regs.Log.Finish(ctx, tx, m.l.cfg.Instance, leases)
	}
	rows := make([]store.Delivery, len(ds))
	for i, d := range ds {
		rows[i] = d.row(m.c)
	}
	err := m.l.regs.Log.MarkSuccess(ctx, tx, rows, pairsOf(ds))
	if dialect.Classify(err) == dialect.Duplicate {
		forget(ds) // a twin was faster: look up next time
		return &infraError{err: err}
	}
	return err
}

// mark writes the SUCCESS rows first, so that a concurrent twin stops before its handler, and then asks, once for the
// batch, whether each delivery may run. What its claim has seen is no answer: it may have changed since.
func (m *marks) mark(ctx context.Context, tx bun.Tx, ds []*delivery) (map[*delivery]store.Answer, error) {
	aside := make(map[*delivery]store.Answer)
	if ds[0].direct() {
		if err := m.findRecorded(ctx, tx, ds, aside); err != nil || len(aside) > 0 {
			return aside, err
		}
	}
	if err := m.writeMarkers(ctx, tx, ds); err != nil {
		return nil, err
	}
	return m.ask(ctx, tx, ds)
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
	gate := gateOf(m.c, m.l.cfg.Instance)
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

func pairsOf(ds []*delivery) []dialect.Pair {
	pairs := make([]dialect.Pair, len(ds))
	for i, d := range ds {
		pairs[i] = d.pair()
	}
	return pairs
}

// findRecorded sets aside what has a row already. Events that nobody ever claimed
// before can have none, and the unique key guards them all the same.
func (m *marks) findRecorded(ctx context.Context, tx bun.IDB, ds []*delivery, aside map[*delivery]store.Answer) error {
	ids := make([]string, 0, len(ds))
	for _, d := range ds {
		if !d.fresh {
			ids = append(ids, d.Event.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	existing, err := m.l.regs.Log.Existing(ctx, tx, m.c.Key, ids)
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
func (m *marks) verify(ctx context.Context, tx bun.Tx, ds []*delivery) (aside map[*delivery]store.Answer, err error) {
	for _, d := range ds {
		if d.Record == (handler.Record{}) {
			continue
		}
		note := store.Note{EventID: d.Event.ID, IdempotencyKey: d.Record.Key, Result: d.Record.Result}
		if err := m.l.regs.Log.Annotate(ctx, tx, m.c.Key, []store.Note{note}); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	held, err := m.l.regs.Log.Holds(ctx, tx, m.c.Key, ds[0].Event.ID, m.l.cfg.Instance, ds[0].pair())
	switch {
	case err != nil: // PostgreSQL refuses everything after a failed statement
		return nil, fmt.Errorf("the transaction cannot be used any more (an error of the database that the handler swallowed does this): %w", err)
	case !held.Marked:
		return nil, &infraError{err: errors.New("the transaction was ended behind the handler's back")}
	}
	m.ln.adjust(func(s *flow.Speed) { s.Pressure.Observe(time.Since(began), s.Settings.Workers) })
	switch {
	case !ds[0].direct(): // its lease is the mark
	case !held.Leased, slices.ContainsFunc(ds, func(d *delivery) bool { return d.held.IsOver(held.Now) }):
		return m.ask(ctx, tx, ds) // until a lease is out, nobody can have taken over the event
	}
	return aside, nil
}

// readBack decides an unknown COMMIT: whether it happened is in the consume log. One row does not tell: if the lease of
// its event has run out, another instance may have written it. If the COMMIT did not happen, running again is safe: the
// unique key stops it until a COMMIT still under way is over.
func (m *marks) readBack(ctx context.Context, ds []*delivery, commitErr error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	for try := 1; ; try++ {
		there, err := m.l.regs.Log.Marked(ctx, m.l.regs.DB, m.c.Key, eventIDs(ds))
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
		pause(ctx, try)
	}
}
