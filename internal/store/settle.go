package store

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/prepared"
)

// Settling renews and ends the leases of events, and writes the status that their deliveries amount to. It is safe for
// concurrent use.
type Settling struct {
	d     dialect.Dialect
	stmts *prepared.Statements
}

// NewSettling returns the statements in the words of a database, sent by way of its prepared statements.
func NewSettling(d dialect.Dialect, stmts *prepared.Statements) Settling { return Settling{d, stmts} }

// Held are the ids, in order, of those of the events that the owner still has leased with these lock versions, by primary key.
func (s Settling) Held(ctx context.Context, idb bun.IDB, owner string, leases []dialect.Pair) ([]int64, error) {
	return s.held(ctx, idb, owner, leases, "")
}

// LockHeld is [Settling.Held], and locks the rows. It waits for transactions that have locked one.
func (s Settling) LockHeld(ctx context.Context, tx bun.IDB, owner string, leases []dialect.Pair) ([]int64, error) {
	return s.held(ctx, tx, owner, leases, s.d.ForUpdate)
}

// LockHeldAndFree is [Settling.LockHeld], but passes over the rows that somebody else has locked.
func (s Settling) LockHeldAndFree(ctx context.Context, tx bun.IDB, owner string, leases []dialect.Pair) ([]int64, error) {
	return s.held(ctx, tx, owner, leases, s.d.SkipLocked)
}

func (s Settling) held(ctx context.Context, idb bun.IDB, owner string, leases []dialect.Pair, lock string) ([]int64, error) {
	var ids []int64
	query := "SELECT e.id FROM " + s.d.Keyed(eventTable) + " WHERE " + dialect.IDs(leases) + " AND " + heldBy + " ORDER BY e.id" + lock
	if err := idb.NewRaw(query, owner).Scan(ctx, &ids); err != nil {
		return nil, fmt.Errorf("look at leases: %w", err)
	}
	return ids, nil
}

// EventLease is whether an event is leased, and what its status is.
type EventLease struct {
	Status   string
	Version  int64 // of the lock
	IsLeased bool
}

// Leases are those of the events that exist, by their ids, by primary key.
func (s Settling) Leases(ctx context.Context, idb bun.IDB, ids []int64) (map[int64]EventLease, error) {
	rows, err := idb.QueryContext(ctx, "SELECT e.id, e.status, e.lock_version, CASE WHEN e.locked_by IS NULL THEN 0 ELSE 1 END FROM "+
		s.d.Keyed(eventTable)+" WHERE "+dialect.IDs(dialect.Pairs(ids)))
	if err != nil {
		return nil, fmt.Errorf("look at events: %w", err)
	}
	defer rows.Close()
	found := make(map[int64]EventLease, len(ids))
	for rows.Next() {
		var id int64
		var r EventLease
		if err := rows.Scan(&id, &r.Status, &r.Version, &r.IsLeased); err != nil {
			return nil, fmt.Errorf("look at events: %w", err)
		}
		found[id] = r
	}
	return found, rows.Err()
}

// Now is the time by the database's clock, in microseconds since the epoch.
func (s Settling) Now(ctx context.Context, idb bun.IDB) (now int64, err error) {
	if err = idb.QueryRowContext(ctx, "SELECT "+s.d.Micros(s.d.Now)).Scan(&now); err != nil {
		return 0, fmt.Errorf("ask for the time: %w", err)
	}
	return now, nil
}

// Extend lets the leases of events, whose rows the transaction has locked, end after a while from now, by primary key.
func (s Settling) Extend(ctx context.Context, tx bun.IDB, ids []int64, lease time.Duration) error {
	_, err := tx.ExecContext(ctx, s.d.UpdateIDs(eventTable, dialect.Pairs(ids), "next_retry_at = "+s.d.After, "1 = 1"), dialect.Micro(lease))
	if err != nil {
		return fmt.Errorf("extend leases: %w", err)
	}
	return nil
}

// DeleteHeld ends leases of the owner by deleting the events, by primary key, and tells how many the owner did not hold.
func (s Settling) DeleteHeld(ctx context.Context, idb bun.IDB, owner string, leases []dialect.Pair) (missing int, err error) {
	return missed(len(leases))(idb.ExecContext(ctx, s.d.DeleteIDs(eventTable, leases, heldBy), owner))
}

// NoteParked notes why events were put aside, by primary key.
func (s Settling) NoteParked(ctx context.Context, tx bun.IDB, ids []int64, why string) error {
	_, err := tx.ExecContext(ctx, s.d.UpdateIDs(eventTable, dialect.Pairs(ids), "last_error = ?", "e.status = 'SCHEDULED'"), why)
	if err != nil {
		return fmt.Errorf("note why events are parked: %w", err)
	}
	return nil
}
