package remote

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/store"
)

// takeLeft leases deliveries of which the lease has run out: a program that has died had them in flight, and any of them may have killed
// it. So their runs are counted before they are handed out. Those of which no run was counted yet are handed out together. Of the
// others one runs at a time, with no counted run of the consumer beside it: then only a delivery that kills uses its attempts up.
//
// A run counts as one beside others for the length of a lease, however often that is renewed: a program that has run it for so long
// was not killed by it at once, and the others need not wait for a handler that takes hours.
func (r *Deliveries) takeLeft(ctx context.Context, g store.Gate, limit int) ([]store.Leased, error) {
	var started, back, over, putOff []store.Leased
	err := r.log.InTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		started, back, over, putOff = nil, nil, nil, nil
		highest, err := r.rows.LockCounted(ctx, tx, g.Consumer, r.cfg.Lease)
		if err != nil || highest > 1 {
			return err
		}
		ds, err := r.lockLeft(ctx, tx, g, limit, highest)
		if err != nil || len(ds) == 0 {
			return err
		}
		var open []store.Leased
		if open, putOff, err = claim.LeaseLocked(ctx, tx, r.log, g, r.cfg.Lease, ds); err != nil {
			return err
		}
		open, back = choose(open, limit)
		started, over = r.notUsedUp(open)
		return r.count(ctx, tx, started)
	})
	if err != nil {
		return nil, err
	}
	if _, err := claim.WakeOpen(ctx, r.db, r.log.Order, g, claim.PutOffLong(putOff)); err != nil {
		return nil, err
	}
	if err := r.putBack(ctx, g.Owner, back); err != nil {
		return nil, err
	}
	return started, r.endUsedUp(ctx, g.Owner, over)
}

// lockLeft locks what may be handed out now, where this is the highest number of the counted runs that are out.
func (r *roomsOf) lockLeft(ctx context.Context, tx bun.Tx, g store.Gate, limit, highest int) ([]store.Leased, error) {
	q := store.DueDeliveries{Consumer: g.Consumer, Status: store.Processing, Types: g.Types, Fresh: true, Limit: limit}
	ds, err := r.log.LockDue(ctx, tx, q)
	if err != nil || len(ds) > 0 || highest > 0 {
		return ds, err
	}
	q.Fresh, q.Limit = false, 1
	return r.log.LockDue(ctx, tx, q)
}

// startSuspects counts the runs of leased deliveries that a program that has died may have started, by the rule of takeLeft, and
// tells which of them may not run now.
func (r *Deliveries) startSuspects(ctx context.Context, g store.Gate, ds []store.Leased) (started, back []store.Leased, err error) {
	var over []store.Leased
	err = r.log.InTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		highest, err := r.rows.LockCounted(ctx, tx, g.Consumer, r.cfg.Lease)
		if err != nil {
			return err
		}
		started, back = mayRun(ds, highest)
		started, over = r.notUsedUp(started)
		return r.count(ctx, tx, started)
	})
	if err != nil {
		return nil, nil, err
	}
	return started, back, r.endUsedUp(ctx, g.Owner, over)
}

// mayRun says which suspects may run beside counted runs of which this is the highest number.
func mayRun(ds []store.Leased, highest int) (may, not []store.Leased) {
	for _, d := range ds {
		isFresh := d.Attempts == 1
		if highest > 1 || (!isFresh && highest > 0) {
			not = append(not, d)
			continue
		}
		may = append(may, d)
		highest = max(highest, d.Attempts)
	}
	return may, not
}

func (r *roomsOf) count(ctx context.Context, tx bun.Tx, ds []store.Leased) error {
	if len(ds) == 0 {
		return nil
	}
	return r.rows.NoteCounted(ctx, tx, ds...)
}

// notUsedUp tells deliveries that may be tried again from those that may not.
func (r *Deliveries) notUsedUp(ds []store.Leased) (alive, over []store.Leased) {
	for _, d := range ds {
		if d.Attempts > r.cfg.MaxAttempts {
			over = append(over, d)
		} else {
			alive = append(alive, d)
		}
	}
	return alive, over
}

func (r *Deliveries) endUsedUp(ctx context.Context, owner string, ds []store.Leased) error {
	for _, d := range ds {
		if _, err := r.end(ctx, owner, d, r.usedUp(), 0); err != nil {
			return err
		}
	}
	return nil
}
