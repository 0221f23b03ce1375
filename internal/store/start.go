package store

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// Start notes, by a commit of its own, that the handlers of leased deliveries are about to run. If the process dies
// then, whoever takes them over runs each of them alone, for any of them may have killed it.
func (l Leases) Start(ctx context.Context, owner string, ds []Leased) error {
	pairs := pairsOf(ds)
	exec, query, args := l.db.ExecContext, l.d.UpdateIDs(deliveryTable, pairs, "started = 1", leasedBy), []any{owner}
	if ids, version := sameVersion(pairs); ids != nil {
		exec, args = l.stmts.On(l.db).ExecContext, []any{ids, version, owner}
		query = "UPDATE " + l.d.Keyed(deliveryTable) + " SET started = 1 WHERE " + dialect.Under + " AND " + leasedBy
	}
	if _, err := exec(ctx, query, args...); err != nil {
		return fmt.Errorf("consume log: note that deliveries start: %w", err)
	}
	return nil // whoever marks them SUCCESS finds out which leases are lost
}

// StartCounted is [Leases.Start] for a delivery that runs alone. It counts the attempt before its outcome is known: if the
// delivery kills one process after the other, its attempts are used up in the end. A repeated call counts once. It
// reports [ErrLeaseLost] if the lease is lost.
func (l Leases) StartCounted(ctx context.Context, owner string, d Leased) error {
	const set = "attempts = attempts + 1, started = 2, first_run_at = COALESCE(first_run_at, "
	_, err := l.db.ExecContext(ctx, l.d.UpdateIDs(deliveryTable, []dialect.Pair{d.pair()}, set+l.d.Now+"), updated_at = "+l.d.Now,
		leasedBy+" AND e.started < 2"), owner)
	if err != nil {
		return fmt.Errorf("consume log: note that the delivery of event %s starts: %w", d.EventID, err)
	}
	held, err := l.held(ctx, l.db, owner, []Leased{d}, "")
	if err == nil && len(held) == 0 {
		err = fmt.Errorf("event %s for %s: %w", d.EventID, d.Consumer, ErrLeaseLost)
	}
	if err != nil {
		return fmt.Errorf("consume log: note that the delivery of event %s starts: %w", d.EventID, err)
	}
	return nil
}

// Begin inserts, by a commit of its own, PROCESSING rows of one consumer's deliveries that are about to run and that have
// no row yet, because nothing of ours guards their transaction. It returns their leases by event id. Those that are
// missing have a row already.
func (l Leases) Begin(ctx context.Context, ds []Delivery, owner string, lease time.Duration) (map[string]Leased, error) {
	return l.beginAs(ctx, ds, owner, lease, started)
}

// BeginCounted is [Leases.Begin] for a delivery that a process that has died may have started: this run is counted.
func (l Leases) BeginCounted(ctx context.Context, d Delivery, owner string, lease time.Duration) (map[string]Leased, error) {
	return l.beginAs(ctx, []Delivery{d}, owner, lease, counted)
}

func (l Leases) beginAs(ctx context.Context, ds []Delivery, owner string, lease time.Duration, as int) (map[string]Leased, error) {
	begins, attempts, first := slices.Clone(ds), 0, "NULL"
	if as == counted {
		attempts, first = 1, l.d.Now
	}
	for i := range begins {
		begins[i].Attempts = attempts
	}
	quoted := string(l.db.Dialect().AppendString(nil, owner))
	more := ", 'PROCESSING', " + after(l.d, lease) + ", " + quoted + ", 1, " + strconv.Itoa(as) + ", " + first
	_, err := l.db.ExecContext(ctx, insertInto+", status, next_retry_at, locked_by, lock_version, started, first_run_at) "+
		valuesOf(l.db.Dialect(), begins, more)+l.d.Ignore(uniqueEvent))
	if err != nil {
		return nil, fmt.Errorf("consume log: begin deliveries: %w", err)
	}
	begun, err := l.begun(ctx, begins, owner)
	if err != nil {
		return nil, fmt.Errorf("consume log: begin deliveries: %w", err)
	}
	return begun, nil
}

// begun reads the leases that Begin has made, by uk_event_consumer. The status stands outside the WHERE: inside, PostgreSQL
// without statistics would choose the index over states.
func (l Leases) begun(ctx context.Context, ds []Delivery, owner string) (map[string]Leased, error) {
	ids, of := make([]string, len(ds)), make(map[string]Delivery, len(ds))
	for i, d := range ds {
		ids[i], of[d.EventID] = d.EventID, d
	}
	rows, err := l.stmts.On(l.db).QueryContext(ctx, "SELECT id, event_id, "+
		"CASE WHEN status = 'PROCESSING' AND locked_by = ? AND lock_version = 1 THEN 1 ELSE 0 END FROM "+
		deliveryTable+" WHERE consumer_name = ? AND event_id IN (?)", owner, ds[0].Consumer, ids)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := make(map[string]Leased, len(ds))
	for rows.Next() {
		var row Leased
		var eventID string
		var mine int
		if err := rows.Scan(&row.ID, &eventID, &mine); err != nil {
			return nil, err
		}
		if mine == 1 {
			row.Delivery, row.Version, row.Before = of[eventID], 1, Pending
			row.Attempts = 1
			out[eventID] = row
		}
	}
	return out, rows.Err()
}

// Expire ends, at once, what owner has leased: it has died, or an operator has started its successor while it was
// frozen. Then it finds out by the lock versions. Rows that another transaction is writing are left to expire by themselves.
func (l Leases) Expire(ctx context.Context, consumers []string, owner string) error {
	for _, consumer := range consumers {
		for more := true; more; {
			err := l.db.RunInTx(ctx, l.d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) error {
				ids, err := l.ofOwner(ctx, tx, consumer, owner)
				if more = len(ids) == dialect.MostIDs; err != nil || len(ids) == 0 {
					return err
				}
				slices.Sort(ids)
				set := "next_retry_at = " + l.d.Now + ", lock_version = lock_version + 1"
				_, err = tx.ExecContext(ctx, l.d.UpdateIDs(deliveryTable, dialect.Pairs(ids), set, "1 = 1"))
				return err
			})
			if err != nil {
				return fmt.Errorf("consume log: end the leases of %s: %w", owner, err)
			}
		}
	}
	return nil
}

// ofOwner locks deliveries of a consumer that owner has leased, along idx_consumer_due, and tells their ids.
func (l Leases) ofOwner(ctx context.Context, tx bun.Tx, consumer, owner string) (ids []int64, err error) {
	err = tx.NewRaw("SELECT id FROM "+l.d.DueDeliveries(deliveryTable)+" WHERE consumer_name = ? AND status = 'PROCESSING'"+inDueIndex+
		" AND next_retry_at > "+l.d.Now+" AND locked_by = ? ORDER BY next_retry_at, id LIMIT ?"+l.d.SkipLocked,
		consumer, owner, dialect.MostIDs).Scan(ctx, &ids)
	return ids, err
}
