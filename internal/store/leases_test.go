package store_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/store"
)

// A claim leases what is due, of the types that it names, and no more than it has room for of each state. It counts nothing.
func TestClaimLeasesWhatIsDue(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		for _, id := range []string{"pending1", "pending2", "failed", "expired", "later", "othertype", "dead"} {
			f.waiting(id, id)
		}
		f.set("failed", "status = 'FAILED', attempts = 3")
		f.set("expired", "status = 'PROCESSING', started = 1, locked_by = 'dead one', lock_version = 5")
		f.set("later", "next_retry_at = "+f.d.After, time.Hour.Microseconds())
		f.set("othertype", "event_type = 'c.d'")
		f.set("dead", "status = 'DEAD'")
		q := f.query("me")
		q.Limits = claim.Limits{Failed: 10, Pending: 1}
		c := f.claimed(q)
		require.Equal(f.t, claim.Limits{Failed: 1, Pending: 1}, c.Found)
		require.Equal(f.t, []string{"pending1", "failed"}, eventsOf(c.Deliveries))
		require.Equal(f.t, []int{1, 4}, []int{c.Deliveries[0].Attempts, c.Deliveries[1].Attempts}, "the number of the run to come")
		require.Equal(f.t, []store.Status{store.Pending, store.Failed}, []store.Status{c.Deliveries[0].Before, c.Deliveries[1].Before})
		require.Equal(f.t, deliveryRow{status: store.Processing, attempts: 3, version: 1, owner: "me", due: "later"}, f.row("failed"))

		q.Limits = claim.Limits{Failed: 10, Pending: 10, Processing: 10}
		q.DueFor = time.Hour
		require.Empty(f.t, f.claimed(q).Deliveries, "nothing has been due for so long")
		q.DueFor = 0
		c = f.claimed(q)
		require.Equal(f.t, []string{"pending2", "expired"}, eventsOf(c.Deliveries))
		require.True(f.t, c.Deliveries[1].Suspect, "the process that died may have started it")
		require.EqualValues(f.t, 6, c.Deliveries[1].Version)
		require.Empty(f.t, f.claimed(q).Deliveries)
	})
}

// A run that was counted before it began, and of which nobody has heard, is in the history when the next instance claims it.
func TestClaimRecordsRunsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		f.waiting("a", "1")
		require.NoError(f.t, f.log.StartCounted(f.t.Context(), "dead one", f.claimOne("dead one")))
		f.set("a", "next_retry_at = "+f.d.Now)
		d := f.claimOne("me")
		require.Equal(f.t, 2, d.Attempts)
		require.True(f.t, d.Suspect)
		require.Equal(f.t, []attempt{{1, "PROCESSING", "the attempt ended without an answer", "dead one"}}, f.history("a"))
	})
}

// What an earlier event of its aggregate blocks is put off, as it was. It runs when that is out of its way.
func TestClaimPutsOffWhatIsBlocked(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		for _, id := range []string{"first", "second"} {
			f.waiting(id, "1")
		}
		both := f.claim("me")
		require.Equal(f.t, []string{"first", "second"}, eventsOf(both), "what it has leased itself runs before")
		require.NoError(f.t, f.log.PutBack(f.t.Context(), "me", 0, both...))
		f.set("first", "status = 'DEAD', next_retry_at = NULL")
		c := f.claimed(f.query("me"))
		require.Empty(f.t, c.Deliveries)
		require.Equal(f.t, claim.Limits{Pending: 1}, c.Found)
		require.Equal(f.t, deliveryRow{status: store.Pending, version: 4, due: "later"}, f.row("second"))
		q := f.query("me")
		q.Gate.PassDead = true
		f.set("second", "next_retry_at = "+f.d.Now)
		require.Equal(f.t, []string{"second"}, eventsOf(f.claimed(q).Deliveries))
	})
}

// What was left to other instances is never due, and claimed only by the ids of its rows.
func TestClaimTakesWhatWasLeftByItsID(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		f.waiting("a", "1")
		d := f.claimOne("old")
		require.NoError(f.t, f.log.Leave(f.t.Context(), "old", d))
		require.Equal(f.t, deliveryRow{status: store.Pending, version: 2, due: "never"}, f.row("a"))
		require.Empty(f.t, f.claim("me"))
		q := f.query("me")
		q.Left = []int64{d.ID}
		require.Equal(f.t, []string{"a"}, eventsOf(f.claimed(q).Deliveries))
		require.ErrorIs(f.t, f.log.Leave(f.t.Context(), "old", d), store.ErrLeaseLost)
	})
}

// A delivery that is put back waits as before, and no run is counted.
func TestPutBack(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		ctx := f.t.Context()
		for _, id := range []string{"pending", "failed", "counted"} {
			f.waiting(id, id)
		}
		f.set("failed", "status = 'FAILED', attempts = 2")
		ds := f.claim("me")
		counted := ds[slices.IndexFunc(ds, func(d store.Leased) bool { return d.EventID == "counted" })]
		require.NoError(f.t, f.log.StartCounted(ctx, "me", counted))
		require.NoError(f.t, f.log.PutBack(ctx, "me", time.Hour, ds...))
		require.Equal(f.t, deliveryRow{status: store.Pending, version: 2, due: "later"}, f.row("pending"))
		require.Equal(f.t, deliveryRow{status: store.Failed, attempts: 2, version: 2, due: "later"}, f.row("failed"))
		require.Equal(f.t, deliveryRow{status: store.Pending, version: 2, due: "later", ran: true}, f.row("counted"))
		require.ErrorIs(f.t, f.log.PutBack(ctx, "me", 0, ds[0]), store.ErrLeaseLost)
		require.NoError(f.t, f.log.PutBack(ctx, "me", 0))
	})
}

// Only the instance that has the lease marks a delivery SUCCESS, and only once.
func TestFinishNeedsEveryLease(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		for _, id := range []string{"a", "b", "c"} {
			f.waiting(id, id)
		}
		f.set("b", "lock_version = 7")
		ds := f.claim("me")
		finish := func(owner string, ds ...store.Leased) error {
			return f.inTx(func(ctx context.Context, tx bun.Tx) error { return f.log.Finish(ctx, tx, owner, ds) })
		}
		require.ErrorIs(f.t, finish("other", ds...), store.ErrLeaseLost)
		stale := slices.Clone(ds)
		stale[1].Version--
		require.ErrorIs(f.t, finish("me", stale...), store.ErrLeaseLost)
		require.Equal(f.t, store.Processing, f.row("a").status, "all or none")
		require.NoError(f.t, f.log.StartCounted(f.t.Context(), "me", ds[2]))
		require.NoError(f.t, finish("me", ds...))
		require.Equal(f.t, deliveryRow{status: store.Success, attempts: 1, version: 2, due: "none"}, f.row("a"))
		require.Equal(f.t, deliveryRow{status: store.Success, attempts: 1, version: 9, due: "none"}, f.row("b"))
		require.Equal(f.t, deliveryRow{status: store.Success, attempts: 1, version: 2, due: "none", ran: true}, f.row("c"), "it is counted once")
		require.ErrorIs(f.t, finish("me", ds[0]), store.ErrLeaseLost)
	})
}

// Leases are prolonged while they are held. One that has passed to another instance is named.
func TestRenewNamesWhatIsLost(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		ctx := f.t.Context()
		for _, id := range []string{"a", "b"} {
			f.waiting(id, id)
		}
		ds := f.claim("me")
		f.set("a", "next_retry_at = "+f.d.Now)
		f.set("b", "next_retry_at = "+f.d.Now)
		lost, err := f.log.Renew(ctx, "me", time.Hour, ds)
		require.NoError(f.t, err)
		require.Empty(f.t, lost)
		require.Equal(f.t, "later", f.row("a").due)
		f.set("b", "next_retry_at = "+f.d.Now)
		require.Equal(f.t, []string{"b"}, eventsOf(f.claim("other")))
		for _, ask := range []func() ([]int64, error){
			func() ([]int64, error) { return f.log.Renew(ctx, "me", time.Hour, ds) },
			func() ([]int64, error) { return f.log.Lost(ctx, "me", ds) },
		} {
			lost, err = ask()
			require.NoError(f.t, err)
			require.Equal(f.t, []int64{ds[1].ID}, lost)
		}
		require.Equal(f.t, "other", f.row("b").owner)
		lost, err = f.log.Renew(ctx, "me", time.Hour, nil)
		require.NoError(f.t, err)
		require.Empty(f.t, lost)
	})
}

// What a process that has died had leased is due at once, and what it writes later does not count.
func TestExpireEndsTheLeasesOfOneOwner(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		f.waiting("a", "1")
		mine := f.claimOne("dead one")
		f.waiting("b", "2")
		f.claimOne("me")
		require.NoError(f.t, f.log.Expire(f.t.Context(), []string{"other consumer"}, "dead one"))
		require.Equal(f.t, "later", f.row("a").due)
		require.NoError(f.t, f.log.Expire(f.t.Context(), []string{"other consumer", "C"}, "dead one"))
		require.Equal(f.t, "now", f.row("a").due)
		require.Equal(f.t, "later", f.row("b").due)
		require.ErrorIs(f.t, f.inTx(func(ctx context.Context, tx bun.Tx) error {
			return f.log.Finish(ctx, tx, "dead one", []store.Leased{mine})
		}), store.ErrLeaseLost)
		require.Equal(f.t, []string{"a"}, eventsOf(f.claim("me")))
	})
}
