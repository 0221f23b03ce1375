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

// The ways to save: in bun's transactions, in plain ones, and with all keys entered by one statement.
const (
	inBun      = "bun"
	inPlain    = "plain"
	isTogether = "together"
)

// saveKeyed saves events of these ids in a transaction of its own, which ends as end says. It tells which were stored.
func saveKeyed(t *testing.T, db *bun.DB, way string, end error, ids ...string) (stored []string) {
	t.Helper()
	err := db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
		stored = saveKeyedIn(ctx, t, db, tx, way, ids...)
		return end
	})
	require.ErrorIs(t, err, end)
	return stored
}

func saveKeyedIn(ctx context.Context, t *testing.T, db *bun.DB, tx bun.Tx, way string, ids ...string) (stored []string) {
	t.Helper()
	d, err := dialect.Of(db)
	require.NoError(t, err)
	stmts := prepared.New(db)
	saving, in := store.NewSaving(d, stmts), store.BunTx(tx, stmts)
	switch way {
	case inPlain:
		in = store.NativeTx(tx.Tx, d)
	case isTogether:
		saving = saving.Together()
	}
	var events []store.NewEvent
	for _, id := range ids {
		events = append(events, store.NewEvent{
			AggregateType: "A", AggregateID: "1", Type: "a.b", ID: id, Payload: `{}`, Metadata: `{}`, SchemaVersion: 1,
			MaxAttempts: store.DefaultMaxAttempts, Key: id, IsKeyed: true,
		})
	}
	saved, err := saving.Save(ctx, in, events)
	require.NoError(t, err)
	for _, e := range saved {
		stored = append(stored, e.ID)
	}
	return stored
}

// eachWay runs a test on every database with each way to save.
func eachWay(t *testing.T, fn func(t *testing.T, db *bun.DB, way string)) {
	t.Helper()
	for _, way := range []string{inBun, inPlain, isTogether} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db *bun.DB) { fn(t, db, way) })
		})
	}
}

// save writes an event by hand, as a release does that does not know the table of keys.
func save(t *testing.T, db *bun.DB, id string) {
	t.Helper()
	testdb.Exec(t, db, "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload) "+
		"VALUES ('A', '1', 'a.b', ?, '{}')", id)
}

// An event is saved once, and again only if nothing but its key is left: then it was lost.
func TestKeyedEventsAreSavedOnce(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, db *bun.DB, way string) {
		a, b, c := keyed("a"), keyed("b"), keyed("c")
		require.Equal(t, []string{b, a}, saveKeyed(t, db, way, fmt.Errorf("rolled back"), b, a))
		require.Equal(t, []string{b, a}, saveKeyed(t, db, way, nil, b, a, b), "in the order of the call, and once")
		save(t, db, c)
		require.Empty(t, saveKeyed(t, db, way, nil, c, a))
		testdb.Exec(t, db, "DELETE FROM bc_outbox_event WHERE event_id = ?", b)
		require.Equal(t, []string{b}, saveKeyed(t, db, way, nil, c, b, a), "nothing else tells of it")
		testdb.Exec(t, db, "DELETE FROM bc_outbox_event WHERE event_id = ?", b)
		testdb.Exec(t, db, "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status) VALUES ('A', ?, 'a.b', 'SUCCESS')", b)
		require.Empty(t, saveKeyed(t, db, way, nil, a, b), "b has been delivered")
		testdb.Exec(t, db, "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status) VALUES ('B', ?, 'a.b', 'FAILED')", b)
		require.Equal(t, []string{b}, saveKeyed(t, db, way, nil, a, b), "a delivery that is not done needs its event")
		testdb.Exec(t, db, "DELETE FROM bc_outbox_event")
		testdb.Exec(t, db, "DELETE FROM bc_event_consume_log")
		require.NoError(t, newKeys(t, db).Mark(t.Context(), db, []string{a}))
		require.Equal(t, []string{b}, saveKeyed(t, db, way, nil, a, b), "a is known to have gone")
	})
}

// The key of an event that has gone is known until it is forgotten, whatever it looks like: an inbox and the ledger save events under
// ids that others chose. Other events have none.
func TestKeysOfRemovedEvents(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		k := newKeys(t, db)
		old, unkeyed := keyed("saved by a release that does not know the table"), uuid.Must(uuid.NewV7()).String()
		given := []string{keyed("a"), uuid.Must(uuid.NewV7()).String(), "order:7:paid"}
		require.Len(t, saveKeyed(t, db, inBun, nil, given...), 3)
		testdb.Exec(t, db, "DELETE FROM bc_outbox_event")
		require.NoError(t, k.Mark(t.Context(), db, append([]string{old, unkeyed, "by hand", old}, given...)))
		require.NoError(t, k.Mark(t.Context(), db, nil))
		require.Empty(t, saveKeyed(t, db, inBun, nil, append(given, old)...))
		require.Equal(t, 4, count(t, db))
		for _, want := range []struct {
			age       int64
			limit     int
			gone, all int
		}{{3_600_000_000, 10, 0, 4}, {-1_000_000, 1, 1, 3}, {-1_000_000, 10, 3, 0}, {-1_000_000, 10, 0, 0}} {
			n, err := k.Forget(t.Context(), db, want.age, want.limit)
			require.NoError(t, err)
			require.Equal(t, want.gone, n)
			require.Equal(t, want.all, count(t, db))
		}
		require.NotEmpty(t, saveKeyed(t, db, inBun, nil, old))
	})
}

// Retention marks keys before it removes their events. The key of an event that stays after all is not forgotten, so that it can be
// marked when the event goes later.
func TestKeyOfAnEventThatStaysIsKept(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		k, ids := newKeys(t, db), []string{"gone", "stays"}
		require.Equal(t, ids, saveKeyed(t, db, inBun, nil, ids...))
		require.NoError(t, k.Mark(t.Context(), db, ids))
		testdb.Exec(t, db, "DELETE FROM bc_outbox_event WHERE event_id = 'gone'")
		for _, want := range []int{1, 0} {
			n, err := k.Forget(t.Context(), db, -1_000_000, 1)
			require.NoError(t, err)
			require.Equal(t, want, n)
		}
		require.NoError(t, k.Mark(t.Context(), db, ids))
		testdb.Exec(t, db, "DELETE FROM bc_outbox_event")
		require.Equal(t, []string{"gone"}, saveKeyed(t, db, inBun, nil, ids...))
		n, err := k.Forget(t.Context(), db, -1_000_000, 10)
		require.NoError(t, err)
		require.Equal(t, 1, n)
	})
}

func count(t *testing.T, db *bun.DB) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM bc_event_key").Scan(&n))
	return n
}

// More ids, and more events, than one statement takes.
func TestMoreKeysThanOneStatementTakesAreSaved(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, db *bun.DB, way string) {
		var ids []string
		for i := range 2*dialect.MostIDs + 10 {
			ids = append(ids, keyed(fmt.Sprint(i)))
		}
		require.Equal(t, ids, saveKeyed(t, db, way, nil, ids...))
		require.NoError(t, newKeys(t, db).Mark(t.Context(), db, ids))
		testdb.Exec(t, db, "DELETE FROM bc_outbox_event")
		require.Empty(t, saveKeyed(t, db, way, nil, ids[len(ids)-20:]...))
	})
}

// What somebody else has saved since a transaction's snapshot is not saved again. (SQLite has one writer.)
func TestKeysThatWereSavedMeanwhile(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, db *bun.DB, way string) {
		d, err := dialect.Of(db)
		require.NoError(t, err)
		if d.Name == "sqlite" {
			require.Equal(t, []string{keyed("a")}, saveKeyed(t, db, way, nil, keyed("a")))
			return
		}
		ids := []string{keyed("a"), keyed("b"), keyed("c"), keyed("d")}
		err = db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
			var n int
			if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM bc_event_key").Scan(&n); err != nil {
				return err
			}
			require.Equal(t, []string{ids[1]}, saveKeyed(t, db, inBun, nil, ids[1]))
			require.Equal(t, []string{ids[0], ids[2], ids[3]}, saveKeyedIn(ctx, t, db, tx, way, ids...))
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, 4, count(t, db))
	})
}
