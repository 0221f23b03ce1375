package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/eventrow"
)

// Lease is what a publisher writes into the rows that it works on.
type Lease struct {
	Owner string // the run of a process
	For   time.Duration
}

// Lease leases the events of these ids, which tx has locked, by the primary key. isRepeated counts one more lease that has
// run out.
func (c Claims) Lease(ctx context.Context, tx bun.Tx, l Lease, ids []int64, isRepeated bool) error {
	count := ""
	if isRepeated {
		count = "retry_count = retry_count + 1, "
	}
	_, err := c.stmts.On(tx).ExecContext(ctx, "UPDATE "+c.d.Keyed(eventTable)+" SET "+count+
		"status = 'DISPATCHING', locked_by = ?, lock_version = lock_version + 1, next_retry_at = "+c.d.After+", updated_at = "+c.d.Now+
		" WHERE e.id IN (?)", l.Owner, dialect.Micro(l.For), ids)
	if err != nil {
		return fmt.Errorf("lease due events: %w", err)
	}
	return nil
}

// LeasesOf are the events that an owner has leased, with their lock versions, along idx_status_next_retry.
func (c Claims) LeasesOf(ctx context.Context, idb bun.IDB, owner string) ([]dialect.Pair, error) {
	rows, err := idb.QueryContext(ctx,
		"SELECT e.id, e.lock_version FROM "+c.d.Due(eventTable)+" WHERE e.status = 'DISPATCHING'"+isOpen+" AND e.locked_by = ? "+
			"ORDER BY e.id", owner)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var leases []dialect.Pair
	for rows.Next() {
		var p dialect.Pair
		if err := rows.Scan(&p.ID, &p.Version); err != nil {
			return nil, err
		}
		leases = append(leases, p)
	}
	return leases, rows.Err()
}

// ExpireLeases ends leases of an owner, as many as stand in one list, and reports whether there may be more. It finds them along
// idx_status_next_retry and passes over those that others have locked; new lock versions fence the owner.
func (c Claims) ExpireLeases(ctx context.Context, tx bun.Tx, owner string) (more bool, err error) {
	var ids []int64
	err = tx.NewRaw("SELECT e.id FROM "+c.d.Due(eventTable)+" WHERE e.status = 'DISPATCHING'"+isOpen+" AND e.next_retry_at > "+c.d.Now+
		" AND e.locked_by = ?"+alongDue+c.d.SkipLocked, owner, dialect.MostIDs).Scan(ctx, &ids)
	if more = len(ids) == dialect.MostIDs; err != nil || len(ids) == 0 {
		return more, err
	}
	slices.Sort(ids)
	_, err = tx.ExecContext(ctx, c.d.UpdateIDs(eventTable, dialect.Pairs(ids),
		"next_retry_at = "+c.d.Now+", lock_version = lock_version + 1", "1 = 1"))
	return more, err
}

// ActivateDelayed makes up to limit delayed events NEW that are due, along idx_status_next_retry, and returns their ids. From the
// commit of tx on no later event of their aggregates is claimed.
func (c Claims) ActivateDelayed(ctx context.Context, tx bun.Tx, limit int) ([]int64, error) {
	ids, err := readIDs(c.stmts.On(tx).QueryContext(ctx,
		"SELECT e.id FROM "+c.d.Due(eventTable)+" WHERE "+c.dueOf(DueDelayed)+alongDue+c.d.SkipLocked, limit))
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	_, err = tx.ExecContext(ctx, c.d.UpdateIDs(eventTable, dialect.Pairs(ids), "status = 'NEW', lock_version = 1, updated_at = "+c.d.Now,
		"1 = 1"))
	return ids, err
}

// LockNew locks, of the events of these ids, those that are NEW, by the primary key. It passes over those that others have
// locked, and stops before the payloads have more than maxBytes.
func (c Claims) LockNew(ctx context.Context, tx bun.Tx, ids []int64, maxBytes int) ([]eventrow.Row, error) {
	rows, _, err := readWithin(ctx, tx, c.d, within(maxBytes),
		c.d.Keyed(eventTable)+" WHERE "+dialect.IDs(dialect.Pairs(ids))+" AND e.status = 'NEW'"+c.d.SkipLocked)
	return rows, err
}
