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

// heldBy hides the status in an expression: PostgreSQL would go along the index of open events, which holds
// few when it plans a prepared statement, and very many in a backlog.
const heldBy = "e.locked_by = ? AND CASE WHEN e.status = 'DISPATCHING' THEN 1 END = 1"

// lastError is an error of an event's open deliveries, by uk_event_consumer. Like [heldBy] it hides their status.
const lastError = "SELECT MAX(CASE WHEN l.status IN ('FAILED', 'DEAD') THEN l.error_message END)" +
	" FROM " + deliveryTable + " l WHERE l.event_id = e.event_id"

// Held are the ids, in order, of those of the events that the owner still has leased with these lock versions, by primary key.
func (s Settling) Held(ctx context.Context, idb bun.IDB, owner string, leases []dialect.Pair) ([]int64, error) {
	return s.held(ctx, idb, owner, leases, "")
}

// LockHeld is [Settling.Held], and locks the rows. It waits for whoever has locked one.
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

// Ending is how the lease of an event ends.
type Ending struct {
	Status string
	Delay  time.Duration // until it is due again, if it is to be claimed again
	Failed bool          // a delivery has failed, and the event keeps what it said
}

// End ends leases of the owner that all have one lock version, by primary key, and tells how many events the owner had lost
// before: they stay as they are.
func (s Settling) End(ctx context.Context, idb bun.IDB, owner string, ids []int64, version int64, e Ending) (lost int, err error) {
	set, args := "status = ?, locked_by = NULL, lock_version = lock_version + 1, updated_at = "+s.d.Now, []any{e.Status}
	switch {
	case e.Status == "SENT":
		set += ", next_retry_at = NULL, last_error = NULL, sent_at = " + s.d.Now
	case e.Status == "SCHEDULED" || e.Status == "NEW":
		set += ", next_retry_at = " + s.d.After
		args = append(args, dialect.Micro(e.Delay))
	case e.Failed:
		set += ", next_retry_at = NULL, last_error = (" + lastError + ")"
	default:
		set += ", next_retry_at = NULL, last_error = NULL"
	}
	query := "UPDATE " + s.d.Keyed(eventTable) + " SET " + set + " WHERE " + dialect.Under + " AND " + heldBy
	return missed(len(ids))(s.stmts.On(idb).ExecContext(ctx, query, append(args, ids, version, owner)...))
}

// DeleteHeld ends leases of the owner by deleting the events, by primary key, and tells how many the owner had lost before.
func (s Settling) DeleteHeld(ctx context.Context, idb bun.IDB, owner string, leases []dialect.Pair) (lost int, err error) {
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
