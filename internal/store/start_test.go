package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/store"
)

// What is about to run is noted in its row. A run that is alone is counted, once, before it begins.
func TestStartsAreNoted(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		ctx := f.t.Context()
		for _, id := range []string{"a", "b"} {
			f.waiting(id, id)
		}
		f.set("b", "lock_version = 7")
		ds := f.claim("me")
		require.NoError(f.t, f.log.Start(ctx, "other", ds))
		require.Zero(f.t, f.row("a").started)
		require.NoError(f.t, f.log.Start(ctx, "me", ds))
		require.Equal(f.t, []int{1, 1}, []int{f.row("a").started, f.row("b").started})
		require.NoError(f.t, f.log.Start(ctx, "me", ds[:1]))
		require.Equal(f.t, deliveryRow{status: store.Processing, version: 1, started: 1, owner: "me", due: "later"}, f.row("a"))

		counted := deliveryRow{status: store.Processing, attempts: 1, version: 1, started: 2, owner: "me", due: "later", ran: true}
		for range 2 {
			require.NoError(f.t, f.log.StartCounted(ctx, "me", ds[0]))
			require.Equal(f.t, counted, f.row("a"))
		}
		require.ErrorIs(f.t, f.log.StartCounted(ctx, "other", ds[1]), store.ErrLeaseLost)
		require.Equal(f.t, 0, f.row("b").attempts)
	})
}

// A delivery whose handler has no transaction of ours is leased by a row of its own before it runs, unless it has one.
func TestBeginLeasesDeliveriesWithoutARow(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		ctx := f.t.Context()
		a, b := f.event("a", "1"), f.waiting("b", "2")
		begun, err := f.log.Begin(ctx, []store.Delivery{a, b}, "me", time.Hour)
		require.NoError(f.t, err)
		require.Len(f.t, begun, 1)
		lease := begun["a"]
		require.Equal(f.t, []any{1, int64(1), store.Pending, a.OutboxID}, []any{lease.Attempts, lease.Version, lease.Before, lease.OutboxID})
		require.Equal(f.t, deliveryRow{status: store.Processing, version: 1, started: 1, owner: "me", due: "later"}, f.row("a"))
		require.Equal(f.t, deliveryRow{status: store.Pending, due: "now"}, f.row("b"))
		begun, err = f.log.Begin(ctx, []store.Delivery{a}, "other", time.Hour)
		require.NoError(f.t, err)
		require.Empty(f.t, begun)
		require.NoError(f.t, f.log.PutBack(ctx, "me", 0, lease))

		begun, err = f.log.BeginCounted(ctx, f.event("c", "3"), "me", time.Hour)
		require.NoError(f.t, err)
		require.Len(f.t, begun, 1)
		counted := deliveryRow{status: store.Processing, attempts: 1, version: 1, started: 2, owner: "me", due: "later", ran: true}
		require.Equal(f.t, counted, f.row("c"))
		require.NoError(f.t, f.log.PutBack(ctx, "me", 0, begun["c"]))
		require.Equal(f.t, deliveryRow{status: store.Pending, version: 2, started: 0, due: "now", ran: true}, f.row("c"))
	})
}
