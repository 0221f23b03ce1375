package store

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// DueDeliveries says which waiting deliveries of a consumer, by its key, are locked.
type DueDeliveries struct {
	Consumer string
	Status   Status        // they wait in it: Failed, Pending or Processing, whose lease has run out
	Types    []string      // of their events
	For      time.Duration // they have been due for so long
	Fresh    bool          // no run of them was counted
	Limit    int           // at most so many, those first that are due for longest
}

// InTx runs fn in a short transaction, which walks along indexes.
func (l Leases) InTx(ctx context.Context, fn func(ctx context.Context, tx bun.Tx) error) error {
	return l.db.RunInTx(ctx, l.d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) error {
		if l.d.ByIndex != "" {
			if _, err := tx.ExecContext(ctx, l.d.ByIndex); err != nil {
				return err
			}
		}
		return fn(ctx, tx)
	})
}

// inDueIndex is the condition under which PostgreSQL and SQLite have a row in idx_consumer_due:
// the many that succeed at once cost nothing there. SQLite has to be told in these very words.
const inDueIndex = " AND status <> 'SUCCESS'"

// LockDue locks deliveries that are due, and passes over those that others have locked. It is a walk along idx_consumer_due that
// needs no sorting.
func (l Leases) LockDue(ctx context.Context, tx bun.Tx, q DueDeliveries) ([]Leased, error) {
	fresh := ""
	if q.Fresh {
		fresh = " AND attempts = 0"
	}
	return l.selectWaiting(ctx, tx, "consumer_name = ? AND status = ?"+inDueIndex+" AND next_retry_at <= "+l.d.After+
		" AND event_type IN (?)"+fresh+" ORDER BY next_retry_at, id LIMIT ?"+l.d.SkipLocked,
		q.Consumer, string(q.Status), -dialect.Micro(q.For), q.Types, q.Limit)
}

// LockLeft locks those of a consumer's deliveries, by the ids of their rows, that were left to other instances.
func (l Leases) LockLeft(ctx context.Context, tx bun.Tx, consumer string, ids []int64) ([]Leased, error) {
	return l.selectWaiting(ctx, tx, "consumer_name = ?"+l.left.IsLeft()+" AND id IN (?) ORDER BY id"+l.d.SkipLocked, consumer, ids)
}

// LongestPutOff lists deliveries of a consumer that are due later than [SoonDue], at most so many, those first that are put off for
// longest. It reads idx_consumer_due from its end.
func (l Leases) LongestPutOff(ctx context.Context, consumer string, most int) ([]Leased, error) {
	return l.selectWaiting(ctx, l.db, "consumer_name = ? AND status = 'PENDING'"+inDueIndex+" AND next_retry_at > "+l.d.After+
		" AND next_retry_at < "+l.d.Never+" ORDER BY next_retry_at DESC, id DESC LIMIT ?", consumer, dialect.Micro(SoonDue), most)
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
		var outboxID, attempts, version, begun, age, sinceFirst sql.NullInt64
		var aggType, aggID, status sql.NullString
		if err := rows.Scan(&d.ID, &d.Consumer, &d.EventID, &d.EventType, &outboxID, &aggType, &aggID, (*tenant)(&d.TenantID), &attempts,
			&version, &status, &begun, &age, &sinceFirst); err != nil {
			return nil, err
		}
		d.OutboxID, d.Attempts, d.Version = outboxID.Int64, int(attempts.Int64), version.Int64
		d.AggregateType, d.AggregateID, d.Before = aggType.String, aggID.String, Status(status.String)
		d.Suspect, d.counted = begun.Int64 != notStarted, begun.Int64 == counted && d.Before == Processing
		d.Age, d.SinceFirstRun = time.Duration(age.Int64)*time.Microsecond, time.Duration(sinceFirst.Int64)*time.Microsecond
		out = append(out, d)
	}
	return out, rows.Err()
}

// LeaseLocked leases deliveries that this transaction has locked, and numbers the runs to come.
func (l Leases) LeaseLocked(ctx context.Context, tx bun.Tx, owner string, lease time.Duration, ds []Leased) error {
	slices.SortFunc(ds, func(a, b Leased) int { return cmp.Compare(a.ID, b.ID) })
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
