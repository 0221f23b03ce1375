package store_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
)

// Due deliveries are locked by their state and their types, those first that have been due for longest, and leased for a run to come.
func TestDueDeliveriesAreLockedAndLeased(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		for _, id := range []string{"second", "first", "failed", "started", "later", "othertype"} {
			f.waiting(id, id)
		}
		f.set("first", "next_retry_at = "+f.d.After, dialect.Micro(-time.Hour))
		f.set("failed", "status = 'FAILED', attempts = 3, lock_version = 5")
		f.set("started", "status = 'PROCESSING', started = 1, locked_by = 'dead one'")
		f.set("later", "next_retry_at = "+f.d.After, dialect.Micro(time.Hour))
		f.set("othertype", "event_type = 'c.d'")
		due := func(q store.DueDeliveries) (ids []string) {
			q.Consumer, q.Types = "C", []string{"a.b"}
			require.NoError(f.t, f.log.InTx(f.t.Context(), func(ctx context.Context, tx bun.Tx) error {
				ds, err := f.log.LockDue(ctx, tx, q)
				ids = eventsOf(ds)
				return err
			}))
			return ids
		}
		require.Equal(f.t, []string{"first", "second"}, due(store.DueDeliveries{Status: store.Pending, Limit: 10}))
		require.Equal(f.t, []string{"first"}, due(store.DueDeliveries{Status: store.Pending, Limit: 1}))
		require.Equal(f.t, []string{"first"}, due(store.DueDeliveries{Status: store.Pending, Limit: 10, For: 30 * time.Minute}))
		require.Equal(f.t, []string{"failed"}, due(store.DueDeliveries{Status: store.Failed, Limit: 10}))
		require.Empty(f.t, due(store.DueDeliveries{Status: store.Failed, Limit: 10, Fresh: true}), "runs of it were counted")
		require.Equal(f.t, []string{"started"}, due(store.DueDeliveries{Status: store.Processing, Limit: 10}))

		ds := f.claim("me")
		require.Equal(f.t, []string{"second", "first", "failed", "started"}, eventsOf(ds))
		require.Equal(f.t, []int{1, 4, 1}, []int{ds[0].Attempts, ds[2].Attempts, ds[3].Attempts}, "the number of the run to come")
		require.Equal(f.t, []bool{false, true}, []bool{ds[0].Suspect, ds[3].Suspect})
		require.Equal(f.t, deliveryRow{status: store.Processing, attempts: 3, version: 6, owner: "me", due: "later"}, f.row("failed"))
		require.Empty(f.t, f.claim("me"))
	})
}

// What was left to other instances is never due, and locked only by the ids of its rows.
func TestWhatWasLeftIsLockedByItsID(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		f.waiting("a", "1")
		d := f.claimOne("old")
		require.NoError(f.t, f.log.Leave(f.t.Context(), "old", d))
		require.Equal(f.t, deliveryRow{status: store.Pending, version: 2, due: "never"}, f.row("a"))
		require.Empty(f.t, f.claim("me"))
		for consumer, want := range map[string]int{"C": 1, "D": 0} {
			require.NoError(f.t, f.log.InTx(f.t.Context(), func(ctx context.Context, tx bun.Tx) error {
				ds, err := f.log.LockLeft(ctx, tx, consumer, []int64{d.ID, d.ID + 1})
				require.Len(f.t, ds, want, consumer)
				return err
			}))
		}
		require.ErrorIs(f.t, f.log.Leave(f.t.Context(), "old", d), store.ErrLeaseLost)
	})
}

// A delivery that is put back waits as before, and no run is counted.
func TestWhatIsPutBackWaitsAsBefore(t *testing.T) {
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
