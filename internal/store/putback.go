package store

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// wait is how deliveries wait again.
type wait struct {
	as      Status
	delay   time.Duration
	suspect bool // still
	left    bool // for an instance that knows the schema version, however long that takes
}

// Waits is what the delivery becomes if it is not tried.
func (d Leased) Waits() Status {
	if d.Before == Pending || (d.Before == Processing && d.Attempts == 1) {
		return Pending
	}
	return Failed
}

// PutBack ends leases without a result and without counting their runs, whether those have started or not: the
// deliveries wait as before and are due after delay. It reports [ErrLeaseLost] if some have no lease to end; the
// others may have been put back.
func (l Leases) PutBack(ctx context.Context, owner string, delay time.Duration, ds ...Leased) error {
	return l.putBack(ctx, l.db, owner, ds, func(d Leased) wait { return wait{as: d.Waits(), delay: delay, suspect: d.Suspect} })
}

// PutOff is PutBack in a transaction, each delivery for a delay of its own.
func (l Leases) PutOff(ctx context.Context, tx bun.Tx, owner string, delay func(Leased) time.Duration, ds ...Leased) error {
	return l.putBack(ctx, tx, owner, ds, func(d Leased) wait { return wait{as: d.Waits(), delay: delay(d), suspect: d.Suspect} })
}

// Postpone makes deliveries that tx has locked, and nobody has leased, due after a delay, by the primary key.
func (l Leases) Postpone(ctx context.Context, tx bun.Tx, delay func(Leased) time.Duration, ds ...Leased) error {
	byDelay := make(map[time.Duration][]int64)
	for _, d := range ds {
		byDelay[delay(d)] = append(byDelay[delay(d)], d.ID)
	}
	for delay, ids := range byDelay {
		if err := l.prolong(ctx, tx, ids, delay); err != nil {
			return fmt.Errorf("consume log: put deliveries off: %w", err)
		}
	}
	return nil
}

// Leave ends leases of deliveries whose events have a schema version that is not known here, without counting a run: they
// are PENDING, and wait for an instance that knows it. It reports [ErrLeaseLost] as PutBack does.
func (l Leases) Leave(ctx context.Context, owner string, ds ...Leased) error {
	return l.putBack(ctx, l.db, owner, ds, func(d Leased) wait { return wait{as: Pending, suspect: d.Suspect, left: true} })
}

func (l Leases) putBack(ctx context.Context, idb bun.IDB, owner string, ds []Leased, as func(Leased) wait) error {
	waits := make(map[wait][]dialect.Pair)
	for _, d := range ds {
		waits[as(d)] = append(waits[as(d)], d.pair())
	}
	for how, pairs := range waits {
		if err := l.endLeases(ctx, idb, owner, how, pairs); err != nil {
			return err
		}
	}
	return nil
}

// endLeases ends leases so that their deliveries wait again.
func (l Leases) endLeases(ctx context.Context, idb bun.IDB, owner string, how wait, pairs []dialect.Pair) error {
	due, args := l.d.After, []any{string(how.as), startedIf(how.suspect), dialect.Micro(how.delay), owner}
	if how.left {
		due, args = l.d.Never, []any{string(how.as), startedIf(how.suspect), owner}
	}
	res, err := idb.ExecContext(ctx, l.d.UpdateIDs(deliveryTable, pairs,
		"status = ?, attempts = attempts - "+whetherCounted+", started = ?, next_retry_at = "+due+ended+l.d.Now, leasedBy), args...)
	if err != nil {
		return fmt.Errorf("consume log: put deliveries back: %w", err)
	}
	return heldAll(res, len(pairs))
}
