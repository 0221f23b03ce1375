package bus

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/dialect"
)

// suspectAgain is after what time at least to try again to run a suspect delivery, while others must not run beside it.
const suspectAgain = 100 * time.Millisecond

// runsAlone reports whether the delivery shares no batch with others.
func (ln *lane) runsAlone(d *delivery) bool { return ln.external(d) || d.suspect() }

// announce notes in the consume log that the deliveries of a batch are about to run, so that a successor of this process
// knows what it may have started. It returns those that may run, and what to call when they have run.
//
// New events have no row that could tell. When the lease of one has run out, it gets a row here, before it runs again.
func (ln *lane) announce(ctx context.Context, ds []*delivery) (ready []*delivery, over func()) {
	over = func() {}
	if len(ds) == 0 {
		return nil, over
	}
	var err error
	switch first := ds[0]; {
	case first.suspect():
		return ln.announceSuspect(ctx, first)
	case !first.direct():
		err = ln.noteStart(ctx, func(ctx context.Context) error {
			leases := make([]consumelog.Leased, len(ds))
			for i, d := range ds {
				leases[i] = *d.lease
			}
			return ln.l.bus.log.Start(ctx, ln.l.host.Instance, leases)
		})
	case first.expired && !ln.external(first):
		return ln.announceExpired(ctx, ds), over
	}
	if err != nil {
		for _, d := range ds {
			ln.postpone(ctx, d, err)
		}
		return nil, over
	}
	return ds, over
}

// announceSuspect lets a delivery run that a process may have died of: alone in its batch, and counted before.
func (ln *lane) announceSuspect(ctx context.Context, d *delivery) (ready []*delivery, over func()) {
	over, ok := ln.l.takeSuspect(d.attempt > 1 || ln.c.maxAttempts(d.env) == 1)
	if !ok {
		ln.putBack(ctx, d, suspectAgain+rand.N(suspectAgain))
		return nil, func() {}
	}
	err := ln.noteStart(ctx, func(ctx context.Context) error { return ln.l.bus.log.StartCounted(ctx, ln.l.host.Instance, *d.lease) })
	switch {
	case err == nil:
		return []*delivery{d}, over
	case errors.Is(err, consumelog.ErrLeaseLost):
		ln.setAside(ctx, d, consumelog.Lost)
	default:
		ln.postpone(ctx, d, err)
	}
	over()
	return nil, func() {}
}

// takeSuspect reports whether a suspect delivery may run now. If it kills the process, all that are counted and have no
// answer yet lose an attempt. So one that has lost one before runs when no other of them does: in a crash loop nobody
// loses the last attempt but who kills. Nobody waits here, for a handler may take long.
func (l *Lanes) takeSuspect(again bool) (over func(), ok bool) {
	if again {
		return l.suspects.Unlock, l.suspects.TryLock()
	}
	return l.suspects.RUnlock, l.suspects.TryRLock()
}

// announceExpired makes leased deliveries of direct ones.
func (ln *lane) announceExpired(ctx context.Context, ds []*delivery) []*delivery {
	limited, cancel := context.WithTimeout(ctx, ln.l.host.Lease) // a connection may be lost without a word
	defer cancel()
	aside := make(map[*delivery]consumelog.Answer)
	err := ln.findRecorded(limited, ln.l.bus.db, ds, aside)
	if err == nil {
		if ds = ln.sortOut(ctx, ds, aside); len(ds) == 0 {
			return nil
		}
		var begun []*delivery
		if begun, err = ln.begin(limited, ds); err == nil {
			for _, d := range ds {
				if d.direct() { // somebody was faster
					ln.setAside(ctx, d, recorded)
				}
			}
			return begun
		}
	}
	for _, d := range ds {
		ln.postpone(ctx, d, err)
	}
	return nil
}

// begin gives direct deliveries rows in the consume log that say that they are about to run, and leases of these rows. It
// returns the deliveries that have got one: the others had a row already, and stay direct.
func (ln *lane) begin(ctx context.Context, ds []*delivery) ([]*delivery, error) {
	rows := make([]consumelog.Delivery, len(ds))
	for i, d := range ds {
		rows[i] = d.row(ln.c)
	}
	var leases map[string]consumelog.Leased
	err := ln.noteStart(ctx, func(ctx context.Context) (err error) {
		leases, err = ln.l.bus.log.Begin(ctx, rows, ln.l.host.Instance, ln.l.host.Lease)
		return err
	})
	if err != nil {
		return nil, err
	}
	ln.mu.Lock()
	defer ln.mu.Unlock()
	var begun []*delivery
	for _, d := range ds {
		if lease, ok := leases[d.env.ID]; ok {
			d.lease, d.own = &lease, new(Lease)
			ln.inHand[d] = struct{}{}
			begun = append(begun, d)
		}
	}
	return begun, nil
}

// noteStart writes what has to be stored before handlers run, and again after a deadlock.
func (ln *lane) noteStart(ctx context.Context, write func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, ln.l.host.Lease) // a connection may be lost without a word
	defer cancel()
	for try := 1; ; try++ {
		err := ln.l.Write(ctx, func() error { return write(ctx) })
		if dialect.Classify(err) != dialect.TxRetry || try == infraTries || ctx.Err() != nil {
			return err
		}
		ln.pause(ctx, try)
	}
}
