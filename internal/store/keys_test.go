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
	return store.NewKeys(d)
}

// saveKeyed saves events of these ids in a transaction of its own, bun's or a plain one, which ends as end says. It tells which
// were stored.
func saveKeyed(t *testing.T, db *bun.DB, isPlain bool, end error, ids ...string) []string {
	t.Helper()
	d, err := dialect.Of(db)
	require.NoError(t, err)
	stmts := prepared.New(db)
	var events []store.NewEvent
	for _, id := range ids {
		events = append(events, store.NewEvent{
			AggregateType: "A", AggregateID: "1", Type: "a.b", ID: id, Payload: `{}`, Metadata: `{}`, SchemaVersion: 1,
			MaxAttempts: store.DefaultMaxAttempts, Key: id, IsKeyed: true,
		})
	}
	var stored []store.NewEvent
	err = db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) (err error) {
		in := store.BunTx(tx, stmts)
		if isPlain {
			in = store.NativeTx(tx.Tx, d)
		}
		if stored, err = store.NewSaving(d, stmts).Save(ctx, in, events); err != nil {
			return err
		}
		return end
	})
	require.ErrorIs(t, err, end)
	var out []string
	for _, e := range stored {
		out = append(out, e.ID)
	}
	return out
}

// eachTx runs a test on every database with bun's transactions and with plain ones.
func eachTx(t *testing.T, fn func(t *testing.T, db *bun.DB, isPlain bool)) {
	t.Helper()
	for _, isPlain := range []bool{false, true} {
		t.Run(map[bool]string{false: "bun", true: "plain"}[isPlain], func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db *bun.DB) { fn(t, db, isPlain) })
		})
	}
}

// save writes an event by hand, as a release does that does not know the table of keys.
func save(t *testing.T, db *bun.DB, id string) {
	t.Helper()
	exec(t, db, "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload) "+
		"VALUES ('A', '1', 'a.b', ?, '{}')", id)
}

// An event is saved once, and again only if nothing but its key is left: then it was lost.
func TestKeyedEventsAreSavedOnce(t *testing.T) {
	t.Parallel()
	eachTx(t, func(t *testing.T, db *bun.DB, isPlain bool) {
		a, b, c := keyed("a"), keyed("b"), keyed("c")
		require.Equal(t, []string{b, a}, saveKeyed(t, db, isPlain, fmt.Errorf("rolled back"), b, a))
		require.Equal(t, []string{b, a}, saveKeyed(t, db, isPlain, nil, b, a, b), "in the order of the call, and once")
		save(t, db, c)
		require.Empty(t, saveKeyed(t, db, isPlain, nil, c, a))
		exec(t, db, "DELETE FROM bc_outbox_event WHERE event_id = ?", b)
		require.Equal(t, []string{b}, saveKeyed(t, db, isPlain, nil, c, b, a), "nothing else tells of it")
		exec(t, db, "DELETE FROM bc_outbox_event WHERE event_id = ?", b)
		exec(t, db, "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status) VALUES ('A', ?, 'a.b', 'SUCCESS')", b)
		require.Empty(t, saveKeyed(t, db, isPlain, nil, a, b), "b has been delivered")
		exec(t, db, "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status) VALUES ('B', ?, 'a.b', 'FAILED')", b)
		require.Equal(t, []string{b}, saveKeyed(t, db, isPlain, nil, a, b), "a delivery that is not done needs its event")
		exec(t, db, "DELETE FROM bc_outbox_event")
		exec(t, db, "DELETE FROM bc_event_consume_log")
		require.NoError(t, newKeys(t, db).Mark(t.Context(), db, []string{a}))
		require.Equal(t, []string{b}, saveKeyed(t, db, isPlain, nil, a, b), "a is known to have gone")
	})
}

// The key of an event that has gone is known until it is forgotten. Other events have none.
func TestKeysOfRemovedEvents(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		k := newKeys(t, db)
		old, unkeyed := keyed("saved by a release that does not know the table"), uuid.Must(uuid.NewV7()).String()
		require.NotEmpty(t, saveKeyed(t, db, false, nil, keyed("a")))
		exec(t, db, "DELETE FROM bc_outbox_event")
		require.NoError(t, k.Mark(t.Context(), db, []string{old, unkeyed, keyed("a"), "by hand", old}))
		require.NoError(t, k.Mark(t.Context(), db, nil))
		require.Empty(t, saveKeyed(t, db, false, nil, old, keyed("a")))
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
		require.NotEmpty(t, saveKeyed(t, db, false, nil, old))
	})
}

func count(t *testing.T, db *bun.DB) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM bc_event_key").Scan(&n))
	return n
}

// More ids, and more events, than one statement takes.
func TestManyKeys(t *testing.T) {
	t.Parallel()
	eachTx(t, func(t *testing.T, db *bun.DB, isPlain bool) {
		var ids []string
		for i := range 2*dialect.MostIDs + 10 {
			ids = append(ids, keyed(fmt.Sprint(i)))
		}
		require.Equal(t, ids, saveKeyed(t, db, isPlain, nil, ids...))
		require.NoError(t, newKeys(t, db).Mark(t.Context(), db, ids))
		exec(t, db, "DELETE FROM bc_outbox_event")
		require.Empty(t, saveKeyed(t, db, isPlain, nil, ids[len(ids)-20:]...))
	})
}
