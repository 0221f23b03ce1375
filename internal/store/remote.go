package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// Remote are the leases of deliveries whose handlers run in another program, which ends them by a call. The owner of such a lease
// stays in the row when the lease ends, so that a call that is repeated is recognised.
type Remote struct{ Leases }

// RemoteRow is a delivery as its row has it.
type RemoteRow struct {
	Leased

	Status Status
	Owner  string // of its lease, or of the last one that was ended by a call
	Until  int64  // end of the lease, or when it is due; microseconds since the epoch by the database's clock, 0 for none
	Now    int64  // by the same clock
	Result string // JSON text, empty for none
}

// IsLeased reports whether somebody has the delivery leased.
func (r RemoteRow) IsLeased() bool { return r.Status == Processing && r.Until > r.Now }

// Run is the number of the run that the lease is for.
func (r RemoteRow) Run() int {
	if r.counted {
		return r.Attempts
	}
	return r.Attempts + 1
}

// LeasedFor is how long a lease of this length has lasted, 0 if it was renewed.
func (r RemoteRow) LeasedFor(lease time.Duration) time.Duration {
	return max(lease-time.Duration(r.Until-r.Now)*time.Microsecond, 0)
}

// ByID reads a delivery by the primary key, and false if there is none.
func (r Remote) ByID(ctx context.Context, idb bun.IDB, id int64) (RemoteRow, bool, error) {
	return r.row(ctx, idb, "id = ?", id)
}

// LockOf locks a consumer's delivery of an event and reads it, by uk_event_consumer; false if there is none.
func (r Remote) LockOf(ctx context.Context, tx bun.Tx, consumer, eventID string) (RemoteRow, bool, error) {
	return r.row(ctx, tx, "consumer_name = ? AND event_id = ?"+r.d.ForUpdate, consumer, eventID)
}

func (r Remote) row(ctx context.Context, idb bun.IDB, where string, args ...any) (row RemoteRow, found bool, err error) {
	var outboxID sql.NullInt64
	var aggType, aggID, owner, status sql.NullString
	var begun int
	err = idb.QueryRowContext(ctx, "SELECT id, consumer_name, event_id, event_type, outbox_id, aggregate_type, aggregate_id, tenant_id, "+
		"attempts, lock_version, status, started, locked_by, COALESCE("+r.d.Micros("next_retry_at")+", 0), "+r.d.Micros(r.d.Now)+
		", COALESCE("+r.d.Text("consume_result")+", '') FROM "+deliveryTable+" WHERE "+where, args...).
		Scan(&row.ID, &row.Consumer, &row.EventID, &row.EventType, &outboxID, &aggType, &aggID, (*tenant)(&row.TenantID),
			&row.Attempts, &row.Version, &status, &begun, &owner, &row.Until, &row.Now, &row.Result)
	if errors.Is(err, sql.ErrNoRows) {
		return row, false, nil
	}
	if err != nil {
		return row, false, fmt.Errorf("consume log: read a delivery: %w", err)
	}
	row.OutboxID, row.AggregateType, row.AggregateID = outboxID.Int64, aggType.String, aggID.String
	row.Status, row.Owner = Status(status.String), owner.String
	row.Before = row.Status
	row.Suspect, row.counted = begun != notStarted && row.Status == Processing, begun == counted && row.Status == Processing
	return row, true, nil
}

// ByIDs tells what the deliveries are that have these ids, by the primary key.
func (r Remote) ByIDs(ctx context.Context, idb bun.IDB, ids []int64) (found []Delivery, err error) {
	for chunk := range slices.Chunk(ids, dialect.MostIDs) {
		err := EachRow(ctx, idb, func(rows *sql.Rows) error {
			var d Delivery
			var outboxID sql.NullInt64
			var aggType, aggID sql.NullString
			err := rows.Scan(&d.Consumer, &d.EventID, &d.EventType, &outboxID, &aggType, &aggID, (*tenant)(&d.TenantID))
			d.OutboxID, d.AggregateType, d.AggregateID = outboxID.Int64, aggType.String, aggID.String
			found = append(found, d)
			return err
		}, "SELECT consumer_name, event_id, event_type, outbox_id, aggregate_type, aggregate_id, tenant_id FROM "+r.d.Keyed(deliveryTable)+
			" WHERE "+dialect.IDs(dialect.Pairs(chunk)))
		if err != nil {
			return nil, fmt.Errorf("consume log: read deliveries: %w", err)
		}
	}
	return found, nil
}

// NoteStart notes that the handler of a delivery that tx has leased is about to run, by the primary key. A run that may have been
// started before is counted now.
func (r Remote) NoteStart(ctx context.Context, tx bun.Tx, d Leased) error {
	if d.Suspect {
		return r.NoteCounted(ctx, tx, d)
	}
	if _, err := tx.ExecContext(ctx, "UPDATE "+deliveryTable+" SET started = 1 WHERE id = ?", d.ID); err != nil {
		return fmt.Errorf("consume log: note that the delivery of event %s starts: %w", d.EventID, err)
	}
	return nil
}

// NoteCounted notes that the handlers of deliveries that tx has leased are about to run, by the primary key, and counts these runs: a
// program that has died may have started them before.
func (r Remote) NoteCounted(ctx context.Context, tx bun.Tx, ds ...Leased) error {
	_, err := tx.ExecContext(ctx, r.d.UpdateIDs(deliveryTable, pairsOf(ds),
		"attempts = attempts + 1, started = 2, first_run_at = COALESCE(first_run_at, "+r.d.Now+")", "e.started < 2"))
	if err != nil {
		return fmt.Errorf("consume log: note that deliveries start: %w", err)
	}
	return nil
}

// HasExpired tells whether leases of a consumer's deliveries, of these event types, have run out, and the time by the database's
// clock, in microseconds since the epoch. It looks at the start of a range of idx_consumer_due.
func (r Remote) HasExpired(ctx context.Context, idb bun.IDB, consumer string, types []string) (expired bool, now int64, err error) {
	err = idb.QueryRowContext(ctx, "SELECT "+r.d.Micros(r.d.Now)+", COALESCE((SELECT 1 FROM "+r.d.DueDeliveries(deliveryTable)+
		" WHERE consumer_name = ? AND status = 'PROCESSING'"+inDueIndex+" AND next_retry_at <= "+r.d.Now+" AND event_type IN (?) LIMIT 1), 0)",
		consumer, bun.List(types)).Scan(&now, &expired)
	if err != nil {
		return false, 0, fmt.Errorf("consume log: look for leases that have run out: %w", err)
	}
	return expired, now, nil
}

// LockCounted lets nobody else hand out counted runs of a consumer until tx has ended. It tells the highest number of such a run that
// has been handed out for no longer than a while, and has not ended: 0 if there is none. It goes along what the consumer has leased,
// by idx_consumer_due.
func (r Remote) LockCounted(ctx context.Context, tx bun.Tx, consumer string, within time.Duration) (highest int, err error) {
	_, err = readTexts(tx.QueryContext(ctx, "SELECT name FROM bc_consumer WHERE name = ?"+r.d.ForUpdate, consumer))
	if err != nil {
		return 0, fmt.Errorf("lock consumer %s: %w", consumer, err)
	}
	err = tx.QueryRowContext(ctx, "SELECT COALESCE(MAX(attempts), 0) FROM "+r.d.DueDeliveries(deliveryTable)+
		" WHERE consumer_name = ? AND status = 'PROCESSING'"+inDueIndex+" AND next_retry_at > "+r.d.Now+" AND started = 2 AND updated_at > "+
		r.d.After, consumer, -dialect.Micro(within)).Scan(&highest)
	if err != nil {
		return 0, fmt.Errorf("consume log: look for counted runs: %w", err)
	}
	return highest, nil
}

// Take leases a delivery that the transaction has locked, whatever it waits for, by the primary key.
func (r Remote) Take(ctx context.Context, tx bun.Tx, owner string, lease time.Duration, row RemoteRow) (Leased, error) {
	if err := r.attempts.RecordUnanswered(ctx, tx, []Leased{row.Leased}); err != nil {
		return Leased{}, err
	}
	ds := []Leased{row.Leased}
	if err := r.LeaseLocked(ctx, tx, owner, lease, ds); err != nil {
		return Leased{}, fmt.Errorf("consume log: lease the delivery of event %s: %w", row.EventID, err)
	}
	return ds[0], nil
}

// Succeed ends leases of one owner as SUCCESS, by the primary key. It reports [ErrLeaseLost] unless all still hold: then tx must be
// rolled back. Results are JSON texts by the ids of the rows; what has none keeps its column empty.
func (r Remote) Succeed(ctx context.Context, tx bun.Tx, owner string, leases []dialect.Pair, results map[int64]string) error {
	slices.SortFunc(leases, func(a, b dialect.Pair) int { return cmp.Compare(a.ID, b.ID) })
	for chunk := range slices.Chunk(leases, dialect.MostIDs) {
		res, err := tx.ExecContext(ctx, r.d.UpdateIDs(deliveryTable, chunk, "status = 'SUCCESS', attempts = attempts + 1 - "+whetherCounted+
			", started = 0, next_retry_at = NULL, error_message = NULL, lock_version = lock_version + 1, consumed_at = "+r.d.Now+
			", updated_at = "+r.d.Now, leasedBy), owner)
		if err != nil {
			return fmt.Errorf("consume log: end deliveries: %w", err)
		}
		if err := heldAll(res, len(chunk)); err != nil {
			return err
		}
	}
	for id, result := range results {
		if _, err := tx.ExecContext(ctx, "UPDATE "+deliveryTable+" SET consume_result = ? WHERE id = ?", result, id); err != nil {
			return fmt.Errorf("consume log: record a result: %w", err)
		}
	}
	return nil
}

// Fail ends a lease with a verdict that is no success, and records the attempt. It reports [ErrLeaseLost] if the lease is lost: then tx
// must be rolled back.
func (r Remote) Fail(ctx context.Context, tx bun.Tx, owner string, d Leased, v Verdict, a Attempt) error {
	return r.fail(ctx, tx, owner, d, v, a, "")
}

// Prolong makes a lease last from now on, by the primary key. It reports [ErrLeaseLost] if it is lost.
func (r Remote) Prolong(ctx context.Context, idb bun.IDB, owner string, of dialect.Pair, lease time.Duration) error {
	res, err := idb.ExecContext(ctx, "UPDATE "+deliveryTable+" SET next_retry_at = "+r.d.After+
		" WHERE id = ? AND locked_by = ? AND lock_version = ? AND status = 'PROCESSING'", dialect.Micro(lease), of.ID, owner, of.Version)
	if err != nil {
		return fmt.Errorf("consume log: renew a lease: %w", err)
	}
	return heldAll(res, 1)
}

// Types are the event types that instances have said that they take for a consumer, by the primary key.
func (r Remote) Types(ctx context.Context, idb bun.IDB, consumer string) ([]string, error) {
	return readTexts(idb.QueryContext(ctx, "SELECT event_type FROM bc_consumer_type WHERE consumer_name = ? ORDER BY event_type", consumer))
}

// KeepTypes removes all event types of a consumer but these, by the primary key.
func (r Remote) KeepTypes(ctx context.Context, idb bun.IDB, consumer string, types []string) error {
	_, err := idb.ExecContext(ctx, "DELETE FROM bc_consumer_type WHERE consumer_name = ? AND event_type NOT IN (?)", consumer, bun.List(types))
	return err
}

// Unpark makes events of these types due that were parked because nobody consumed them, along idx_status_next_retry.
func (r Remote) Unpark(ctx context.Context, idb bun.IDB, types []string) error {
	_, err := idb.ExecContext(ctx, "UPDATE "+eventTable+" SET next_retry_at = "+r.d.Now+" WHERE status = 'SCHEDULED' AND status <> 'SENT'"+
		" AND lock_version > 0 AND next_retry_at > "+r.d.Now+" AND event_type IN (?)", bun.List(types))
	return err
}
