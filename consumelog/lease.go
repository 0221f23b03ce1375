package consumelog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/text"
)

// ErrLeaseLost means that a delivery was taken over: whatever its former holder
// wants to write about it no longer counts.
var ErrLeaseLost = errors.New("the lease of the delivery has passed to somebody else")

// Leased is a waiting delivery that an instance has claimed. Its Attempts count this claim.
type Leased struct {
	Delivery
	ID      int64  // id of the consume log row
	Version int64  // lock version of this lease
	Before  Status // what the row was before the claim
	Age     time.Duration
}

func (d Leased) pair() dialect.Pair { return dialect.Pair{ID: d.ID, Version: d.Version} }

// ClaimQuery says whose waiting deliveries to lease.
type ClaimQuery struct {
	Gate  Gate          // names, order and owner
	Lease time.Duration // how long the lease lasts unless it is renewed
	Limit int           // at most so many
}

// Claim leases due deliveries of one consumer, of the types it handles here, and
// counts their attempt. Those that
// an earlier event of their aggregate still blocks are put off instead, uncounted.
func (l *Log) Claim(ctx context.Context, q ClaimQuery) ([]Leased, error) {
	var claimed []Leased
	err := l.db.RunInTx(ctx, l.d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) error {
		claimed = nil
		candidates, err := l.due(ctx, tx, q)
		if err != nil || len(candidates) == 0 {
			return err
		}
		if err := l.take(ctx, tx, q, candidates); err != nil {
			return err
		}
		claimed, err = l.keepOpen(ctx, tx, q, candidates)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("consume log: claim deliveries of %s: %w", q.Gate.Names[0], err)
	}
	return claimed, nil
}

// due selects and locks candidates, one status and one name a statement, so that
// each is a walk along idx_consumer_due that needs no sorting.
func (l *Log) due(ctx context.Context, tx bun.Tx, q ClaimQuery) ([]Leased, error) {
	var out []Leased
	for _, name := range q.Gate.Names {
		for _, status := range []Status{Failed, Pending, Processing} {
			if len(out) >= q.Limit {
				return out, nil
			}
			found, err := l.selectLeased(ctx, tx, "consumer_name = ? AND status = ? AND next_retry_at <= "+l.d.Now+" AND event_type IN (?) ORDER BY next_retry_at, id LIMIT ?"+l.d.SkipLocked,
				name, string(status), bun.List(q.Gate.Types), q.Limit-len(out))
			if err != nil {
				return nil, err
			}
			out = append(out, found...)
		}
	}
	return out, nil
}

func (l *Log) selectLeased(ctx context.Context, idb bun.IDB, where string, args ...any) ([]Leased, error) {
	rows, err := idb.QueryContext(ctx, "SELECT id, consumer_name, event_id, event_type, outbox_id, aggregate_type, aggregate_id, tenant_id, attempts, lock_version, status, "+
		l.d.Micros(l.d.Now)+" - "+l.d.Micros("created_at")+" FROM "+table+" WHERE "+where, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []Leased
	for rows.Next() {
		var d Leased
		var outboxID, tenantID, attempts, version, age sql.NullInt64
		var aggType, aggID, status sql.NullString
		if err := rows.Scan(&d.ID, &d.Consumer, &d.EventID, &d.EventType, &outboxID, &aggType, &aggID, &tenantID, &attempts, &version, &status, &age); err != nil {
			return nil, err
		}
		d.OutboxID, d.TenantID, d.Attempts, d.Version = outboxID.Int64, tenantID.Int64, int(attempts.Int64), version.Int64
		d.AggregateType, d.AggregateID, d.Before = aggType.String, aggID.String, Status(status.String)
		d.Age = time.Duration(age.Int64) * time.Microsecond
		out = append(out, d)
	}
	return out, rows.Err()
}

func (l *Log) take(ctx context.Context, tx bun.Tx, q ClaimQuery, ds []Leased) error {
	sort.Slice(ds, func(i, j int) bool { return ds[i].ID < ds[j].ID })
	_, err := tx.ExecContext(ctx, l.d.UpdatePairs(table, pairsOf(ds),
		"status = 'PROCESSING', attempts = attempts + 1, locked_by = ?, lock_version = lock_version + 1, next_retry_at = "+l.d.After+", updated_at = "+l.d.Now,
		"e.lock_version = t.v"), q.Gate.Owner, dialect.Micro(q.Lease))
	if err != nil {
		return err
	}
	for i := range ds {
		ds[i].Attempts++
		ds[i].Version++
	}
	return nil
}

// keepOpen keeps what may run, in outbox order, and puts off what is blocked.
func (l *Log) keepOpen(ctx context.Context, tx bun.Tx, q ClaimQuery, ds []Leased) ([]Leased, error) {
	gate := q.Gate
	gate.trustMine = true
	asked := make([]dialect.Pair, 0, len(ds))
	for _, d := range ds {
		asked = append(asked, dialect.Pair{ID: d.OutboxID})
	}
	answers, err := l.Ask(ctx, tx, gate, asked)
	if err != nil {
		return nil, err
	}
	var open []Leased
	for _, d := range ds {
		if a := answers[d.OutboxID]; a == Open || a == Gone {
			open = append(open, d)
			continue
		}
		if err := l.putBack(ctx, tx, q.Gate.Owner, d, min(max(d.Age/2, time.Second), time.Minute)); err != nil {
			return nil, err
		}
	}
	sort.SliceStable(open, func(i, j int) bool { return open[i].OutboxID < open[j].OutboxID })
	return open, nil
}

// PutBack ends a lease without a result and without counting the attempt: the delivery
// waits as before and is due after delay. It reports [ErrLeaseLost] if there is nothing to end.
func (l *Log) PutBack(ctx context.Context, owner string, d Leased, delay time.Duration) error {
	return l.putBack(ctx, l.db, owner, d, delay)
}

func (l *Log) putBack(ctx context.Context, idb bun.IDB, owner string, d Leased, delay time.Duration) error {
	before := d.Before
	if before != Pending {
		before = Failed
	}
	return l.end(ctx, idb, owner, d, "status = ?, attempts = attempts - 1, next_retry_at = "+l.d.After, string(before), dialect.Micro(delay))
}

// FailLeased ends a lease with a verdict.
func (l *Log) FailLeased(ctx context.Context, owner string, d Leased, v Verdict) error {
	attempts, next, args := "attempts = attempts", "next_retry_at = NULL", []any{string(v.Status), nullText(text.Clean(v.Error, text.MaxError))}
	if !v.Counts {
		attempts = "attempts = attempts - 1"
	}
	if v.Status.Waiting() {
		next = "next_retry_at = " + l.d.After
		args = append(args, dialect.Micro(v.Delay))
	}
	return l.end(ctx, l.db, owner, d, "status = ?, error_message = ?, "+attempts+", "+next, args...)
}

func (l *Log) end(ctx context.Context, idb bun.IDB, owner string, d Leased, set string, args ...any) error {
	args = append(args, d.ID, owner, d.Version)
	res, err := idb.ExecContext(ctx, "UPDATE "+table+" SET "+set+", locked_by = NULL, lock_version = lock_version + 1, updated_at = "+l.d.Now+
		" WHERE id = ? AND locked_by = ? AND lock_version = ? AND status = 'PROCESSING'", args...)
	if err != nil {
		return fmt.Errorf("consume log: end delivery of event %s: %w", d.EventID, err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, fmt.Errorf("consume log: event %s for %s: %w", d.EventID, d.Consumer, ErrLeaseLost))
	}
	return nil
}

// Finish marks leased deliveries SUCCESS in the transaction of their handlers, before
// those run. It locks the rows, and reports [ErrLeaseLost] unless all are still held.
func (l *Log) Finish(ctx context.Context, idb bun.IDB, owner string, ds []Leased) error {
	res, err := idb.ExecContext(ctx, l.d.UpdatePairs(table, pairsOf(ds),
		"status = 'SUCCESS', next_retry_at = NULL, locked_by = NULL, error_message = NULL, lock_version = lock_version + 1, consumed_at = "+l.d.Now+", updated_at = "+l.d.Now,
		"e.lock_version = t.v AND e.status = 'PROCESSING' AND e.locked_by = ?"), owner)
	if err != nil {
		return fmt.Errorf("consume log: mark deliveries: %w", err)
	}
	if n, err := res.RowsAffected(); err != nil || n != int64(len(ds)) {
		return errors.Join(err, fmt.Errorf("consume log: %d of %d deliveries: %w", int64(len(ds))-n, len(ds), ErrLeaseLost))
	}
	return nil
}

// Renew prolongs the leases and reports which of them, by row id, are lost.
func (l *Log) Renew(ctx context.Context, owner string, lease time.Duration, ds []Leased) (lost []int64, err error) {
	if len(ds) == 0 {
		return nil, nil
	}
	held := "e.lock_version = t.v AND e.status = 'PROCESSING' AND e.locked_by = ?"
	if _, err := l.db.ExecContext(ctx, l.d.UpdatePairs(table, pairsOf(ds), "next_retry_at = "+l.d.After, held), dialect.Micro(lease), owner); err != nil {
		return nil, fmt.Errorf("consume log: renew leases: %w", err)
	}
	rows, err := l.db.QueryContext(ctx, "SELECT t.id FROM "+l.d.Pairs(pairsOf(ds))+" LEFT JOIN "+table+" e ON e.id = t.id AND "+held+" WHERE e.id IS NULL", owner)
	if err != nil {
		return nil, fmt.Errorf("consume log: renew leases: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, fmt.Errorf("consume log: renew leases: %w", err)
		}
		lost = append(lost, id)
	}
	return lost, rows.Err()
}

// DueConsumers tells which of the names have a delivery that is due.
func (l *Log) DueConsumers(ctx context.Context, names []string) ([]string, error) {
	if len(names) == 0 {
		return nil, nil
	}
	var query strings.Builder
	args := make([]any, 0, 4*len(names))
	for i, name := range names {
		if i > 0 {
			query.WriteString(" UNION ALL ")
		}
		due := func(s Status) string {
			return "EXISTS (SELECT 1 FROM " + table + " WHERE consumer_name = ? AND status = '" + string(s) + "' AND next_retry_at <= " + l.d.Now + ")"
		}
		query.WriteString("SELECT ? AS name FROM (SELECT 1 AS one) AS o WHERE " + due(Failed) + " OR " + due(Pending) + " OR " + due(Processing))
		args = append(args, name, name, name, name)
	}
	return l.column(ctx, l.db, query.String(), args...)
}

func pairsOf(ds []Leased) []dialect.Pair {
	pairs := make([]dialect.Pair, len(ds))
	for i, d := range ds {
		pairs[i] = d.pair()
	}
	return pairs
}
