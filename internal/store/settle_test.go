package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

func (f logFixture) settling() store.Settling { return store.NewSettling(f.d, prepared.New(f.db)) }

// lastError reads what an event keeps of its deliveries' errors, and whether it has a time of SENT.
func (f logFixture) lastError(id string) (text string, isSent bool) {
	f.t.Helper()
	require.NoError(f.t, f.db.QueryRowContext(f.t.Context(), "SELECT COALESCE(last_error, ''), CASE WHEN sent_at IS NULL THEN 0 ELSE 1 END "+
		"FROM bc_outbox_event WHERE event_id = ?", id).Scan(&text, &isSent))
	return text, isSent
}

// Only the owner of a lease, under its lock version, prolongs or ends it.
func TestOnlyTheOwnerEndsTheLeaseOfAnEvent(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		s, ctx := f.settling(), f.t.Context()
		a, b := f.event("a", "1"), f.event("b", "2")
		stolen := f.event("stolen", "3")
		testdb.Exec(f.t, f.db, "UPDATE bc_outbox_event SET locked_by = 'other', lock_version = 2 WHERE event_id = 'stolen'")
		all := []dialect.Pair{leaseOf(a), leaseOf(b), leaseOf(stolen)}
		mine := []int64{a.OutboxID, b.OutboxID}
		require.NoError(f.t, f.inTx(func(ctx context.Context, tx bun.Tx) error {
			for _, ask := range []func(context.Context, bun.IDB, string, []dialect.Pair) ([]int64, error){s.Held, s.LockHeld, s.LockHeldAndFree} {
				held, err := ask(ctx, tx, "me", all)
				require.NoError(f.t, err)
				require.Equal(f.t, mine, held)
				held, err = ask(ctx, tx, "other", all)
				require.NoError(f.t, err)
				require.Empty(f.t, held)
			}
			return s.Extend(ctx, tx, mine, -time.Hour)
		}))
		require.Equal(f.t, []string{"now", "later"}, []string{f.eventRow("a").due, f.eventRow("stolen").due})

		f.waiting("failed", "4")
		f.set("failed", "status = 'FAILED', error_message = 'no'")
		failed := f.idOf("failed")
		for id, of := range map[string]struct {
			outboxID int64
			ending   store.Ending
			want     eventRow
			err      string
			isSent   bool
		}{
			"a":      {a.OutboxID, store.Ending{Status: "SENT"}, eventRow{status: "SENT", version: 2, due: "none"}, "", true},
			"b":      {b.OutboxID, store.Ending{Status: "NEW", Delay: time.Hour}, eventRow{status: "NEW", version: 2, due: "later"}, "", false},
			"failed": {failed, store.Ending{Status: "FAILED", Failed: true}, eventRow{status: "FAILED", version: 2, due: "none"}, "no", false},
		} {
			lost, err := s.End(ctx, f.db, "other", []int64{of.outboxID}, 1, of.ending)
			require.NoError(f.t, err)
			require.Equal(f.t, 1, lost)
			lost, err = s.End(ctx, f.db, "me", []int64{of.outboxID, stolen.OutboxID}, 1, of.ending)
			require.NoError(f.t, err)
			require.Equal(f.t, 1, lost, "the one that was stolen")
			require.Equal(f.t, of.want, f.eventRow(id))
			text, isSent := f.lastError(id)
			require.Equal(f.t, []any{of.err, of.isSent}, []any{text, isSent}, id)
		}
		require.Equal(f.t, eventRow{status: "DISPATCHING", owner: "other", version: 2, due: "later"}, f.eventRow("stolen"))

		leases, err := s.Leases(ctx, f.db, []int64{a.OutboxID, stolen.OutboxID, failed, -1})
		require.NoError(f.t, err)
		require.Equal(f.t, map[int64]store.EventLease{
			a.OutboxID: {Status: "SENT", Version: 2}, stolen.OutboxID: {Status: "DISPATCHING", Version: 2, IsLeased: true},
			failed: {Status: "FAILED", Version: 2},
		}, leases)

		done := f.event("done", "5")
		lost, err := s.DeleteHeld(ctx, f.db, "me", []dialect.Pair{leaseOf(done), leaseOf(stolen), leaseOf(a)})
		require.NoError(f.t, err)
		require.Equal(f.t, 2, lost)
		require.Equal(f.t, 4, f.rows("bc_outbox_event"))
		now, err := s.Now(ctx, f.db)
		require.NoError(f.t, err)
		require.WithinDuration(f.t, time.Now(), time.UnixMicro(now), 10*time.Minute)
	})
}

// The status of an event is written under the lock of its row, with what its deliveries say.
func TestStatusOfLockedEvents(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		s := f.settling()
		f.waiting("b", "1")
		f.waiting("a", "2")
		f.set("a", "status = 'DEAD', error_message = 'never'")
		parked := f.put("parked", "SCHEDULED", 0, 1)
		require.NoError(f.t, f.inTx(func(ctx context.Context, tx bun.Tx) error {
			events, err := s.LockEvents(ctx, tx, []string{"a", "b", "unknown"})
			require.NoError(f.t, err)
			require.Equal(f.t, []store.LockedEvent{
				{ID: f.idIn(ctx, tx, "b"), EventID: "b", EventType: "a.b", Status: "DISPATCHING"},
				{ID: f.idIn(ctx, tx, "a"), EventID: "a", EventType: "a.b", Status: "DISPATCHING"},
			}, events)
			require.NoError(f.t, s.SetStatus(ctx, tx, []int64{events[1].ID}, "DEAD"))
			require.NoError(f.t, s.SetStatus(ctx, tx, []int64{events[0].ID}, "SENT"))
			return s.NoteParked(ctx, tx, []int64{parked, events[0].ID}, "nobody takes it")
		}))
		for id, want := range map[string][]any{
			"a": {"DEAD", "never", false}, "b": {"SENT", "", true}, "parked": {"SCHEDULED", "nobody takes it", false},
		} {
			text, isSent := f.lastError(id)
			require.Equal(f.t, want, []any{f.eventRow(id).status, text, isSent}, id)
		}
		require.EqualValues(f.t, 2, f.eventRow("a").version)
		require.NoError(f.t, s.Delete(f.t.Context(), f.db, []int64{parked}))
		require.Equal(f.t, 2, f.rows("bc_outbox_event"))
	})
}

// idIn is the id of an event, asked in a transaction.
func (f logFixture) idIn(ctx context.Context, tx bun.Tx, id string) (outboxID int64) {
	f.t.Helper()
	require.NoError(f.t, tx.QueryRowContext(ctx, "SELECT id FROM bc_outbox_event WHERE event_id = ?", id).Scan(&outboxID))
	return outboxID
}

// The sweep finds FAILED events of which nothing waits, and gives a time to what waits without one.
func TestWhatTheSweepLooksFor(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		s, ctx := f.settling(), f.t.Context()
		for id, status := range map[string]string{"over": "SKIPPED", "dead": "DEAD", "waits": "FAILED"} {
			f.waiting(id, id)
			f.set(id, "status = ?", status)
		}
		testdb.Exec(f.t, f.db, "UPDATE bc_outbox_event SET status = 'FAILED'")
		f.put("without deliveries", "FAILED", 0, 1)
		f.put("sent", "SENT", 0, 1)
		ids, err := s.FailedButNotWaiting(ctx, f.db, 10)
		require.NoError(f.t, err)
		require.ElementsMatch(f.t, []string{"over", "dead", "without deliveries"}, ids)
		ids, err = s.FailedButNotWaiting(ctx, f.db, 2)
		require.NoError(f.t, err)
		require.Len(f.t, ids, 2)

		f.put("parked", "SCHEDULED", 0, 1)
		f.put("leased", "DISPATCHING", 0, 1)
		f.put("new", "NEW", 0, 0)
		f.put("later", "SCHEDULED", time.Hour, 1)
		testdb.Exec(f.t, f.db, "UPDATE bc_outbox_event SET next_retry_at = NULL WHERE event_id <> 'later'")
		f.set("waits", "next_retry_at = NULL")
		f.set("dead", "next_retry_at = NULL")
		require.NoError(f.t, f.inTx(func(ctx context.Context, tx bun.Tx) error {
			require.NoError(f.t, s.DateEvents(ctx, tx))
			return s.DateDeliveries(ctx, tx, []string{"D"})
		}))
		for id, due := range map[string]string{"parked": "now", "leased": "now", "new": "none", "later": "later", "sent": "none"} {
			require.Equal(f.t, due, f.eventRow(id).due, id)
		}
		require.Equal(f.t, "none", f.row("waits").due, "of another consumer")
		require.NoError(f.t, f.inTx(func(ctx context.Context, tx bun.Tx) error { return s.DateDeliveries(ctx, tx, []string{"C", "D"}) }))
		require.Equal(f.t, []string{"now", "none"}, []string{f.row("waits").due, f.row("dead").due})
	})
}
