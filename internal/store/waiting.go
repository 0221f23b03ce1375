package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

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
// An error with deliveries means that it is unknown whether they are leased: [Leases.Lost] tells.
func (l Leases) Claim(ctx context.Context, q ClaimQuery) (claimed Claimed, err error) {
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
		if err := l.attempts.recordUnanswered(ctx, tx, candidates); err != nil {
			return err
		}
		if err := l.take(ctx, tx, q.Gate.Owner, q.Lease, candidates); err != nil {
			return err
		}
		claimed.Deliveries, asleep, err = l.keepOpen(ctx, tx, q, candidates)
		return err
	})
	if err == nil {
		claimed.Woken, err = l.order.wakeOpen(ctx, l.db, q.Gate, asleep)
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
func (l Leases) due(ctx context.Context, tx bun.Tx, q ClaimQuery) (all []Leased, found Limits, err error) {
	for _, of := range []struct {
		status Status
		limit  int
		found  *int
	}{
		{Failed, q.Limits.Failed, &found.Failed},
		{Pending, q.Limits.Pending, &found.Pending},
		{Processing, q.Limits.Processing, &found.Processing},
	} {
		if of.limit <= 0 {
			continue
		}
		rows, err := l.selectWaiting(ctx, tx, "consumer_name = ? AND status = ?"+inDueIndex+" AND next_retry_at <= "+l.d.After+
			" AND event_type IN (?) ORDER BY next_retry_at, id LIMIT ?"+l.d.SkipLocked,
			q.Gate.Consumer, string(of.status), -dialect.Micro(q.DueFor), q.Types, of.limit)
		if err != nil {
			return nil, Limits{}, err
		}
		*of.found = len(rows)
		all = append(all, rows...)
	}
	if len(q.Left) > 0 {
		rows, err := l.selectWaiting(ctx, tx, "consumer_name = ?"+l.left.IsLeft()+" AND id IN (?) ORDER BY id"+l.d.SkipLocked,
			q.Gate.Consumer, q.Left)
		if err != nil {
			return nil, Limits{}, err
		}
		all = append(all, rows...)
	}
	return all, found, nil
}

// selectWaiting reads deliveries of one consumer along idx_consumer_due.
func (l Leases) selectWaiting(ctx context.Context, idb bun.IDB, where string, args ...any) ([]Leased, error) {
	rows, err := l.stmts.On(idb).QueryContext(ctx, "SELECT id, consumer_name, event_id, event_type, "+
		"outbox_id, aggregate_type, aggregate_id, tenant_id, attempts, lock_version, status, started, "+
		l.d.Micros(l.d.Now)+" - "+l.d.Micros("created_at")+", "+l.d.Micros(l.d.Now)+" - "+l.d.Micros("first_run_at")+" FROM "+
		l.d.DueDeliveries(deliveryTable)+" WHERE "+where, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []Leased
	for rows.Next() {
		var d Leased
		var outboxID, tenantID, attempts, version, begun, age, sinceFirst sql.NullInt64
		var aggType, aggID, status sql.NullString
		if err := rows.Scan(&d.ID, &d.Consumer, &d.EventID, &d.EventType, &outboxID, &aggType, &aggID, &tenantID, &attempts, &version, &status,
			&begun, &age, &sinceFirst); err != nil {
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

// take leases deliveries that this transaction has locked.
func (l Leases) take(ctx context.Context, tx bun.Tx, owner string, lease time.Duration, ds []Leased) error {
	sort.Slice(ds, func(i, j int) bool { return ds[i].ID < ds[j].ID })
	_, err := tx.ExecContext(ctx, l.d.UpdateIDs(deliveryTable, pairsOf(ds),
		"status = 'PROCESSING', started = CASE WHEN started = 0 THEN 0 ELSE 1 END, locked_by = ?, lock_version = lock_version + 1, "+
			"next_retry_at = "+l.d.After+", updated_at = "+l.d.Now,
		"1 = 1"), owner, dialect.Micro(lease))
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
func (l Leases) keepOpen(ctx context.Context, tx bun.Tx, q ClaimQuery, ds []Leased) (open, asleep []Leased, err error) {
	gate := q.Gate
	gate.trustMine = true
	asked := make([]Asked, 0, len(ds))
	for _, d := range ds {
		asked = append(asked, Asked{Event: dialect.Pair{ID: d.OutboxID}, Aggregate: d.Aggregate()})
	}
	answers, err := l.order.Ask(ctx, tx, gate, asked)
	if err != nil {
		return nil, nil, err
	}
	blocked := make(map[wait][]dialect.Pair)
	for _, d := range ds {
		if a := answers[d.OutboxID]; a == MayRun || a == Gone {
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

// untilNextLook is when to look again at a delivery that somebody will wake: half its age, in powers of
// two seconds, so that many are put off together.
func untilNextLook(age time.Duration) time.Duration {
	delay := time.Second
	for delay < time.Minute && 4*delay <= age {
		delay *= 2
	}
	return delay
}

// mostForgotten limits how many deliveries of a consumer are looked at, those first that would sleep for longest.
const mostForgotten = 10_000

// WakeForgotten makes due what sleeps although nothing is before it in its aggregate: a process may have died between the
// COMMIT of a delivery and the wake of the next. It tells how many it has woken. It reads idx_consumer_due from its end.
func (l Leases) WakeForgotten(ctx context.Context, g Gate) (woken int, err error) {
	asleep, err := l.selectWaiting(ctx, l.db, "consumer_name = ? AND status = 'PENDING'"+inDueIndex+" AND next_retry_at > "+l.d.After+
		" AND next_retry_at < "+l.d.Never+" ORDER BY next_retry_at DESC, id DESC LIMIT ?", g.Consumer, dialect.Micro(SoonAwake), mostForgotten)
	for chunk := range slices.Chunk(asleep, dialect.MostIDs) {
		var n int
		if n, err = l.order.wakeOpen(ctx, l.db, g, chunk); err != nil {
			break
		}
		woken += n
	}
	if err != nil {
		return woken, fmt.Errorf("consume log: wake deliveries of %s: %w", g.Consumer, err)
	}
	return woken, nil
}
