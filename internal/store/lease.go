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

// isFresh is the condition on events e that nobody has ever leased. The status is hidden in a CASE: PostgreSQL would go
// along the index of due events, which holds all that are open.
const isFresh = " AND CASE WHEN e.status = 'NEW' THEN 1 END = 1 AND e.lock_version = 0"

// LeaseFresh leases those of the events, by their event_ids, that nobody has leased or locked, by uk_event_id, and returns their
// rows, by the primary key, with the first event in the way of each in Extra. It looks after they are leased: whoever claims
// an event that was delayed does the same, so one of two sees the other. It waits for nobody.
func (c Claims) LeaseFresh(ctx context.Context, idb bun.IDB, l Lease, eventIDs []string) ([]eventrow.Row, error) {
	ids, err := c.leaseFresh(ctx, idb, l, eventIDs)
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	return readEvents(c.stmts.On(idb).QueryContext(ctx, "SELECT "+eventrow.Columns(c.d)+", "+c.order.FirstInWay()+
		" FROM "+c.d.Keyed(eventTable)+
		" WHERE e.id IN (?) AND CASE WHEN e.status = 'DISPATCHING' THEN 1 END = 1 AND e.locked_by = ? AND e.lock_version = 1", ids, l.Owner,
		ids, l.Owner))
}

// leaseFresh leases the events and returns their ids. It does not wait for an open transaction of a producer, which may
// hold any key.
func (c Claims) leaseFresh(ctx context.Context, idb bun.IDB, l Lease, eventIDs []string) ([]int64, error) {
	lease := "UPDATE " + c.d.Keyed(eventTable) + " SET status = 'DISPATCHING', locked_by = ?, lock_version = 1, " +
		"next_retry_at = " + c.d.After + ", updated_at = " + c.d.Now
	free := "SELECT e.id FROM " + c.d.ByEventID(eventTable) + " WHERE e.event_id IN (?)" + isFresh + c.d.SkipLocked
	db, args := c.stmts.On(idb), []any{l.Owner, dialect.Micro(l.For)}
	if c.d.Name == "postgres" {
		return readIDs(db.QueryContext(ctx, lease+" WHERE e.id IN (SELECT f.id FROM ("+free+") AS f) RETURNING e.id", append(args, eventIDs)...))
	}
	found, err := readIDs(db.QueryContext(ctx, free, eventIDs))
	if err != nil || len(found) == 0 {
		return nil, err
	}
	res, err := db.ExecContext(ctx, lease+" WHERE e.id IN (?)"+isFresh, append(args, found)...)
	if err != nil {
		return nil, err
	}
	if n, err := res.RowsAffected(); err == nil && n == int64(len(found)) {
		return found, nil
	}
	return readIDs(db.QueryContext(ctx, "SELECT e.id FROM "+c.d.Keyed(eventTable)+" WHERE e.id IN (?) AND e.locked_by = ? "+
		"AND e.lock_version = 1", found, l.Owner))
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
