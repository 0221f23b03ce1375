package store_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// eachDB runs a test on every database, in whose words its statements are.
func eachDB(t *testing.T, fn func(t *testing.T, db *bun.DB, d dialect.Dialect)) {
	t.Helper()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		d, err := dialect.Of(db)
		require.NoError(t, err)
		fn(t, db, d)
	})
}

func keyed(name string) string { return uuid.NewSHA1(uuid.NameSpaceOID, []byte(name)).String() }

func newKeys(t *testing.T, db *bun.DB) store.Keys {
	t.Helper()
	d, err := dialect.Of(db)
	require.NoError(t, err)
	return store.NewKeys(d, prepared.New(db))
}

// claim claims in a transaction of its own, which ends as end says.
func claim(t *testing.T, db *bun.DB, end error, ids ...string) map[string]bool {
	t.Helper()
	var absent map[string]bool
	err := db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) (err error) {
		if absent, err = newKeys(t, db).Claim(ctx, tx, ids); err != nil {
			return err
		}
		return end
	})
	require.ErrorIs(t, err, end)
	return absent
}

func save(t *testing.T, db *bun.DB, id string) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, "+
		"event_payload) VALUES ('A', '1', 'a.b', ?, '{}')", id)
	require.NoError(t, err)
}

// An event is absent until it is saved, and again if only its key is left: then it was lost.
func TestClaimTellsWhatToSave(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		a, b, c := keyed("a"), keyed("b"), keyed("c")
		rolledBack := fmt.Errorf("rolled back")
		require.Equal(t, map[string]bool{a: true, b: true}, claim(t, db, rolledBack, b, a))
		require.Equal(t, map[string]bool{a: true, b: true}, claim(t, db, nil, b, a, b))
		save(t, db, a)
		save(t, db, c)                   // by a release that does not know the table
		want := map[string]bool{b: true} // nothing else tells of it
		if db.Dialect().Name().String() != "mysql" {
			want[c] = true // the INSERT of the event leaves the one alone that is there
		}
		require.Equal(t, want, found(claim(t, db, nil, c, b, a)))
		_, err := db.ExecContext(t.Context(), "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status) "+
			"VALUES ('A', ?, 'a.b', 'SUCCESS')", b)
		require.NoError(t, err)
		require.Empty(t, found(claim(t, db, nil, a, b)), "b has been delivered")
		_, err = db.ExecContext(t.Context(), "UPDATE bc_event_consume_log SET status = 'FAILED'")
		require.NoError(t, err)
		require.Equal(t, map[string]bool{b: true}, found(claim(t, db, nil, a, b)), "a delivery that is not done needs its event")
	})
}

// found are the ids that are absent.
func found(absent map[string]bool) map[string]bool {
	for id, is := range absent {
		if !is {
			delete(absent, id)
		}
	}
	return absent
}

// The key of an event that has gone is known until it is forgotten. Other events have none.
func TestKeysOfRemovedEvents(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		k := newKeys(t, db)
		old, unkeyed := keyed("saved by a release that does not know the table"), uuid.Must(uuid.NewV7()).String()
		require.True(t, claim(t, db, nil, keyed("a"))[keyed("a")])
		require.NoError(t, k.Mark(t.Context(), db, []string{old, unkeyed, keyed("a"), "by hand", old}))
		require.NoError(t, k.Mark(t.Context(), db, nil))
		require.Empty(t, found(claim(t, db, nil, old, keyed("a"))))
		require.Equal(t, 2, count(t, db))
		for _, want := range []struct {
			age       int64
			limit     int
			gone, all int
		}{{3_600_000_000, 10, 0, 2}, {-1_000_000, 1, 1, 1}, {-1_000_000, 10, 1, 0}, {-1_000_000, 10, 0, 0}} {
			n, err := k.Forget(t.Context(), db, want.age, want.limit)
			require.NoError(t, err)
			require.Equal(t, want.gone, n)
			require.Equal(t, want.all, count(t, db))
		}
		require.True(t, claim(t, db, nil, old)[old])
	})
}

func count(t *testing.T, db *bun.DB) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM bc_event_key").Scan(&n))
	return n
}

// More ids than one statement takes.
func TestManyKeys(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "sqlite")
	var ids []string
	for i := range 2*dialect.MostIDs + 1 {
		ids = append(ids, keyed(fmt.Sprint(i)))
	}
	require.Len(t, found(claim(t, db, nil, ids...)), len(ids))
	require.NoError(t, newKeys(t, db).Mark(t.Context(), db, ids))
	require.Empty(t, found(claim(t, db, nil, ids...)))
}
