package remote

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// Outcome is what a consumer says of a delivery.
type Outcome string

// What a consumer may say.
const (
	Success   Outcome = "SUCCESS"
	Failed    Outcome = "FAILED"    // it comes again
	Permanent Outcome = "PERMANENT" // it is DEAD at once
	Skipped   Outcome = "SKIPPED"   // it is closed without an effect
)

// Finish is the end of one delivery.
type Finish struct {
	Lease   Lease
	Outcome Outcome
	Result  string // JSON text, empty for none
	Error   string
	By      string // who says so, for the history
}

// Finish ends a delivery, and tells what it has become. Repeated, it answers the same; it returns [ErrLost] if the lease is lost, and
// [ErrUnknown] if there is no such delivery: then it has changed nothing.
func (r *Deliveries) Finish(ctx context.Context, f Finish) (store.Status, error) {
	row, found, err := r.rows.ByID(ctx, r.db, f.Lease.Row)
	switch {
	case err != nil:
		return "", err
	case !found:
		return "", ErrUnknown
	case row.Owner != f.Lease.Owner:
		return "", ErrLost
	case row.Version == f.Lease.Version+1 && row.Status != store.Processing:
		return row.Status, nil // the same call came before
	case row.Version != f.Lease.Version || row.Status != store.Processing:
		return "", ErrLost
	}
	if f.Outcome == Success {
		return store.Success, r.succeed(ctx, f, row.Leased)
	}
	row.Attempts = row.Run()
	return r.end(ctx, f.Lease.Owner, row.Leased, r.verdict(f, row.Attempts), row.LeasedFor(r.cfg.Lease))
}

// FinishAll ends deliveries that all succeeded without a result, by few statements. It returns false if some of the leases are lost:
// then nothing has changed.
func (r *Deliveries) FinishAll(ctx context.Context, fs []Finish) (done bool, err error) {
	byOwner := make(map[string][]dialect.Pair)
	ids := make([]int64, len(fs))
	for i, f := range fs {
		byOwner[f.Lease.Owner] = append(byOwner[f.Lease.Owner], f.Lease.pair())
		ids[i] = f.Lease.Row
	}
	err = r.inTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		for owner, leases := range byOwner {
			if err := r.rows.Succeed(ctx, tx, owner, leases, nil); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.Is(err, store.ErrLeaseLost) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	ended, err := r.rows.ByIDs(ctx, r.db, ids)
	if err != nil {
		r.logger.WarnContext(ctx, lateStatus, telemetry.Err, err)
		return true, nil
	}
	r.after(ctx, ended...)
	return true, nil
}

func (r *Deliveries) succeed(ctx context.Context, f Finish, d store.Leased) error {
	var results map[int64]string
	if f.Result != "" {
		results = map[int64]string{d.ID: f.Result}
	}
	err := r.inTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		return r.rows.Succeed(ctx, tx, f.Lease.Owner, []dialect.Pair{f.Lease.pair()}, results)
	})
	if err != nil {
		return asLost(err)
	}
	r.after(ctx, d.Delivery)
	return nil
}

// verdict is what an outcome that is no success makes of its delivery.
func (r *Deliveries) verdict(f Finish, attempt int) store.Verdict {
	v := store.Verdict{Status: store.Failed, Counts: true, Error: f.Error}
	switch {
	case f.Outcome == Skipped:
		v.Status = store.Skipped
	case f.Outcome == Permanent || attempt >= r.cfg.MaxAttempts:
		v.Status = store.Dead
	default:
		v.Delay = r.cfg.Backoff(attempt)
	}
	return v
}

// end ends a lease with a verdict.
func (r *Deliveries) end(ctx context.Context, owner string, d store.Leased, v store.Verdict, took time.Duration) (store.Status, error) {
	err := r.inTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		return r.rows.Fail(ctx, tx, owner, d, v, store.Attempt{Instance: owner, Duration: took})
	})
	if err != nil {
		return "", asLost(err)
	}
	r.after(ctx, d.Delivery)
	return v.Status, nil
}

func asLost(err error) error {
	if errors.Is(err, store.ErrLeaseLost) {
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	return err
}

// afterTimeout is how long what follows the end of deliveries may take, all together.
const afterTimeout = 10 * time.Second

// after wakes what waits behind deliveries that have ended, and brings the status of their events up to date, also when the caller has
// gone. What fails here the sweep of a publisher repairs within a minute.
func (r *Deliveries) after(ctx context.Context, ended ...store.Delivery) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterTimeout)
	defer cancel()
	byConsumer, events := make(map[string][]store.Delivery), make([]string, len(ended))
	for i, d := range ended {
		byConsumer[d.Consumer] = append(byConsumer[d.Consumer], d)
		events[i] = d.EventID
	}
	for consumer, ds := range byConsumer {
		if _, err := claim.WakeNext(ctx, r.db, r.log.Order, []string{consumer}, 1, ds...); err != nil {
			r.logger.WarnContext(ctx, "the next deliveries of an aggregate could not be woken; they are due within a minute",
				telemetry.Consumer, consumer, telemetry.Err, err)
		}
	}
	changes, err := r.settler.RollUp(ctx, events)
	if err != nil {
		r.logger.WarnContext(ctx, lateStatus, telemetry.Err, err)
	}
	r.meter.Count(ctx, changes...)
}

// lateStatus is what the log says where a delivery has ended, and its event still has the status of before.
const lateStatus = "the status of events could not be written; the sweep of a publisher does it within a minute"

// Heartbeat renews a lease, and tells when it ends now. It returns [ErrLost] if it is lost.
func (r *Deliveries) Heartbeat(ctx context.Context, l Lease) (time.Time, error) {
	now, err := r.events.Now(ctx, r.db)
	if err != nil {
		return time.Time{}, err
	}
	if err := r.rows.Prolong(ctx, r.db, l.Owner, l.pair(), r.cfg.Lease); err != nil {
		return time.Time{}, asLost(err)
	}
	return r.until(now), nil
}
