package consumelog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// ErrLeaseLost means that a delivery was taken over: whatever its former holder
// wants to write about it no longer counts.
var ErrLeaseLost = errors.New("the lease of the delivery has passed to somebody else")

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

// whetherCounted is 1 for a run that is counted already, and else 0. MySQL assigns from left to right: attempts has to
// be set before started.
const whetherCounted = "CASE WHEN started = 2 THEN 1 ELSE 0 END"

func (d Leased) pair() dialect.Pair { return dialect.Pair{ID: d.ID, Version: d.Version} }

// ClaimQuery says whose waiting deliveries to lease.
type ClaimQuery struct {
	Gate   Gate          // consumer, order and owner
	Types  []string      // the event types that can be run here
	Lease  time.Duration // how long the lease lasts unless it is renewed
	Limits Limits        // at most so many
	DueFor time.Duration // only what has been due for so long
	Left   []int64       // and of those that were left to others these, by the ids of their rows
}

// Limits is how many deliveries to lease, by the state they wait in: a backlog of one must not starve another.
type Limits struct{ Failed, Pending, Processing int }

// Claimed is what a claim has leased.
type Claimed struct {
	Deliveries []Leased
	Found      Limits // how many were due; those that it has not leased are put off
	Woken      int    // of those that it has put off, because what was in their way has ended meanwhile
}

// Claim leases due deliveries of one consumer, of the types it handles here. It counts no attempt: a delivery that is
// leased has not started. Those that an earlier event of their aggregate still blocks are put off instead.
// An error with deliveries means that it is unknown whether they are leased: [Log.Lost] tells.
func (l *Log) Claim(ctx context.Context, q ClaimQuery) (claimed Claimed, err error) {
	var asleep []Leased
	err = l.db.RunInTx(ctx, l.d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) error {
		claimed, asleep = Claimed{}, nil
		if l.d.ByIndex != "" {
			if _, err := tx.ExecContext(ctx, l.d.ByIndex); err != nil {
				return err
			}
		}
		candidates, found, err := l.due(ctx, tx, q)
		if err != nil || len(candidates) == 0 {
			return err
		}
		claimed.Found = found
		if err := l.recordUnanswered(ctx, tx, candidates); err != nil {
			return err
		}
		if err := l.take(ctx, tx, q, candidates); err != nil {
			return err
		}
		claimed.Deliveries, asleep, err = l.keepOpen(ctx, tx, q, candidates)
		return err
	})
	if err == nil {
		claimed.Woken, err = l.wakeOpen(ctx, q.Gate, asleep)
	}
	if err != nil {
		return claimed, fmt.Errorf("consume log: claim deliveries of %s: %w", q.Gate.Consumer, err)
	}
	return claimed, nil
}

// inDueIndex is the condition under which PostgreSQL and SQLite have a row in idx_consumer_due:
// the many that succeed at once cost nothing there. SQLite has to be told in these very words.
const inDueIndex = " AND status <> 'SUCCESS'"

// due selects and locks candidates, one status a statement, so that
// each is a walk along idx_consumer_due that needs no sorting.
func (l *Log) due(ctx context.Context, tx bun.Tx, q ClaimQuery) (all []Leased, found Limits, err error) {
	for _, of := range []struct {
		status Status
		limit  int
		found  *int
	}{{Failed, q.Limits.Failed, &found.Failed}, {Pending, q.Limits.Pending, &found.Pending}, {Processing, q.Limits.Processing, &found.Processing}} {
		if of.limit <= 0 {
			continue
		}
		rows, err := l.selectLeased(ctx, tx, "consumer_name = ? AND status = ?"+inDueIndex+" AND next_retry_at <= "+l.d.After+
			" AND event_type IN (?) ORDER BY next_retry_at, id LIMIT ?"+l.d.SkipLocked, q.Gate.Consumer, string(of.status), -dialect.Micro(q.DueFor), q.Types, of.limit)
		if err != nil {
			return nil, Limits{}, err
		}
		*of.found = len(rows)
		all = append(all, rows...)
	}
	if len(q.Left) > 0 {
		rows, err := l.selectLeased(ctx, tx, "consumer_name = ?"+l.left.IsLeft()+" AND id IN (?) ORDER BY id"+l.d.SkipLocked, q.Gate.Consumer, q.Left)
		if err != nil {
			return nil, Limits{}, err
		}
		all = append(all, rows...)
	}
	return all, found, nil
}

func (l *Log) selectLeased(ctx context.Context, idb bun.IDB, where string, args ...any) ([]Leased, error) {
	rows, err := l.stmts.On(idb).QueryContext(ctx, "SELECT id, consumer_name, event_id, event_type, outbox_id, aggregate_type, aggregate_id, tenant_id, attempts, lock_version, status, started, "+
		l.d.Micros(l.d.Now)+" - "+l.d.Micros("created_at")+", "+l.d.Micros(l.d.Now)+" - "+l.d.Micros("first_run_at")+" FROM "+l.d.DueDeliveries(table)+" WHERE "+where, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []Leased
	for rows.Next() {
		var d Leased
		var outboxID, tenantID, attempts, version, begun, age, sinceFirst sql.NullInt64
		var aggType, aggID, status sql.NullString
		if err := rows.Scan(&d.ID, &d.Consumer, &d.EventID, &d.EventType, &outboxID, &aggType, &aggID, &tenantID, &attempts, &version, &status, &begun, &age, &sinceFirst); err != nil {
			return nil, err
		}
		d.OutboxID, d.TenantID, d.Attempts, d.Version = outboxID.Int64, tenantID.Int64, int(attempts.Int64), version.Int64
		d.AggregateType, d.AggregateID, d.Before = aggType.String, aggID.String, Status(status.String)
		d.Suspect, d.counted = begun.Int64 != notStarted, begun.Int64 == counted && d.Before == Processing
		d.Age, d.SinceFirstRun = time.Duration(age.Int64)*time.Microsecond, time.Duration(sinceFirst.Int64)*time.Microsecond
		out = append(out, d)
	}
	return out, rows.Err()
}

func (l *Log) take(ctx context.Context, tx bun.Tx, q ClaimQuery, ds []Leased) error {
	sort.Slice(ds, func(i, j int) bool { return ds[i].ID < ds[j].ID })
	_, err := tx.ExecContext(ctx, l.d.UpdateIDs(table, pairsOf(ds),
		"status = 'PROCESSING', started = CASE WHEN started = 0 THEN 0 ELSE 1 END, locked_by = ?, lock_version = lock_version + 1, next_retry_at = "+l.d.After+", updated_at = "+l.d.Now,
		"1 = 1"), q.Gate.Owner, dialect.Micro(q.Lease))
	if err != nil {
		return err
	}
	for i := range ds {
		ds[i].Attempts++
		ds[i].Version++
	}
	return nil
}

// keepOpen keeps what may run, in outbox order, and puts off what is blocked. It tells what sleeps for a while then.
func (l *Log) keepOpen(ctx context.Context, tx bun.Tx, q ClaimQuery, ds []Leased) (open, asleep []Leased, err error) {
	gate := q.Gate
	gate.trustMine = true
	asked := make([]Asked, 0, len(ds))
	for _, d := range ds {
		asked = append(asked, Asked{Event: dialect.Pair{ID: d.OutboxID}, Aggregate: d.Aggregate()})
	}
	answers, err := l.Ask(ctx, tx, gate, asked)
	if err != nil {
		return nil, nil, err
	}
	blocked := make(map[wait][]dialect.Pair)
	for _, d := range ds {
		if a := answers[d.OutboxID]; a == Open || a == Gone {
			open = append(open, d)
			continue
		}
		how := wait{as: d.waits(), delay: untilNextLook(d.Age), suspect: d.Suspect}
		blocked[how] = append(blocked[how], d.pair())
		if how.as == Pending && how.delay > time.Second {
			asleep = append(asleep, d)
		}
	}
	for how, pairs := range blocked {
		if err := l.putOff(ctx, tx, gate.Owner, how, pairs); err != nil {
			return nil, nil, err
		}
	}
	sort.SliceStable(open, func(i, j int) bool { return open[i].OutboxID < open[j].OutboxID })
	return open, asleep, nil
}

// wait is how deliveries wait again.
type wait struct {
	as      Status
	delay   time.Duration
	suspect bool // still
	left    bool // for an instance that knows the schema version, however long that takes
}

// waits is what the delivery becomes if it is not tried.
func (d Leased) waits() Status {
	if d.Before == Pending || (d.Before == Processing && d.Attempts == 1) {
		return Pending
	}
	return Failed
}

const ended = ", locked_by = NULL, lock_version = lock_version + 1, updated_at = "

// PutBack ends leases without a result and without counting their runs, whether those have started or not: the
// deliveries wait as before and are due after delay. It reports [ErrLeaseLost] if some have no lease to end; the
// others may have been put back.
func (l *Log) PutBack(ctx context.Context, owner string, delay time.Duration, ds ...Leased) error {
	return l.putBack(ctx, owner, ds, func(d Leased) wait { return wait{as: d.waits(), delay: delay, suspect: d.Suspect} })
}

// Leave ends leases of deliveries whose events have a schema version that is not known here, without counting a run: they
// are PENDING, and wait for an instance that knows it. It reports [ErrLeaseLost] as PutBack does.
func (l *Log) Leave(ctx context.Context, owner string, ds ...Leased) error {
	return l.putBack(ctx, owner, ds, func(d Leased) wait { return wait{as: Pending, suspect: d.Suspect, left: true} })
}

func (l *Log) putBack(ctx context.Context, owner string, ds []Leased, as func(Leased) wait) error {
	waits := make(map[wait][]dialect.Pair)
	for _, d := range ds {
		waits[as(d)] = append(waits[as(d)], d.pair())
	}
	for how, pairs := range waits {
		if err := l.putOff(ctx, l.db, owner, how, pairs); err != nil {
			return err
		}
	}
	return nil
}

func (l *Log) putOff(ctx context.Context, idb bun.IDB, owner string, how wait, pairs []dialect.Pair) error {
	due, args := l.d.After, []any{string(how.as), startedIf(how.suspect), dialect.Micro(how.delay), owner}
	if how.left {
		due, args = l.d.Never, []any{string(how.as), startedIf(how.suspect), owner}
	}
	res, err := idb.ExecContext(ctx, l.d.UpdateIDs(table, pairs, "status = ?, attempts = attempts - "+whetherCounted+", started = ?, next_retry_at = "+due+ended+l.d.Now, heldBy), args...)
	if err != nil {
		return fmt.Errorf("consume log: put deliveries back: %w", err)
	}
	return heldAll(res, len(pairs))
}

func startedIf(suspect bool) int {
	if suspect {
		return started
	}
	return notStarted
}

// heldAll reports [ErrLeaseLost] unless a statement has changed as many deliveries as were leased.
func heldAll(res sql.Result, want int) error {
	if n, err := res.RowsAffected(); err != nil || n != int64(want) {
		return errors.Join(err, fmt.Errorf("consume log: %d of %d deliveries: %w", int64(want)-n, want, ErrLeaseLost))
	}
	return nil
}

func (l *Log) end(ctx context.Context, idb bun.IDB, owner string, d Leased, set string, args ...any) error {
	args = append(args, d.ID, owner, d.Version)
	res, err := idb.ExecContext(ctx, "UPDATE "+table+" SET "+set+ended+l.d.Now+
		" WHERE id = ? AND locked_by = ? AND lock_version = ? AND status = 'PROCESSING'", args...)
	if err != nil {
		return fmt.Errorf("consume log: end delivery of event %s: %w", d.EventID, err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, fmt.Errorf("consume log: event %s for %s: %w", d.EventID, d.Consumer, ErrLeaseLost))
	}
	return nil
}

const heldBy = "e.status = 'PROCESSING' AND e.locked_by = ?"

// Finish marks leased deliveries SUCCESS in the transaction of their handlers, before
// those run. It locks the rows, and reports [ErrLeaseLost] unless all are still held.
func (l *Log) Finish(ctx context.Context, idb bun.IDB, owner string, ds []Leased) error {
	const set = "status = 'SUCCESS', attempts = attempts + 1 - " + whetherCounted + ", started = 0, next_retry_at = NULL, locked_by = NULL, error_message = NULL, lock_version = lock_version + 1, consumed_at = "
	pairs := pairsOf(ds)
	exec, query, args := idb.ExecContext, l.d.UpdateIDs(table, pairs, set+l.d.Now+", updated_at = "+l.d.Now, heldBy), []any{owner}
	if ids, version := sameVersion(pairs); ids != nil {
		exec, args = l.stmts.On(idb).ExecContext, []any{ids, version, owner}
		query = "UPDATE " + l.d.Keyed(table) + " SET " + set + l.d.Now + ", updated_at = " + l.d.Now + " WHERE " + dialect.Under + " AND " + heldBy
	}
	res, err := exec(ctx, query, args...)
	if err != nil {
		return fmt.Errorf("consume log: mark deliveries: %w", err)
	}
	return heldAll(res, len(ds))
}

// Renew prolongs leases, and tells which are lost, by their ids. It waits for nobody: a row that somebody
// writes is being finished by its handler's transaction, which may take long, or is lost in a moment.
func (l *Log) Renew(ctx context.Context, owner string, lease time.Duration, ds []Leased) (lost []int64, err error) {
	if len(ds) == 0 {
		return nil, nil
	}
	err = l.db.RunInTx(ctx, l.d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) error {
		free, err := l.held(ctx, tx, owner, ds, l.d.SkipLocked)
		if err != nil || len(free) == 0 {
			return err
		}
		_, err = tx.ExecContext(ctx, l.d.UpdateIDs(table, dialect.Pairs(free), "next_retry_at = "+l.d.After, "1 = 1"), dialect.Micro(lease))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("consume log: renew leases: %w", err)
	}
	return l.lost(ctx, owner, ds, "")
}

// Lost tells which leases are lost, by their ids, when whoever writes about them has ended.
func (l *Log) Lost(ctx context.Context, owner string, ds []Leased) (lost []int64, err error) {
	return l.lost(ctx, owner, ds, l.d.ForUpdate)
}

func (l *Log) lost(ctx context.Context, owner string, ds []Leased, lock string) (lost []int64, err error) {
	held, err := l.held(ctx, l.db, owner, ds, lock)
	if err != nil {
		return nil, fmt.Errorf("consume log: look up leases: %w", err)
	}
	for _, d := range ds {
		if _, mine := slices.BinarySearch(held, d.ID); !mine {
			lost = append(lost, d.ID)
		}
	}
	return lost, nil
}

// held are the ids, in order, of the leases that owner still has.
func (l *Log) held(ctx context.Context, idb bun.IDB, owner string, ds []Leased, lock string) (ids []int64, err error) {
	err = idb.NewRaw("SELECT e.id FROM "+l.d.Keyed(table)+" WHERE "+dialect.IDs(pairsOf(ds))+" AND "+heldBy+" ORDER BY e.id"+lock, owner).Scan(ctx, &ids)
	return ids, err
}

func pairsOf(ds []Leased) []dialect.Pair {
	pairs := make([]dialect.Pair, len(ds))
	for i, d := range ds {
		pairs[i] = d.pair()
	}
	return pairs
}
