package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

type bulks struct {
	store.BulkOperations

	t  *testing.T
	db *bun.DB
	d  dialect.Dialect
}

// eachBulk runs a test on every database, which has two events and the operation "op" about both.
func eachBulk(t *testing.T, fn func(f bulks)) {
	t.Helper()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		f := bulks{store.NewBulkOperations(d), t, db, d}
		addEvent(t, db, d, "a", "DEAD", 0)
		addEvent(t, db, d, "b", "DEAD", 0)
		f.inTx(func(ctx context.Context, tx bun.Tx) error {
			return f.Insert(ctx, tx, store.NewBulk{
				ID: "op", Action: "retry", Request: "{}", Actor: "ann", Reason: "a test", Total: 2, HasMore: true,
			})
		})
		fn(f)
	})
}

func (f bulks) inTx(fn func(ctx context.Context, tx bun.Tx) error) {
	f.t.Helper()
	require.NoError(f.t, f.db.RunInTx(f.t.Context(), f.d.ReadCommitted(), fn))
}

// bulkRow is what a test looks at in an operation.
type bulkRow struct {
	state, owner, cursor string
	version              int64
	seen, done, passed   int64
	isFinished           bool
	err                  string
}

func (f bulks) row() (r bulkRow) {
	f.t.Helper()
	require.NoError(f.t, f.db.QueryRowContext(f.t.Context(), "SELECT state, COALESCE(locked_by, ''), next_cursor, lock_version, seen, done, "+
		"passed, CASE WHEN finished_at IS NULL THEN 0 ELSE 1 END, COALESCE(error_message, '') FROM bc_bulk_operation").
		Scan(&r.state, &r.owner, &r.cursor, &r.version, &r.seen, &r.done, &r.passed, &r.isFinished, &r.err))
	return r
}

// An operation is about the events that there are when it starts, and RUNNING.
func TestABulkOperationIsAboutTheEventsThatExist(t *testing.T) {
	t.Parallel()
	eachBulk(t, func(f bulks) {
		last := addEvent(f.t, f.db, f.d, "c", "DEAD", 0)
		var upTo, total int64
		var more bool
		require.NoError(f.t, f.db.QueryRowContext(f.t.Context(), "SELECT up_to, total, total_more FROM bc_bulk_operation").
			Scan(&upTo, &total, &more))
		require.Equal(f.t, []any{last - 1, int64(2), true}, []any{upTo, total, more})
		require.Equal(f.t, "RUNNING", f.row().state)
	})
}

// One instance at a time works on an operation, under a version; who has lost it neither locks nor ends it.
func TestABulkOperationHasOneOwner(t *testing.T) {
	t.Parallel()
	eachBulk(t, func(f bulks) {
		ctx := f.t.Context()
		lease := func(owner string, version int64) bool {
			done, err := f.Lease(ctx, f.db, store.BulkLease{ID: "op", Owner: owner, Version: version}, time.Hour)
			require.NoError(f.t, err)
			return done
		}
		holds := func(owner string, version int64) (yes bool) {
			f.inTx(func(ctx context.Context, tx bun.Tx) (err error) {
				yes, err = f.Lock(ctx, tx, store.BulkLease{ID: "op", Owner: owner, Version: version})
				return err
			})
			return yes
		}
		version := f.row().version
		require.False(f.t, lease("me", version+5), "of another version")
		require.True(f.t, lease("me", version))
		require.False(f.t, lease("other", version+1), "it is leased")
		require.True(f.t, holds("me", version+1))
		require.False(f.t, holds("other", version+1))
		require.False(f.t, holds("me", version))
		require.NoError(f.t, f.Release(ctx, f.db, store.BulkLease{ID: "op", Owner: "other", Version: version + 1}))
		require.Equal(f.t, "me", f.row().owner)
		testdb.Exec(f.t, f.db, "UPDATE bc_bulk_operation SET locked_until = "+f.d.After, -dialect.Micro(time.Minute))
		require.True(f.t, lease("other", version+1), "the lease has run out")
		require.NoError(f.t, f.Release(ctx, f.db, store.BulkLease{ID: "op", Owner: "other", Version: version + 2}))
		require.Empty(f.t, f.row().owner)
	})
}

// Progress adds up, and the last of it ends the operation.
func TestABulkOperationKeepsItsProgress(t *testing.T) {
	t.Parallel()
	eachBulk(t, func(f bulks) {
		save := func(p store.BulkProgress) {
			f.inTx(func(ctx context.Context, tx bun.Tx) error { return f.Save(ctx, tx, "op", p, time.Hour) })
		}
		_, err := f.Lease(f.t.Context(), f.db, store.BulkLease{ID: "op", Owner: "me"}, time.Hour)
		require.NoError(f.t, err)
		save(store.BulkProgress{Cursor: "x", Done: 2, Passed: 1})
		require.Equal(f.t, bulkRow{state: "RUNNING", owner: "me", cursor: "x", version: 1, seen: 3, done: 2, passed: 1}, f.row())
		save(store.BulkProgress{Cursor: "y", Done: 1, IsOver: true})
		require.Equal(f.t, bulkRow{state: "DONE", cursor: "y", version: 1, seen: 4, done: 3, passed: 1, isFinished: true}, f.row())
	})
}

// Who cancels, resumes or fails an operation takes the lease from whoever works on it.
func TestABulkOperationIsStoppedAndResumed(t *testing.T) {
	t.Parallel()
	eachBulk(t, func(f bulks) {
		ctx, mine := f.t.Context(), store.BulkLease{ID: "op", Owner: "me"}
		_, err := f.Lease(ctx, f.db, mine, time.Hour)
		require.NoError(f.t, err)
		change := func(to func(context.Context, bun.Tx, string, []string) (bool, error), from ...string) (done bool) {
			f.inTx(func(ctx context.Context, tx bun.Tx) (err error) { done, err = to(ctx, tx, "op", from); return err })
			return done
		}
		require.False(f.t, change(f.Cancel, "FAILED"))
		require.True(f.t, change(f.Cancel, "FAILED", "RUNNING"))
		require.Equal(f.t, bulkRow{state: "CANCELED", version: 2, isFinished: true}, f.row())
		mine.Version = 1
		require.NoError(f.t, f.Fail(ctx, f.db, mine, "too late"))
		require.Equal(f.t, "CANCELED", f.row().state, "the lease was lost")
		require.True(f.t, change(f.Resume, "CANCELED", "FAILED"))
		require.Equal(f.t, bulkRow{state: "RUNNING", version: 3}, f.row())
		mine.Version = 3
		require.NoError(f.t, f.Fail(ctx, f.db, mine, "it broke"))
		require.Equal(f.t, bulkRow{state: "FAILED", version: 3, isFinished: true, err: "it broke"}, f.row())
	})
}

// The audit log tells which targets an operation has reached already.
func TestTheAuditLogTellsWhatWasReached(t *testing.T) {
	t.Parallel()
	eachBulk(t, func(f bulks) {
		f.inTx(func(ctx context.Context, tx bun.Tx) error {
			for _, e := range []store.AuditEntry{
				{Actor: "ann", Action: "retry", Target: "a", Reason: "why", Details: "op: 1 of 2"},
				{Actor: "ann", Action: "retry", Target: "b", Reason: "why", Details: "another: 1"},
			} {
				require.NoError(f.t, store.WriteAudit(ctx, tx, f.d, e))
			}
			noted, err := f.Noted(ctx, tx, []string{"a", "b", "c"}, "op")
			require.NoError(f.t, err)
			require.Equal(f.t, map[string]bool{"a": true}, noted)
			noted, err = f.Noted(ctx, tx, nil, "op")
			require.Empty(f.t, noted)
			return err
		})
		require.Equal(f.t, "ORDER/7", store.AggregateTarget("ORDER", "7"))
	})
}
