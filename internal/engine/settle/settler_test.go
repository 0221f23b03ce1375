package settle_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

const owner, other = "one of two instances", "the other one"

// fixture is a settler and its tables.
type fixture struct {
	*testing.T
	db *bun.DB
	d  dialect.Dialect
	*settle.Settler
}

func newFixture(t *testing.T, db *bun.DB, deleteSent bool) fixture {
	t.Helper()
	d, err := dialect.Of(db)
	require.NoError(t, err)
	return fixture{t, db, d, settle.NewSettler(db, d, prepared.New(db), deleteSent)}
}

func (f fixture) exec(query string, args ...any) {
	f.Helper()
	_, err := f.db.ExecContext(f.Context(), query, args...)
	require.NoError(f, err, query)
}

// event inserts an event that is leased with a lock version, and a delivery for each consumer and state, in turn.
func (f fixture) event(id, leasedBy string, version int64, deliveries ...string) settle.Event {
	f.Helper()
	f.exec("INSERT INTO bc_outbox_event "+
		"(aggregate_type, aggregate_id, event_type, event_id, event_payload, status, locked_by, lock_version, next_retry_at) "+
		"VALUES ('A', ?, 'a.b', ?, '{}', 'DISPATCHING', ?, ?, "+f.d.After+")", id, id, leasedBy, version, dialect.Micro(time.Minute))
	var outboxID int64
	require.NoError(f, f.db.QueryRowContext(f.Context(), "SELECT id FROM bc_outbox_event WHERE event_id = ?", id).Scan(&outboxID))
	e := settle.Event{Lease: dialect.Pair{ID: outboxID, Version: version}, EventID: id}
	for i := 0; i < len(deliveries); i += 2 {
		f.deliver(id, deliveries[i], deliveries[i+1])
		e.Needed = append(e.Needed, deliveries[i])
	}
	return e
}

func (f fixture) deliver(id, consumer, status string) {
	f.Helper()
	f.exec("INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, error_message) VALUES (?, ?, 'a.b', ?, ?)",
		consumer, id, status, consumer+" says why")
}

// row is what a test looks at of an event's row.
type row struct {
	Status, LockedBy, LastError string
	Version                     int64
	Sent, IsDue                 bool
}

// row reads an event. It is zero if there is none.
func (f fixture) row(id string) (r row) {
	f.Helper()
	rows, err := f.db.QueryContext(f.Context(), "SELECT status, COALESCE(locked_by, ''), COALESCE(last_error, ''), lock_version, "+
		"CASE WHEN sent_at IS NULL THEN 0 ELSE 1 END, CASE WHEN next_retry_at <= "+f.d.Now+" THEN 1 ELSE 0 END"+
		" FROM bc_outbox_event WHERE event_id = ?", id)
	require.NoError(f, err)
	defer rows.Close()
	for rows.Next() {
		require.NoError(f, rows.Scan(&r.Status, &r.LockedBy, &r.LastError, &r.Version, &r.Sent, &r.IsDue))
	}
	require.NoError(f, rows.Err())
	return r
}

// Each event ends as its deliveries say, and only what this instance has leased is written.
func TestSettle(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, false)
		certain := f.event("certain", owner, 1)
		certain.Certain, certain.Needed = true, []string{"A"} // no look at the log: it has no row
		laterVersion := f.event("later version", owner, 7)
		laterVersion.Certain = true
		done := f.event("done", owner, 1, "A", "SUCCESS", "B", "SKIPPED")
		failed := f.event("failed", owner, 2, "A", "FAILED", "B", "DEAD")
		dead := f.event("dead", owner, 1, "A", "DEAD")
		waits := f.event("waits", owner, 1, "A", "PENDING")
		spilled := f.event("spilled", owner, 1, "B", "SUCCESS")
		spilled.Certain, spilled.Needed, spilled.Waits = true, []string{"A", "B"}, []string{"B"} // it looks for B alone
		missing := f.event("missing", owner, 1, "A", "FAILED")
		missing.Needed = []string{"A", "B"}
		lostSent, lostRest := f.event("lost, sent", other, 2), f.event("lost, done", other, 2, "A", "SUCCESS")
		lostSent.Certain, lostSent.Lease.Version = true, 1
		lostRest.Lease.Version = 1

		all := []settle.Event{certain, laterVersion, done, failed, dead, waits, spilled, missing, lostSent, lostRest}
		got, err := f.Settle(t.Context(), owner, all, false)
		require.NoError(t, err)
		require.ElementsMatch(t, []int64{lostSent.Lease.ID, lostRest.Lease.ID}, got.Lost)
		require.Equal(t, map[int64]settle.Status{
			certain.Lease.ID: settle.Sent, laterVersion.Lease.ID: settle.Sent, done.Lease.ID: settle.Sent, spilled.Lease.ID: settle.Sent,
			failed.Lease.ID: settle.Failed, dead.Lease.ID: settle.Dead, waits.Lease.ID: settle.Failed, missing.Lease.ID: settle.Scheduled,
		}, got.Status)
		require.Equal(t, row{Status: "SENT", Version: 2, Sent: true}, f.row("certain"))
		require.Equal(t, row{Status: "SENT", Version: 8, Sent: true}, f.row("later version"))
		require.Equal(t, row{Status: "SENT", Version: 2, Sent: true}, f.row("done"))
		require.Equal(t, row{Status: "SENT", Version: 2, Sent: true}, f.row("spilled"))
		require.Equal(t, row{Status: "FAILED", Version: 3, LastError: "B says why"}, f.row("failed"))
		require.Equal(t, row{Status: "DEAD", Version: 2, LastError: "A says why"}, f.row("dead"))
		require.Equal(t, row{Status: "FAILED", Version: 2}, f.row("waits"))
		require.Equal(t, row{Status: "SCHEDULED", Version: 2}, f.row("missing"))
		require.Equal(t, row{Status: "DISPATCHING", Version: 2, LockedBy: other}, f.row("lost, sent"))
		require.Equal(t, row{Status: "DISPATCHING", Version: 2, LockedBy: other}, f.row("lost, done"))
	})
}

// An instance that drains returns what it could not finish at once.
func TestSettleWhileDraining(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, false)
		e := f.event("missing", owner, 1)
		e.Needed = []string{"A"}
		got, err := f.Settle(t.Context(), owner, []settle.Event{e}, true)
		require.NoError(t, err)
		require.Equal(t, settle.New, got.Status[e.Lease.ID])
		require.Equal(t, row{Status: "NEW", Version: 2, IsDue: true}, f.row("missing"))
	})
}

// With deleteSent an event goes when it is SENT, but for one without a consumer: nothing else would tell of it.
func TestSettleDeletesWhatIsSent(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, true)
		certain, untraced, lost := f.event("certain", owner, 1), f.event("untraced", owner, 1), f.event("lost", other, 2)
		done, failed := f.event("done", owner, 2, "A", "SUCCESS"), f.event("failed", owner, 1, "A", "FAILED")
		certain.Certain, certain.Needed = true, []string{"A"}
		lost.Certain, lost.Needed, lost.Lease.Version = true, []string{"A"}, 1
		got, err := f.Settle(t.Context(), owner, []settle.Event{certain, done, failed, untraced, lost}, false)
		require.NoError(t, err)
		require.Equal(t, []int64{lost.Lease.ID}, got.Lost)
		require.NotContains(t, got.Status, lost.Lease.ID)
		require.Zero(t, f.row("certain"))
		require.Zero(t, f.row("done"))
		require.Equal(t, "FAILED", f.row("failed").Status)
		require.Equal(t, row{Status: "SENT", Version: 2, Sent: true}, f.row("untraced"))
		require.Equal(t, other, f.row("lost").LockedBy)
	})
}

// What was settled before the database went away is told, so that nobody does it again.
func TestSettleTellsWhatItHasDoneBeforeAnError(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, false)
		certain, done := f.event("certain", owner, 1), f.event("done", owner, 1, "A", "SUCCESS")
		certain.Certain = true
		hook := &endAfter{word: "sent_at"}
		db.AddQueryHook(hook) //nolint:staticcheck // the settler's own statements are to be seen
		ctx, cancel := context.WithCancel(t.Context())
		hook.end = cancel
		got, err := f.Settle(ctx, owner, []settle.Event{certain, done}, false)
		require.Error(t, err)
		require.Equal(t, map[int64]settle.Status{certain.Lease.ID: settle.Sent}, got.Status)
		require.Equal(t, "DISPATCHING", f.row("done").Status)
	})
}

// Leases that are given back are due again; those that another instance has are left alone.
func TestLeasesThatAreGivenBackAreDue(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, true)
		a, b, lost := f.event("a", owner, 1), f.event("b", owner, 3), f.event("lost", other, 2)
		n, err := f.GiveBack(t.Context(), owner, nil, settle.Return{Status: settle.New})
		require.NoError(t, err)
		require.Zero(t, n)
		n, err = f.GiveBack(t.Context(), owner, []dialect.Pair{a.Lease, lost.Lease}, settle.Return{Status: settle.New})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, row{Status: "NEW", Version: 2, IsDue: true}, f.row("a"))
		parked := settle.Return{Status: settle.Scheduled, Delay: time.Minute, Why: "nobody takes it"}
		_, err = f.GiveBack(t.Context(), owner, []dialect.Pair{b.Lease}, parked)
		require.NoError(t, err)
		require.Equal(t, row{Status: "SCHEDULED", Version: 4, LastError: "nobody takes it"}, f.row("b"))
		require.Equal(t, other, f.row("lost").LockedBy)
	})
}

// A lease is renewed unless it was lost. Of a row that somebody is writing, it is only known that it is still held.
func TestALeaseIsRenewedUnlessItWasLost(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, false)
		a, b, lost := f.event("a", owner, 1), f.event("b", owner, 1), f.event("lost", other, 2)
		leases := []dialect.Pair{a.Lease, b.Lease, lost.Lease}
		renew := func() settle.Renewal {
			r, err := f.Renew(t.Context(), owner, leases, time.Hour)
			require.NoError(t, err)
			require.True(t, r.IsRenewed(a.Lease.ID))
			require.True(t, r.IsLost(lost.Lease.ID))
			require.False(t, r.IsLost(b.Lease.ID))
			return r
		}
		r := renew()
		require.True(t, r.IsRenewed(b.Lease.ID))
		var until int64
		end := "SELECT " + f.d.Micros("next_retry_at") + " FROM bc_outbox_event WHERE event_id = 'a'"
		require.NoError(t, db.QueryRowContext(t.Context(), end).Scan(&until))
		require.InDelta(t, r.Until, until, float64(time.Minute.Microseconds()))
		require.Greater(t, until, time.Now().Add(30*time.Minute).UnixMicro())

		if f.d.Name != "sqlite" { // which has one writer
			tx, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			_, err = tx.ExecContext(t.Context(), "UPDATE bc_outbox_event SET last_error = 'x' WHERE id = ?", b.Lease.ID)
			require.NoError(t, err)
			require.False(t, renew().IsRenewed(b.Lease.ID))
			require.NoError(t, tx.Rollback())
		}
	})
}

// endAfter ends a context once a statement that contains a word has been answered.
type endAfter struct {
	word string
	end  context.CancelFunc
}

func (*endAfter) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

func (h *endAfter) AfterQuery(_ context.Context, ev *bun.QueryEvent) {
	if h.end != nil && strings.Contains(ev.Query, h.word) {
		h.end()
	}
}
