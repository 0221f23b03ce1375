package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/store"
)

// A claim of late events learns of the event that comes behind them, because another instance may be claiming that one. A
// claim of new events has no need to know it. Both learn of what comes before, and of nothing that this instance has leased.
func TestWhatIsInTheWayOfAClaim(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		order := store.NewOrder(d, prepared.New(db))
		for _, id := range []string{"a", "b", "c"} {
			save(t, db, keyed(id))
		}
		var first int64
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT MIN(id) FROM bc_outbox_event").Scan(&first))
		for _, late := range []bool{true, false} {
			found, err := order.LookAround(t.Context(), db, "me", nil, nil, late)
			require.NoError(t, err)
			require.Empty(t, found, "others have locked all that was due")
		}
		look := func(late bool, locked ...int64) store.Around {
			t.Helper()
			found, err := order.LookAround(t.Context(), db, "me", locked[:1], locked, late)
			require.NoError(t, err)
			require.Len(t, found, 1)
			return found[locked[0]]
		}
		require.Equal(t, store.Around{First: first + 1}, look(true, first), "the next one")
		require.Equal(t, store.Around{First: first + 2}, look(true, first, first+1), "the next that it has not locked")
		require.Zero(t, look(true, first, first+1, first+2))
		require.Equal(t, store.Around{First: first}, look(false, first+1), "the one before")
		if got := look(false, first, first+1).First; got != 0 {
			require.Equal(t, first+2, got, "nothing, or what comes behind")
		}
		lease := func(id int64, owner string) {
			t.Helper()
			_, err := db.ExecContext(t.Context(), "UPDATE bc_outbox_event SET status = 'DISPATCHING', locked_by = ?, next_retry_at = "+d.After+
				" WHERE id = ?", owner, int64(3_600_000_000), id)
			require.NoError(t, err)
		}
		lease(first, "me")
		require.Equal(t, store.Around{First: first + 2, LastLeased: first}, look(true, first+1), "my own lease is not in the way, but it may run")
		require.NotEqual(t, first, look(false, first+1).First)
		lease(first, "another")
		require.Equal(t, store.Around{First: first, LastLeased: first}, look(true, first+1))
		require.Equal(t, first, look(false, first+1).First)
	})
}
