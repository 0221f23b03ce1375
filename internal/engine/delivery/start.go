package delivery

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/store"
)

// suspectAgain is after what time at least to try again to run a suspect delivery, while others must not run beside it.
const suspectAgain = 100 * time.Millisecond

// announce notes in the consume log that the deliveries of a batch are about to run, so that a successor of this process
// knows what it may have started. It returns those that may run.
//
// New events have no row that could tell. When the lease of one has run out, the instance that had it may have started any of its
// deliveries that has no row: these are suspects like those whose rows say so.
func (r *runner) announce(ctx context.Context, ds []*delivery) []*delivery {
	if len(ds) == 0 || ds[0].isDirect() {
		return ds
	}
	err := r.noteStart(ctx, func(ctx context.Context) error {
		return r.l.regs.Log.Start(ctx, r.l.cfg.Instance, leasesOf(ds))
	})
	if err == nil {
		return ds
	}
	for _, d := range ds {
		r.out.postpone(ctx, d, err)
	}
	return nil
}

// runSuspects runs deliveries that a process may have died of, one after the other, each counted before.
func (r *runner) runSuspects(ctx context.Context, ds []*delivery) {
	for len(ds) > 0 {
		if r.stops(ctx, ds) {
			return
		}
		first := ds[:1]
		r.runSuspect(ctx, first[0])
		ds = r.passable(ctx, ds[1:], first)
	}
}

func (r *runner) runSuspect(ctx context.Context, d *delivery) {
	over, ok := r.l.takeSuspect(d.Attempt > 1 || r.c.MaxAttempts(d.Event) == 1)
	if !ok {
		r.leaveSuspect(ctx, d)
		return
	}
	defer over()
	var err error
	if d.isDirect() {
		err = r.beginSuspect(ctx, d)
	} else {
		err = r.noteStart(ctx, func(ctx context.Context) error { return r.l.regs.Log.StartCounted(ctx, r.l.cfg.Instance, *d.lease) })
	}
	switch {
	case errors.Is(err, store.ErrLeaseLost):
		r.out.setAside(ctx, d, store.Lost)
	case err != nil:
		r.out.postpone(ctx, d, err)
	case d.isDirect(): // it has a row already
		r.out.setAside(ctx, d, recorded)
	case r.ln.c.IsExternal(d.Event.Type):
		r.deliverExternal(ctx, []*delivery{d})
	default:
		r.deliver(ctx, []*delivery{d})
	}
}

// leaveSuspect leaves a delivery for later, because others must not run beside it now.
func (r *runner) leaveSuspect(ctx context.Context, d *delivery) {
	again := suspectAgain + rand.N(suspectAgain)
	if d.isDirect() {
		r.out.deferDirect(ctx, again, d)
		return
	}
	r.out.putBack(ctx, d, again)
}

// beginSuspect gives a direct delivery a row that says that its run is counted, and a lease of that. The delivery stays
// direct if it has a row already.
func (r *runner) beginSuspect(ctx context.Context, d *delivery) error {
	aside := make(map[*delivery]store.Answer)
	limited, cancel := context.WithTimeout(ctx, r.l.cfg.Lease) // a connection may be lost without a word
	defer cancel()
	if err := r.marks.findRecorded(limited, r.l.regs.DB, []*delivery{d}, aside); err != nil || len(aside) > 0 {
		return err
	}
	return r.begin(limited, []*delivery{d})
}

// takeSuspect reports whether a suspect delivery may run now. If it kills the process, all that are counted and have no
// answer yet lose an attempt. So one that has lost one before runs when no other of them does: in a crash loop only
// the delivery that kills the process loses its last attempt. A caller does not wait here, because a handler may take long.
func (l *Lanes) takeSuspect(again bool) (over func(), ok bool) {
	if again {
		return l.suspects.Unlock, l.suspects.TryLock()
	}
	return l.suspects.RUnlock, l.suspects.TryRLock()
}

// begin gives direct deliveries rows in the consume log that say that they are about to run, and leases of these rows. Those that
// had a row already stay direct.
func (r *runner) begin(ctx context.Context, ds []*delivery) error {
	rows := rowsOf(ds, r.c)
	var leases map[string]store.Leased
	err := r.noteStart(ctx, func(ctx context.Context) (err error) {
		if ds[0].isSuspect() {
			leases, err = r.l.regs.Log.BeginCounted(ctx, rows[0], r.l.cfg.Instance, r.l.cfg.Lease)
		} else {
			leases, err = r.l.regs.Log.Begin(ctx, rows, r.l.cfg.Instance, r.l.cfg.Lease)
		}
		return err
	})
	if err != nil {
		return err
	}
	r.ln.mu.Lock()
	defer r.ln.mu.Unlock()
	for _, d := range ds {
		if lease, ok := leases[d.Event.ID]; ok {
			d.lease, d.own = &lease, new(claim.Lease)
			r.ln.inFlight[d] = struct{}{}
		}
	}
	return nil
}

// noteStart writes what has to be stored before handlers run, and again after a deadlock.
func (r *runner) noteStart(ctx context.Context, write func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.l.cfg.Lease) // a connection may be lost without a word
	defer cancel()
	for try := 1; ; try++ {
		err := r.l.cfg.Budget.Write(ctx, func() error { return write(ctx) })
		if dialect.Classify(err) != dialect.TxRetry || try == infraTries || ctx.Err() != nil {
			return err
		}
		pause(ctx, try)
	}
}
