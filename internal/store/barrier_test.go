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

// Of a token the first word stands: a transaction that is decided to be canceled cannot confirm any more, and the other way round.
func TestTheFirstWordOfABarrierStands(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		b, ctx := store.NewBarriers(d), t.Context()
		require.NoError(t, b.Create(ctx, db))
		require.NoError(t, b.Create(ctx, db), "it is there already")
		confirm := func(token string) (first bool) {
			err := db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) (err error) {
				first, err = store.Commits(ctx, tx, token)
				if err == nil && !first {
					return errRollback // PostgreSQL refuses everything after a duplicate
				}
				return err
			})
			if err != nil {
				require.ErrorIs(t, err, errRollback)
			}
			return first
		}
		decide := func(token string) (state string) {
			inTx(t, db, func(ctx context.Context, tx bun.Tx) {
				var err error
				state, err = b.Decide(ctx, tx, token)
				require.NoError(t, err)
			})
			return state
		}
		require.True(t, confirm("one"))
		require.False(t, confirm("one"))
		require.Equal(t, store.Confirmed, decide("one"))
		require.Equal(t, store.Canceled, decide("two"))
		require.Equal(t, store.Canceled, decide("two"))
		require.False(t, confirm("two"))

		old, err := b.Old(ctx, db, time.Hour, 10)
		require.NoError(t, err)
		require.Empty(t, old)
		testdb.Exec(t, db, "UPDATE bc_barrier SET created_at = "+d.After, -dialect.Micro(2*time.Hour))
		old, err = b.Old(ctx, db, time.Hour, 10)
		require.NoError(t, err)
		require.ElementsMatch(t, []store.Barrier{{Token: "one", State: store.Confirmed}, {Token: "two", State: store.Canceled}}, old)
		require.NoError(t, b.Remove(ctx, db, "one"))
		old, err = b.Old(ctx, db, time.Hour, 10)
		require.NoError(t, err)
		require.Equal(t, []store.Barrier{{Token: "two", State: store.Canceled}}, old)
	})
}
