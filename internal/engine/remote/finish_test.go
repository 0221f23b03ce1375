package remote_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/engine/remote"
	"github.com/bluecone-go/bluecone/internal/faultdb"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/migrations"
)

// What follows the end of a delivery goes on when the caller has gone, but does not wait for ever for a database that is silent.
func TestWhatFollowsTheEndOfADeliveryHasADeadline(t *testing.T) {
	t.Parallel()
	for _, name := range testdb.Dialects() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var hasEnded atomic.Bool
			var after, endless atomic.Int64
			db, err := testdb.ConnectHooked(testdb.DSN(t, name), faultdb.Hook{Before: func(ctx context.Context, s faultdb.Step) error {
				if _, has := ctx.Deadline(); hasEnded.Load() && s.Op != faultdb.Commit && s.Op != faultdb.Rollback { // these have no context
					after.Add(1)
					if !has {
						endless.Add(1)
					}
				}
				return nil
			}, After: func(_ context.Context, s faultdb.Step) error {
				hasEnded.CompareAndSwap(false, s.Op == faultdb.Commit)
				return nil
			}})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			require.NoError(t, migrations.Up(t.Context(), db))
			h := newHouse(t, db)
			h.save("a", "b")
			ds := h.fetch(2)
			require.Len(t, ds, 2)
			for i, end := range []func() error{
				func() error {
					_, err := h.rem.Finish(t.Context(), remote.Finish{Lease: ds[0].Lease, Outcome: remote.Permanent, Error: "no"})
					return err
				},
				func() error {
					_, err := h.rem.FinishAll(t.Context(), []remote.Finish{{Lease: ds[1].Lease, Outcome: remote.Success}})
					return err
				},
			} {
				hasEnded.Store(false)
				after.Store(0)
				endless.Store(0)
				require.NoError(t, end())
				require.Positive(t, after.Load())
				require.LessOrEqual(t, endless.Load(), int64(i), "but for the look at what FinishAll has ended, which is the caller's")
			}
		})
	}
}
