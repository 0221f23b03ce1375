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

// addEvent adds an event that was saved, and sent if it is SENT, an age ago, and tells its outbox id.
func addEvent(t *testing.T, db *bun.DB, d dialect.Dialect, id, status string, age time.Duration) (outboxID int64) {
	t.Helper()
	testdb.Exec(t, db, "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, status, created_at) "+
		"VALUES ('A', '1', 'a.b', ?, '{}', ?, "+d.After+")", id, status, -dialect.Micro(age))
	if status == "SENT" {
		testdb.Exec(t, db, "UPDATE bc_outbox_event SET sent_at = created_at WHERE event_id = ?", id)
	}
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT id FROM bc_outbox_event WHERE event_id = ?", id).Scan(&outboxID))
	return outboxID
}

// addDelivery adds a delivery that has begun an age ago.
func addDelivery(t *testing.T, db *bun.DB, d dialect.Dialect, id, consumer, status string, age time.Duration) {
	t.Helper()
	testdb.Exec(t, db, "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, created_at) "+
		"VALUES (?, ?, 'a.b', ?, "+d.After+")", consumer, id, status, -dialect.Micro(age))
}

// countRows counts the rows of a table.
func countRows(t *testing.T, db *bun.DB, table string) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+table).Scan(&n))
	return n
}

func inTx(t *testing.T, db *bun.DB, fn func(ctx context.Context, tx bun.Tx)) {
	t.Helper()
	require.NoError(t, db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
		fn(ctx, tx)
		return nil
	}))
}

// A page ends at the first event that is too young, and names those that are SENT for long enough.
func TestPagesOfSentEvents(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		r := store.NewRemoval(d)
		first := addEvent(t, db, d, "old", "SENT", 2*time.Hour)
		failed := addEvent(t, db, d, "failed", "FAILED", 2*time.Hour)
		late := addEvent(t, db, d, "sent late", "SENT", 2*time.Hour)
		testdb.Exec(t, db, "UPDATE bc_outbox_event SET sent_at = "+d.Now+" WHERE id = ?", late)
		second := addEvent(t, db, d, "old, too", "SENT", 2*time.Hour)
		addEvent(t, db, d, "young", "SENT", time.Minute)
		addEvent(t, db, d, "old behind a young one", "SENT", 2*time.Hour)

		events, last, err := r.Sent(t.Context(), db, store.Page{Keep: time.Hour, Limit: 2})
		require.NoError(t, err)
		require.Equal(t, failed, last)
		require.Equal(t, []store.OldEvent{{Pair: dialect.Pair{ID: first}, EventID: "old"}}, events)
		events, last, err = r.Sent(t.Context(), db, store.Page{After: last, Keep: time.Hour, Limit: 10})
		require.NoError(t, err)
		require.Equal(t, second, last)
		require.Equal(t, []string{"old, too"}, store.OldEventIDs(events))
		events, last, err = r.Sent(t.Context(), db, store.Page{After: last, Keep: time.Hour, Limit: 10})
		require.NoError(t, err)
		require.Empty(t, events)
		require.Equal(t, second, last)
	})
}

// A row from the future, by its created_at, ends no page: nothing old behind it stays for that. An event of the future goes when it
// was SENT long enough ago, and a delivery stays until its time has come.
func TestRowsFromTheFutureEndNoPage(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		r := store.NewRemoval(d)
		const ahead = -20_000 * time.Hour
		addEvent(t, db, d, "future, open", "FAILED", ahead)
		addEvent(t, db, d, "future, just sent", "SENT", ahead)
		testdb.Exec(t, db, "UPDATE bc_outbox_event SET sent_at = "+d.Now+" WHERE event_id = 'future, just sent'")
		addEvent(t, db, d, "future, sent", "SENT", ahead)
		testdb.Exec(t, db, "UPDATE bc_outbox_event SET sent_at = "+d.After+" WHERE event_id = 'future, sent'", -dialect.Micro(2*time.Hour))
		addEvent(t, db, d, "old", "SENT", 2*time.Hour)
		last := addEvent(t, db, d, "future, last", "NEW", ahead)
		addEvent(t, db, d, "young", "SENT", time.Minute)
		addEvent(t, db, d, "old behind a young one", "SENT", 2*time.Hour)
		events, end, err := r.Sent(t.Context(), db, store.Page{Keep: time.Hour, Limit: 10})
		require.NoError(t, err)
		require.Equal(t, []string{"future, sent", "old"}, store.OldEventIDs(events))
		require.Equal(t, last, end)

		addDelivery(t, db, d, "trace of the future", "A", "SUCCESS", ahead)
		addDelivery(t, db, d, "old trace", "A", "SUCCESS", 2*time.Hour)
		addDelivery(t, db, d, "young trace", "A", "SUCCESS", time.Minute)
		addDelivery(t, db, d, "old trace behind a young one", "A", "SUCCESS", 2*time.Hour)
		events, _, err = r.Traces(t.Context(), db, store.Page{Keep: time.Hour, Limit: 10})
		require.NoError(t, err)
		require.Equal(t, []string{"old trace"}, store.OldEventIDs(events))
	})
}

// Of a page, those events are locked that are as they were when it was read. They go with all that belongs to them.
func TestRemoveSentEvents(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		r := store.NewRemoval(d)
		for _, id := range []string{"goes", "opened again", "written"} {
			addEvent(t, db, d, id, "SENT", 2*time.Hour)
			addDelivery(t, db, d, id, "A", "SUCCESS", 2*time.Hour)
			addDelivery(t, db, d, id, "B", "SKIPPED", 2*time.Hour)
			testdb.Exec(t, db, "INSERT INTO bc_delivery_attempt (consumer_name, event_id, attempt, outcome, instance, duration_us) "+
				"VALUES ('A', ?, 1, 'FAILED', 'x', 0)", id)
		}
		page, _, err := r.Sent(t.Context(), db, store.Page{Keep: time.Hour, Limit: 10})
		require.NoError(t, err)
		require.Len(t, page, 3)
		testdb.Exec(t, db, "UPDATE bc_outbox_event SET status = 'FAILED' WHERE event_id = 'opened again'")
		testdb.Exec(t, db, "UPDATE bc_outbox_event SET lock_version = 5 WHERE event_id = 'written'")
		inTx(t, db, func(ctx context.Context, tx bun.Tx) {
			events, err := r.LockSent(ctx, tx, page)
			require.NoError(t, err)
			require.Equal(t, []string{"goes"}, store.OldEventIDs(events))
			require.NoError(t, r.Remove(ctx, tx, events, true))
			require.NoError(t, r.Remove(ctx, tx, nil, true))
		})
		for table, want := range map[string]int{
			"bc_outbox_event": 2, "bc_event_consume_log": 4, "bc_delivery_attempt": 2,
			"bc_outbox_event_archive": 1, "bc_event_consume_log_archive": 2,
		} {
			require.Equal(t, want, countRows(t, db, table), table)
		}
	})
}

// An event that was deleted when it was SENT leaves its deliveries. They go together, unless one is open or the event was saved
// again.
func TestRemoveTracesOfDeletedEvents(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		r := store.NewRemoval(d)
		for _, id := range []string{"goes", "is open", "exists", "saved again"} {
			addDelivery(t, db, d, id, "A", "SUCCESS", 2*time.Hour)
			addDelivery(t, db, d, id, "B", "SUCCESS", 2*time.Hour)
		}
		addEvent(t, db, d, "exists", "SENT", 2*time.Hour)
		testdb.Exec(t, db, "UPDATE bc_event_consume_log SET status = 'DEAD' WHERE event_id = 'is open' AND consumer_name = 'B'")
		addDelivery(t, db, d, "young", "A", "SUCCESS", time.Minute)
		page, _, err := r.Traces(t.Context(), db, store.Page{Keep: time.Hour, Limit: 100})
		require.NoError(t, err)
		require.Equal(t, []string{"goes", "is open", "saved again"}, store.OldEventIDs(page), "each once")
		addEvent(t, db, d, "saved again", "NEW", 0)
		inTx(t, db, func(ctx context.Context, tx bun.Tx) {
			events, err := r.LockTraces(ctx, tx, page)
			require.NoError(t, err)
			require.Equal(t, []string{"goes"}, store.OldEventIDs(events))
			require.NoError(t, r.Remove(ctx, tx, events, false))
		})
		require.Equal(t, 7, countRows(t, db, "bc_event_consume_log"))
		require.Equal(t, 2, countRows(t, db, "bc_outbox_event"))
		require.Zero(t, countRows(t, db, "bc_event_consume_log_archive"))
	})
}

// The audit log forgets the oldest first, at most so many at a time.
func TestTheAuditLogForgetsTheOldestFirst(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		for _, age := range []time.Duration{3 * time.Hour, 2 * time.Hour, 4 * time.Hour, 0} {
			testdb.Exec(t, db, "INSERT INTO bc_audit_log (actor, action, target, reason, details, created_at) "+
				"VALUES (?, 'a', 't', 'r', '', "+d.After+")",
				age.String(), -dialect.Micro(age))
		}
		for _, want := range []struct{ gone, left int }{{2, 2}, {1, 1}, {0, 1}} {
			n, err := store.NewRemoval(d).ForgetAudit(t.Context(), db, time.Hour, 2)
			require.NoError(t, err)
			require.Equal(t, want.gone, n)
			require.Equal(t, want.left, countRows(t, db, "bc_audit_log"))
		}
	})
}
