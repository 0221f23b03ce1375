package claim

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
)

// LogQuery says whose waiting deliveries to lease.
type LogQuery struct {
	Gate   store.Gate    // consumer, order and owner
	Types  []string      // the event types that can be run here
	Lease  time.Duration // how long the lease lasts unless it is renewed
	Limits Limits        // at most so many
	DueFor time.Duration // only what has been due for so long
	Left   []int64       // and of those that were left to others these, by the ids of their rows
	// OneEach says that at most one of each aggregate is wanted: what is behind it is put off until its end wakes it.
	OneEach bool
}

// Limits is how many deliveries to lease, by the state they wait in: a backlog of one must not starve another.
type Limits struct{ Failed, Pending, Processing int }

// Leased is what a claim from the consume log has leased.
type Leased struct {
	Deliveries []store.Leased // in outbox order
	PutOff     []store.Leased // because of what is before them
	Found      Limits         // how many were due
	Woken      int            // of those that it has put off, because what was in their way has ended meanwhile
}

// FromLog leases due deliveries of one consumer, of the types it handles here. It counts no attempt: a delivery that is
// leased has not started. Those that an earlier event of their aggregate still blocks are put off instead.
// An error with deliveries means that it is unknown whether they are leased: [store.Leases.Lost] tells.
func FromLog(ctx context.Context, db *bun.DB, log store.Log, q LogQuery) (r Leased, err error) {
	err = log.InTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		r = Leased{}
		candidates, found, err := lockDue(ctx, tx, log, q)
		if err != nil || len(candidates) == 0 {
			return err
		}
		r.Found = found
		if q.OneEach {
			if candidates, err = keepFirsts(ctx, tx, log, candidates); err != nil {
				return err
			}
		}
		r.Deliveries, r.PutOff, err = LeaseLocked(ctx, tx, log, q.Gate, q.Lease, candidates)
		return err
	})
	if err == nil {
		r.Woken, err = WakeOpen(ctx, db, log.Order, q.Gate, PutOffLong(r.PutOff))
	}
	if err != nil {
		return r, fmt.Errorf("consume log: claim deliveries of %s: %w", q.Gate.Consumer, err)
	}
	return r, nil
}

// LeaseLocked leases deliveries that tx has locked, and tells which of them may run, in outbox order. The others it puts off:
// [WakeOpen] has to be asked about the [PutOffLong] of them after the COMMIT.
func LeaseLocked(ctx context.Context, tx bun.Tx, log store.Log, g store.Gate, lease time.Duration, ds []store.Leased,
) (open, putOff []store.Leased, err error) {
	if err := log.RecordUnanswered(ctx, tx, ds); err != nil {
		return nil, nil, err
	}
	if err := log.LeaseLocked(ctx, tx, g.Owner, lease, ds); err != nil {
		return nil, nil, err
	}
	return keepOpen(ctx, tx, log, g, ds)
}

// keepFirsts keeps, of deliveries that are locked, the first of each aggregate. What is PENDING behind it is not leased: it is put off
// until the end of what is before it wakes it.
func keepFirsts(ctx context.Context, tx bun.Tx, log store.Log, ds []store.Leased) ([]store.Leased, error) {
	slices.SortFunc(ds, func(a, b store.Leased) int { return cmp.Compare(a.OutboxID, b.OutboxID) })
	seen := make(map[store.Aggregate]bool, len(ds))
	var firsts, behind []store.Leased
	for _, d := range ds {
		if seen[d.Aggregate()] && d.Before == store.Pending {
			behind = append(behind, d)
			continue
		}
		seen[d.Aggregate()] = true
		firsts = append(firsts, d)
	}
	return firsts, log.Postpone(ctx, tx, untilNextLook, behind...)
}

// lockDue locks the candidates of a claim, one state after the other.
func lockDue(ctx context.Context, tx bun.Tx, log store.Log, q LogQuery) (all []store.Leased, found Limits, err error) {
	for _, of := range []struct {
		status store.Status
		limit  int
		found  *int
	}{
		{store.Failed, q.Limits.Failed, &found.Failed},
		{store.Pending, q.Limits.Pending, &found.Pending},
		{store.Processing, q.Limits.Processing, &found.Processing},
	} {
		if of.limit <= 0 {
			continue
		}
		ds, err := log.LockDue(ctx, tx, store.DueDeliveries{
			Consumer: q.Gate.Consumer, Status: of.status, Types: q.Types, For: q.DueFor, Limit: of.limit,
		})
		if err != nil {
			return nil, Limits{}, err
		}
		*of.found = len(ds)
		all = append(all, ds...)
	}
	if len(q.Left) == 0 {
		return all, found, nil
	}
	left, err := log.LockLeft(ctx, tx, q.Gate.Consumer, q.Left)
	return append(all, left...), found, err
}

// keepOpen keeps what may run, in outbox order, and puts off what is blocked.
func keepOpen(ctx context.Context, tx bun.Tx, log store.Log, gate store.Gate, ds []store.Leased) (open, putOff []store.Leased, err error) {
	gate.TrustsOwner = true
	open, putOff, err = divide(ctx, tx, log.Order, gate, ds)
	if err != nil {
		return nil, nil, err
	}
	if err := log.PutOff(ctx, tx, gate.Owner, untilNextLook, putOff...); err != nil {
		return nil, nil, err
	}
	slices.SortStableFunc(open, func(a, b store.Leased) int { return cmp.Compare(a.OutboxID, b.OutboxID) })
	return open, putOff, nil
}

// PutOffLong are those of the deliveries that a claim has put off which do not fall due by themselves in a moment.
func PutOffLong(putOff []store.Leased) (long []store.Leased) {
	for _, d := range putOff {
		if d.Waits() == store.Pending && untilNextLook(d) > store.SoonDue {
			long = append(long, d)
		}
	}
	return long
}

// divide asks the consume log which of the deliveries may run. One whose event is gone may: the lane ends it.
func divide(ctx context.Context, idb bun.IDB, order store.Order, g store.Gate, ds []store.Leased,
) (open, blocked []store.Leased, err error) {
	asked := make([]store.Asked, len(ds))
	for i, d := range ds {
		asked[i] = store.Asked{Event: dialect.Pair{ID: d.OutboxID}, Aggregate: d.Aggregate()}
	}
	answers, err := order.Ask(ctx, idb, g, asked)
	if err != nil {
		return nil, nil, err
	}
	for _, d := range ds {
		if a := answers[d.OutboxID]; a == store.MayRun || a == store.Gone {
			open = append(open, d)
		} else {
			blocked = append(blocked, d)
		}
	}
	return open, blocked, nil
}

// untilNextLook is when to look again at a delivery that somebody will wake: half its age, in powers of
// two seconds, so that many are put off together.
func untilNextLook(d store.Leased) time.Duration {
	delay := time.Second
	for delay < time.Minute && 4*delay <= d.Age {
		delay *= 2
	}
	return delay
}

// WakeOpen asks again, after the claim, about what it has put off for long, and wakes what may run. What was in the way may
// have ended between the question and the COMMIT: the instance that ended it has not seen that a delivery behind it is put off.
func WakeOpen(ctx context.Context, idb bun.IDB, order store.Order, g store.Gate, putOff []store.Leased) (woken int, err error) {
	open, _, err := divide(ctx, idb, order, g, putOff)
	if err != nil || len(open) == 0 {
		return 0, err
	}
	ids := make([]int64, len(open))
	for i, d := range open {
		ids[i] = d.ID
	}
	return len(ids), order.WakeUp(ctx, idb, ids)
}

// mostForgotten limits how many deliveries of a consumer are looked at, those first that are put off for longest.
const mostForgotten = 10_000

// WakeForgotten makes due what is put off although nothing is before it in its aggregate: a process may have died between the
// COMMIT of a delivery and the wake of the next. It tells how many it has woken.
func WakeForgotten(ctx context.Context, db *bun.DB, log store.Log, g store.Gate) (woken int, err error) {
	putOff, err := log.LongestPutOff(ctx, g.Consumer, mostForgotten)
	for chunk := range slices.Chunk(putOff, dialect.MostIDs) {
		var n int
		if n, err = WakeOpen(ctx, db, log.Order, g, chunk); err != nil {
			break
		}
		woken += n
	}
	if err != nil {
		return woken, fmt.Errorf("consume log: wake deliveries of %s: %w", g.Consumer, err)
	}
	return woken, nil
}
