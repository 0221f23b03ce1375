package settle

import (
	"context"
	"fmt"
	"slices"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/engine/budget"
	"github.com/bluecone-go/bluecone/internal/store"
)

// sweepPage is how many events a sweep reads at once.
const sweepPage = 200

// Sweep repairs what a crash between two transactions leaves: FAILED events none of whose deliveries waits, and rows that wait
// for a time that they do not have. It does so in steps, so that others may write between two of them. One goroutine uses it.
type Sweep struct {
	s       *Settler
	ids     []string // of events to be rolled up
	isLast  bool     // they are of the last page
	isDated bool
}

// NewSweep returns a sweep of the whole database.
func (s *Settler) NewSweep() *Sweep { return &Sweep{s: s} }

// Run does all steps, each when it may write: beside lanes that write without a break it would wait for seconds on SQLite, and
// all claims with it.
func (w *Sweep) Run(ctx context.Context, meter *Meter, transactions *budget.Transactions) error {
	for {
		more, err := w.Next(ctx)
		if err == nil && more {
			err = transactions.Write(ctx, func() error {
				changes, err := w.Step(ctx)
				meter.Count(ctx, changes...)
				return err
			})
		}
		if err != nil {
			return fmt.Errorf("sweep: %w", err)
		}
		if !more {
			return nil
		}
	}
}

// Next looks, without any lock, for what the next step is about, and reports whether there is one.
func (w *Sweep) Next(ctx context.Context) (bool, error) {
	if len(w.ids) == 0 && !w.isLast {
		ids, err := w.s.events.FailedButNotWaiting(ctx, w.s.db, sweepPage)
		if err != nil {
			return false, err
		}
		w.ids, w.isLast = ids, len(ids) < sweepPage
	}
	return len(w.ids) > 0 || !w.isDated, nil
}

// Step does the next step, and answers which events have got a new status.
func (w *Sweep) Step(ctx context.Context) ([]Change, error) {
	if len(w.ids) > 0 {
		n := min(len(w.ids), RollUpBatch)
		changes, err := w.s.RollUp(ctx, w.ids[:n])
		w.ids = w.ids[n:]
		return changes, err
	}
	w.isDated = true
	return nil, w.s.date(ctx)
}

// date makes rows due that wait for a time that they do not have.
func (s *Settler) date(ctx context.Context) error {
	consumers, err := s.queues.Timeless(ctx, s.db)
	if err == nil {
		err = s.inTx(ctx, s.events.DateEvents)
	}
	for chunk := range slices.Chunk(consumers, store.MostDated) {
		if err == nil {
			err = s.inTx(ctx, func(ctx context.Context, tx bun.Tx) error { return s.events.DateDeliveries(ctx, tx, chunk) })
		}
	}
	return err
}
