package claim_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/store"
)

// log is the consume log of the fixture's database.
func (f fixture) log() store.Log {
	f.t.Helper()
	log, err := store.OpenLog(f.db)
	require.NoError(f.t, err)
	return log
}

// waiting adds events of one aggregate, and a delivery of each to the consumer C, which is PENDING and due.
func (f fixture) waiting(aggregate string, ids ...string) {
	f.t.Helper()
	for _, id := range ids {
		f.putOff("C", id, aggregate, "PENDING")
		f.set(id, "next_retry_at = "+f.d.Now)
	}
}

// set changes the delivery of an event.
func (f fixture) set(id, columns string, args ...any) {
	f.t.Helper()
	_, err := f.db.ExecContext(f.t.Context(), "UPDATE bc_event_consume_log SET "+columns+" WHERE event_id = ?", append(args, id)...)
	require.NoError(f.t, err)
}

// fromLog claims for the consumer C, at most ten deliveries of each state unless q says something else, and lists their events.
func (f fixture) fromLog(owner string, q claim.LogQuery) (claim.Leased, []string) {
	f.t.Helper()
	q.Gate.Consumer, q.Gate.Types, q.Gate.Ordered, q.Gate.Owner = "C", []string{"a.b"}, true, owner
	q.Types, q.Lease = q.Gate.Types, time.Hour
	if q.Limits == (claim.Limits{}) {
		q.Limits = claim.Limits{Failed: 10, Pending: 10, Processing: 10}
	}
	leased, err := claim.FromLog(f.t.Context(), f.db, f.log(), q)
	require.NoError(f.t, err)
	ids := []string{}
	for _, d := range leased.Deliveries {
		ids = append(ids, d.EventID)
	}
	return leased, ids
}

// A claim leases what is due, of the types that it names, and no more than it has room for of each state. It counts nothing.
func TestDueDeliveriesAreLeased(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		for _, id := range []string{"pending1", "pending2", "failed", "expired", "later", "othertype", "dead"} {
			f.waiting(id, id)
		}
		f.set("failed", "status = 'FAILED', attempts = 3")
		f.set("expired", "status = 'PROCESSING', started = 1, locked_by = 'dead one', lock_version = 5")
		f.set("later", "next_retry_at = "+f.d.After, dialect.Micro(time.Hour))
		f.set("othertype", "event_type = 'c.d'")
		f.set("dead", "status = 'DEAD'")
		some, ids := f.fromLog("me", claim.LogQuery{Limits: claim.Limits{Failed: 10, Pending: 1}})
		require.Equal(f.t, claim.Limits{Failed: 1, Pending: 1}, some.Found)
		require.Equal(f.t, []string{"pending1", "failed"}, ids, "in outbox order")
		require.Equal(f.t, []int{1, 4}, []int{some.Deliveries[0].Attempts, some.Deliveries[1].Attempts}, "the number of the run to come")
		require.Equal(f.t, []store.Status{store.Pending, store.Failed}, []store.Status{some.Deliveries[0].Before, some.Deliveries[1].Before})
		require.Equal(f.t, "PROCESSING me 1 3", f.delivery("failed"))

		_, ids = f.fromLog("me", claim.LogQuery{DueFor: time.Hour})
		require.Empty(f.t, ids, "nothing has been due for so long")
		rest, ids := f.fromLog("me", claim.LogQuery{})
		require.Equal(f.t, []string{"pending2", "expired"}, ids)
		require.True(f.t, rest.Deliveries[1].Suspect, "the process that died may have started it")
		require.EqualValues(f.t, 6, rest.Deliveries[1].Version)
		_, ids = f.fromLog("me", claim.LogQuery{})
		require.Empty(f.t, ids)
	})
}

// A run that was counted before it began, and of which nobody has heard, is in the history when the next instance claims it.
func TestRunsWithoutAnAnswerAreRecorded(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		f.waiting("1", "a")
		before, _ := f.fromLog("dead one", claim.LogQuery{})
		require.NoError(f.t, f.log().StartCounted(f.t.Context(), "dead one", before.Deliveries[0]))
		f.set("a", "next_retry_at = "+f.d.Now)
		now, _ := f.fromLog("me", claim.LogQuery{})
		require.Len(f.t, now.Deliveries, 1)
		require.Equal(f.t, 2, now.Deliveries[0].Attempts)
		require.True(f.t, now.Deliveries[0].Suspect)
		var n int
		var outcome, why, instance string
		require.NoError(f.t, f.db.QueryRowContext(f.t.Context(), "SELECT attempt, outcome, error_message, instance FROM bc_delivery_attempt").
			Scan(&n, &outcome, &why, &instance))
		require.Equal(f.t, []any{1, "PROCESSING", "the attempt ended without an answer", "dead one"}, []any{n, outcome, why, instance})
	})
}

// What an earlier event of its aggregate blocks is put off, as it was. It runs when that is out of its way.
func TestWhatIsBlockedIsPutOff(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		f.waiting("1", "first", "second")
		both, ids := f.fromLog("me", claim.LogQuery{})
		require.Equal(f.t, []string{"first", "second"}, ids, "what it has leased itself runs before")
		require.NoError(f.t, f.log().PutBack(f.t.Context(), "me", 0, both.Deliveries...))
		f.set("first", "status = 'DEAD', next_retry_at = NULL")
		none, ids := f.fromLog("me", claim.LogQuery{})
		require.Empty(f.t, ids)
		require.Equal(f.t, claim.Limits{Pending: 1}, none.Found)
		require.Equal(f.t, "PENDING  4 0", f.delivery("second"))
		require.False(f.t, f.isDue("second"))
		f.set("second", "next_retry_at = "+f.d.Now)
		_, ids = f.fromLog("me", claim.LogQuery{Gate: store.Gate{PassDead: true}})
		require.Equal(f.t, []string{"second"}, ids)
	})
}

// Where one of each aggregate is wanted, those behind it are put off, and are not leased.
func TestOneOfEachAggregateIsLeased(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		f.waiting("1", "first", "second")
		f.waiting("2", "alone")
		_, ids := f.fromLog("me", claim.LogQuery{OneEach: true})
		require.Equal(f.t, []string{"first", "alone"}, ids)
		require.Equal(f.t, "PENDING  0 0", f.delivery("second"))
		require.False(f.t, f.isDue("second"))
	})
}

// What was left to other instances is claimed by the ids of its rows only.
func TestWhatWasLeftIsClaimedByItsID(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		f.waiting("1", "a")
		old, _ := f.fromLog("old", claim.LogQuery{})
		require.NoError(f.t, f.log().Leave(f.t.Context(), "old", old.Deliveries...))
		_, ids := f.fromLog("me", claim.LogQuery{})
		require.Empty(f.t, ids)
		_, ids = f.fromLog("me", claim.LogQuery{Left: []int64{old.Deliveries[0].ID}})
		require.Equal(f.t, []string{"a"}, ids)
	})
}

// What a claim has put off is woken after it if what was in the way has ended meanwhile, and only then.
func TestWhatRunsElsewhereIsNotWoken(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		f.waiting("1", "first", "running")
		f.waiting("2", "alone")
		f.set("running", "status = 'PROCESSING', locked_by = 'elsewhere', next_retry_at = "+f.d.After, dialect.Micro(time.Hour))
		f.set("first", "created_at = "+f.d.After, dialect.Micro(-time.Hour)) // old enough to be put off for a while
		leased, ids := f.fromLog("me", claim.LogQuery{})
		require.Equal(f.t, []string{"alone"}, ids)
		require.Zero(f.t, leased.Woken)
		require.False(f.t, f.isDue("first"))
	})
}

// What is put off behind nothing, because a process died before it could wake it, is woken; what has a reason to wait is not.
func TestForgottenDeliveriesAreWoken(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		f.waiting("1", "forgotten")
		f.waiting("2", "first", "blocked")
		f.waiting("3", "left")
		for _, id := range []string{"forgotten", "blocked"} {
			f.set(id, "next_retry_at = "+f.d.After, dialect.Micro(time.Hour))
		}
		f.set("left", "next_retry_at = "+f.d.Never)
		gate := store.Gate{Consumer: "C", Types: []string{"a.b"}, Ordered: true, Owner: "me"}
		woken, err := claim.WakeForgotten(f.t.Context(), f.db, f.log(), gate)
		require.NoError(f.t, err)
		require.Equal(f.t, 1, woken)
		require.Equal(f.t, []bool{true, false, false}, []bool{f.isDue("forgotten"), f.isDue("blocked"), f.isDue("left")})
	})
}
