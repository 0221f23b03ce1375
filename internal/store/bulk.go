package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// BulkOperations are the rows of bc_bulk_operation.
type BulkOperations struct{ d dialect.Dialect }

// NewBulkOperations returns the statements in the words of a database.
func NewBulkOperations(d dialect.Dialect) BulkOperations { return BulkOperations{d} }

// NewBulk is a bulk operation that somebody starts. It is about the events that exist.
type NewBulk struct {
	ID, Action    string
	Request       string // JSON
	Actor, Reason string
	Total         int64
	HasMore       bool   // Total stopped counting
	Backfilled    string // the key of the consumer that it gives past events to, empty for another action
}

// Insert starts an operation.
func (b BulkOperations) Insert(ctx context.Context, tx bun.Tx, n NewBulk) error {
	more := 0
	if n.HasMore {
		more = 1
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO bc_bulk_operation "+
		"(operation_id, action, request, actor, reason, total, total_more, consumer_name, up_to, created_at, updated_at) "+
		"SELECT ?, ?, ?, ?, ?, ?, ?, ?, COALESCE((SELECT MAX(id) FROM "+eventTable+"), 0), "+b.d.Now+", "+b.d.Now,
		n.ID, n.Action, n.Request, n.Actor, n.Reason, n.Total, more, nullText(n.Backfilled))
	return err
}

// Cancel stops an operation that is in one of the states.
func (b BulkOperations) Cancel(ctx context.Context, tx bun.Tx, id string, from []string) (done bool, err error) {
	return b.setState(ctx, tx, id, "state = 'CANCELED', finished_at = "+b.d.Now, from)
}

// Resume starts an operation again that is in one of the states.
func (b BulkOperations) Resume(ctx context.Context, tx bun.Tx, id string, from []string) (done bool, err error) {
	return b.setState(ctx, tx, id, "state = 'RUNNING', finished_at = NULL, error_message = NULL", from)
}

func (b BulkOperations) setState(ctx context.Context, tx bun.Tx, id, set string, from []string) (bool, error) {
	return hasChanged(tx.ExecContext(ctx, "UPDATE bc_bulk_operation SET "+set+
		", locked_by = NULL, locked_until = NULL, lock_version = lock_version + 1, updated_at = "+b.d.Now+
		" WHERE operation_id = ? AND state IN (?)", id, bun.List(from)))
}

func hasChanged(res sql.Result, err error) (bool, error) {
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

// BulkLease is the right of an owner to work on an operation, until somebody counts its version up.
type BulkLease struct {
	ID, Owner string
	Version   int64
}

// Lease takes an operation that nobody works on, and counts the version up.
func (b BulkOperations) Lease(ctx context.Context, idb bun.IDB, l BulkLease, length time.Duration) (done bool, err error) {
	return hasChanged(idb.ExecContext(ctx, "UPDATE bc_bulk_operation SET locked_by = ?, locked_until = "+b.d.After+
		", lock_version = lock_version + 1 WHERE operation_id = ? AND lock_version = ? AND state = 'RUNNING' "+
		"AND (locked_until IS NULL OR locked_until < "+b.d.Now+")", l.Owner, dialect.Micro(length), l.ID, l.Version))
}

// Release ends a lease.
func (b BulkOperations) Release(ctx context.Context, idb bun.IDB, l BulkLease) error {
	_, err := idb.ExecContext(ctx, "UPDATE bc_bulk_operation SET locked_by = NULL, locked_until = NULL "+
		"WHERE operation_id = ? AND lock_version = ? AND locked_by = ?", l.ID, l.Version, l.Owner)
	return err
}

// Lock locks an operation, and tells whether the lease still holds.
func (b BulkOperations) Lock(ctx context.Context, tx bun.Tx, l BulkLease) (holds bool, err error) {
	var n int64
	err = tx.QueryRowContext(ctx, "SELECT id FROM bc_bulk_operation "+
		"WHERE operation_id = ? AND lock_version = ? AND locked_by = ? AND state = 'RUNNING'"+b.d.ForUpdate, l.ID, l.Version, l.Owner).Scan(&n)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// BulkProgress is what an operation has done since the last time.
type BulkProgress struct {
	Cursor       string // where it goes on
	Reached      int64  // the last event that it has looked at, by outbox id, 0 for none
	Done, Passed int64
	IsOver       bool
}

// Save writes progress down, and makes the lease longer or ends it.
func (b BulkOperations) Save(ctx context.Context, tx bun.Tx, id string, p BulkProgress, length time.Duration) error {
	set, args := ", locked_until = "+b.d.After, []any{
		p.Cursor, p.Reached, p.Reached, p.Done + p.Passed, p.Done, p.Passed, dialect.Micro(length),
	}
	if p.IsOver {
		set, args = ", state = 'DONE', locked_by = NULL, locked_until = NULL, finished_at = "+b.d.Now, args[:6]
	}
	_, err := tx.ExecContext(ctx, "UPDATE bc_bulk_operation SET next_cursor = ?, "+
		"reached = CASE WHEN reached < ? THEN ? ELSE reached END, seen = seen + ?, done = done + ?, passed = passed + ?, "+
		"updated_at = "+
		b.d.Now+set+" WHERE operation_id = ?", append(args, id)...)
	return err
}

// Fail stops an operation at an error.
func (b BulkOperations) Fail(ctx context.Context, idb bun.IDB, l BulkLease, message string) error {
	_, err := idb.ExecContext(ctx, "UPDATE bc_bulk_operation SET state = 'FAILED', error_message = ?, locked_by = NULL, locked_until = NULL, "+
		"updated_at = "+b.d.Now+", finished_at = "+b.d.Now+" WHERE operation_id = ? AND lock_version = ?", message, l.ID, l.Version)
	return err
}

// Noted tells which targets have an audit row whose details begin with a note and a colon.
func (BulkOperations) Noted(ctx context.Context, tx bun.Tx, targets []string, note string) (map[string]bool, error) {
	noted := make(map[string]bool)
	if len(targets) == 0 {
		return noted, nil
	}
	found, err := readTexts(tx.QueryContext(ctx, "SELECT target FROM bc_audit_log WHERE target IN (?) AND details LIKE ?",
		bun.List(targets), note+":%"))
	for _, target := range found {
		noted[target] = true
	}
	return noted, err
}
