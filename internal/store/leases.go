package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/text"
)

// ErrLeaseLost means that another instance has taken the delivery over: whatever its former holder wants to write about it no
// longer counts.
var ErrLeaseLost = errors.New("the lease of the delivery has passed to somebody else")

// Leases are the deliveries that wait in the log: instances claim them, run them, and end their leases with a result or
// without one. Rows that are leased are found by their primary key.
type Leases struct {
	db       *bun.DB
	d        dialect.Dialect
	stmts    *prepared.Statements
	left     Left
	attempts Attempts
}

// Leased is a waiting delivery that an instance has claimed. Its Attempts are the number of the run to come.
type Leased struct {
	Delivery
	ID      int64  // id of the consume log row
	Version int64  // lock version of this lease
	Before  Status // what the row was before the claim
	Age     time.Duration
	// SinceFirstRun is how long ago the delivery ran for the first time, 0 if it never did.
	SinceFirstRun time.Duration

	counted bool // that run is counted
}

// What the column started of a leased delivery says; once the delivery has an outcome, or waits without suspicion, it
// is notStarted.
const (
	notStarted = iota
	started    // the handler may have started; the run is counted by its outcome
	counted    // the same, and the run is counted already
)

// startedIf is the column started of a delivery that waits.
func startedIf(suspect bool) int {
	if suspect {
		return started
	}
	return notStarted
}

// whetherCounted is 1 for a run that is counted already, and else 0. MySQL assigns from left to right: attempts has to
// be set before started.
const whetherCounted = "CASE WHEN started = 2 THEN 1 ELSE 0 END"

// leasedBy is the condition that an owner, its argument, has leased a delivery.
const leasedBy = "e.status = 'PROCESSING' AND e.locked_by = ?"

// What every end of a lease sets; the time follows. The owner of a lease in another program stays in the row: see [Remote].
const (
	ended       = ", locked_by = NULL" + nextVersion
	nextVersion = ", lock_version = lock_version + 1, updated_at = "
)

func (d Leased) pair() dialect.Pair { return dialect.Pair{ID: d.ID, Version: d.Version} }

func pairsOf(ds []Leased) []dialect.Pair {
	pairs := make([]dialect.Pair, len(ds))
	for i, d := range ds {
		pairs[i] = d.pair()
	}
	return pairs
}

// sameVersion returns the ids of leases that all have one version, or else nil.
func sameVersion(leases []dialect.Pair) (ids []int64, version int64) {
	for _, p := range leases {
		if p.Version != leases[0].Version {
			return nil, 0
		}
		ids = append(ids, p.ID)
	}
	return ids, leases[0].Version
}

// heldAll reports [ErrLeaseLost] unless a statement has changed as many deliveries as were leased.
func heldAll(res sql.Result, want int) error {
	if n, err := res.RowsAffected(); err != nil || n != int64(want) {
		return errors.Join(err, fmt.Errorf("consume log: %d of %d deliveries: %w", int64(want)-n, want, ErrLeaseLost))
	}
	return nil
}

// Finish marks leased deliveries SUCCESS in the transaction of their handlers, before
// those run. It locks the rows, and reports [ErrLeaseLost] unless all are still held.
func (l Leases) Finish(ctx context.Context, idb bun.IDB, owner string, ds []Leased) error {
	set := "status = 'SUCCESS', attempts = attempts + 1 - " + whetherCounted + ", started = 0, next_retry_at = NULL, locked_by = NULL, " +
		"error_message = NULL, lock_version = lock_version + 1, consumed_at = " + l.d.Now + ", updated_at = " + l.d.Now
	pairs := pairsOf(ds)
	exec, query, args := idb.ExecContext, l.d.UpdateIDs(deliveryTable, pairs, set, leasedBy+l.d.PlainPlans), []any{owner}
	if ids, version := sameVersion(pairs); ids != nil {
		exec, args = l.stmts.On(idb).ExecContext, []any{ids, version, owner}
		query = "UPDATE " + l.d.Keyed(deliveryTable) + " SET " + set + " WHERE " + dialect.Under + " AND " + leasedBy + l.d.PlainPlans
	}
	res, err := exec(ctx, query, args...)
	if err != nil {
		return fmt.Errorf("consume log: mark deliveries: %w", err)
	}
	return heldAll(res, len(ds))
}

// FailLeased ends a lease with a verdict, and records the attempt.
func (l Leases) FailLeased(ctx context.Context, owner string, d Leased, v Verdict, a Attempt) error {
	err := l.db.RunInTx(ctx, l.d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) error {
		return l.fail(ctx, tx, owner, d, v, a, ", locked_by = NULL")
	})
	if err != nil && !errors.Is(err, ErrLeaseLost) {
		return fmt.Errorf("consume log: record failure of event %s: %w", d.EventID, err)
	}
	return err
}

// fail records an attempt, and ends the lease of its delivery with a verdict. It reports [ErrLeaseLost] if there is no lease to end.
// alsoSet is for further columns, each with a comma before it.
func (l Leases) fail(ctx context.Context, tx bun.Tx, owner string, d Leased, v Verdict, a Attempt, alsoSet string) error {
	if err := l.attempts.record(ctx, tx, d.Delivery, v, a); err != nil {
		return err
	}
	if err := l.attempts.trim(ctx, tx, d); err != nil {
		return err
	}
	attempts, next := "attempts = attempts - "+whetherCounted, "next_retry_at = NULL"
	args := []any{string(v.Status), nullText(text.Clean(v.Error, text.MaxError))}
	if v.Counts {
		attempts = "attempts = attempts + 1 - " + whetherCounted
	}
	if v.Status.Waiting() {
		next = "next_retry_at = " + l.d.After
		args = append(args, dialect.Micro(v.Delay))
	}
	res, err := tx.ExecContext(ctx, "UPDATE "+deliveryTable+" SET status = ?, error_message = ?, "+
		"first_run_at = COALESCE(first_run_at, "+l.d.Now+"), "+attempts+", started = 0, "+next+alsoSet+nextVersion+l.d.Now+
		" WHERE id = ? AND locked_by = ? AND lock_version = ? AND status = 'PROCESSING'",
		append(args, d.ID, owner, d.Version)...)
	if err != nil {
		return fmt.Errorf("consume log: end delivery of event %s: %w", d.EventID, err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, fmt.Errorf("consume log: event %s for %s: %w", d.EventID, d.Consumer, ErrLeaseLost))
	}
	return nil
}

// Renew prolongs leases, and tells which are lost, by their ids. It does not wait for a lock: another transaction that writes
// such a row is that of its handler, which may take long, or takes the lease away, which the question after it shows.
func (l Leases) Renew(ctx context.Context, owner string, lease time.Duration, ds []Leased) (lost []int64, err error) {
	if len(ds) == 0 {
		return nil, nil
	}
	err = l.db.RunInTx(ctx, l.d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) error {
		free, err := held(ctx, tx, l.d, owner, ds, l.d.SkipLocked)
		if err != nil || len(free) == 0 {
			return err
		}
		return l.prolong(ctx, tx, free, lease)
	})
	if err != nil {
		return nil, fmt.Errorf("consume log: renew leases: %w", err)
	}
	return l.lost(ctx, owner, ds, "")
}

// prolong makes leases last from now on, or what waits wait: the transaction has locked the rows.
func (l Leases) prolong(ctx context.Context, tx bun.Tx, ids []int64, lease time.Duration) error {
	_, err := tx.ExecContext(ctx, l.d.UpdateIDs(deliveryTable, dialect.Pairs(ids), "next_retry_at = "+l.d.After, "1 = 1"),
		dialect.Micro(lease))
	return err
}

// Lost tells which leases are lost, by their ids, once transactions that write these rows have ended.
func (l Leases) Lost(ctx context.Context, owner string, ds []Leased) (lost []int64, err error) {
	return l.lost(ctx, owner, ds, l.d.ForUpdate)
}

func (l Leases) lost(ctx context.Context, owner string, ds []Leased, lock string) (lost []int64, err error) {
	still, err := held(ctx, l.db, l.d, owner, ds, lock)
	if err != nil {
		return nil, fmt.Errorf("consume log: look up leases: %w", err)
	}
	for _, d := range ds {
		if _, mine := slices.BinarySearch(still, d.ID); !mine {
			lost = append(lost, d.ID)
		}
	}
	return lost, nil
}

// held are the ids, in order, of the leases that owner still has.
func held(ctx context.Context, idb bun.IDB, d dialect.Dialect, owner string, ds []Leased, lock string) (ids []int64, err error) {
	which := dialect.IDs(pairsOf(ds)) + " AND " + leasedBy
	query := "SELECT e.id FROM " + d.Keyed(deliveryTable) + " WHERE " + which + " ORDER BY e.id" + lock
	err = idb.NewRaw(query, owner).Scan(ctx, &ids)
	return ids, err
}
