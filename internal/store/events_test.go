package store_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/store"
)

// insert saves events as a producer does, and tells which it has inserted.
func insert(t *testing.T, db *bun.DB, d dialect.Dialect, events ...store.NewEvent) (stored []string, err error) {
	t.Helper()
	err = db.RunInTx(t.Context(), d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) error {
		stmts := prepared.New(db)
		inserted, err := store.NewSaving(d, stmts).Save(ctx, store.BunTx(tx, stmts), events)
		for _, e := range inserted {
			stored = append(stored, e.ID)
		}
		return err
	})
	return stored, err
}

// inserted is the same where nothing may fail.
func inserted(t *testing.T, db *bun.DB, d dialect.Dialect, events ...store.NewEvent) []string {
	t.Helper()
	stored, err := insert(t, db, d, events...)
	require.NoError(t, err)
	return stored
}

func plainEvent(id string) store.NewEvent {
	return store.NewEvent{
		AggregateType: "A", AggregateID: "1", Type: "a.b", ID: id, Payload: `{"n":1}`, Metadata: `{"k":"v"}`, SchemaVersion: 1,
		MaxAttempts: store.DefaultMaxAttempts,
	}
}

// What a producer says of an event is in its row, whether the statement names all columns or leaves them to their defaults.
func TestInsertedEventsAreAsTheirProducersSay(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		require.Equal(t, []string{"plain"}, inserted(t, db, d, plainEvent("plain")))
		full := plainEvent("full")
		full.TenantID, full.StoreID, full.SchemaVersion, full.MaxAttempts = 7, 8, 3, 4
		full.DeliverAt = time.Date(2100, 1, 2, 3, 4, 5, 0, time.UTC)
		full.TraceID, full.Key, full.IsKeyed = "trace", "key", true
		require.Equal(t, []string{"full", "beside"}, inserted(t, db, d, full, plainEvent("beside")))
		rows, err := store.EventsSaved(t.Context(), db, d, 0, "a.b")
		require.NoError(t, err)
		require.Equal(t, []string{"plain", "full", "beside"}, namesOf(rows))
		for _, r := range []int{0, 2} {
			require.Equal(t, []any{"NEW", int64(0), int64(0), 1, 10, map[string]string{"k": "v"}},
				[]any{rows[r].Status, rows[r].TenantID, rows[r].StoreID, rows[r].SchemaVersion, rows[r].MaxAttempts, rows[r].Metadata})
			require.Empty(t, rows[r].Malformed)
		}
		require.Equal(t, []any{"SCHEDULED", int64(7), int64(8), 3, 4, full.DeliverAt.UnixMicro()},
			[]any{rows[1].Status, rows[1].TenantID, rows[1].StoreID, rows[1].SchemaVersion, rows[1].MaxAttempts, rows[1].DueAt})
		var trace, key string
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT trace_id, event_key FROM bc_outbox_event WHERE event_id = 'full'").
			Scan(&trace, &key))
		require.Equal(t, []string{"trace", "key"}, []string{trace, key})
		rows, err = store.EventsSaved(t.Context(), db, d, rows[1].OutboxID, "a.b")
		require.NoError(t, err)
		require.Equal(t, []string{"beside"}, namesOf(rows))
		rows, err = store.EventsSaved(t.Context(), db, d, 0, "another")
		require.NoError(t, err)
		require.Empty(t, rows)
	})
}

// A keyed event is inserted once, in one call and in several; one without a key that exists already is an error.
func TestAKeyedEventIsInsertedOnce(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		keyed := func(id string) store.NewEvent {
			e := plainEvent(id)
			e.Key, e.IsKeyed = "key of "+id, true
			return e
		}
		require.Equal(t, []string{"a"}, inserted(t, db, d, keyed("a"), keyed("a")))
		require.Equal(t, []string{"b"}, inserted(t, db, d, keyed("a"), plainEvent("b")))
		require.Equal(t, []string{"c", "d"}, inserted(t, db, d, keyed("c"), keyed("d")))
		require.Empty(t, inserted(t, db, d, keyed("d")))
		require.Equal(t, 4, countRows(t, db, "bc_outbox_event"))
		_, err := insert(t, db, d, plainEvent("b"))
		require.Equal(t, dialect.Duplicate, dialect.Classify(err))
		committed, err := store.NewSaving(d, prepared.New(db)).Committed(t.Context(), db, []string{"a", "missing"})
		require.NoError(t, err)
		require.True(t, committed["a"])
		require.False(t, committed["missing"])
	})
}

// Events are read as far as they fit, and long texts are whole.
func TestEventsAreReadAsFarAsTheyFit(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		long := plainEvent("long")
		long.Payload = `{"text":"` + strings.Repeat("x", 20<<10) + `"}`
		inserted(t, db, d, plainEvent("short"), long, plainEvent("last"))
		read := func(most int) (names []string, more bool) {
			rows, more, err := store.EventsByID(t.Context(), db, d, []string{"last", "long", "short", "missing"},
				func(bytes int) bool { most -= bytes; return most >= 0 })
			require.NoError(t, err)
			for _, r := range rows {
				require.Empty(t, r.Malformed)
				require.Equal(t, map[string]string{"k": "v"}, r.Metadata)
				want := `{"n":1}`
				if r.ID == "long" {
					want = long.Payload
				}
				require.JSONEq(t, want, string(r.Payload))
			}
			return namesOf(rows), more
		}
		names, more := read(math.MaxInt)
		require.Equal(t, []string{"short", "long", "last"}, names)
		require.False(t, more)
		names, more = read(10 << 10)
		require.Equal(t, []string{"short"}, names)
		require.True(t, more)
	})
}

// A claim takes one event however long it is, and then no more than it has room for.
func TestAClaimReadsLongTextsOfWhatItLocks(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		for _, id := range []string{"a", "b"} {
			long := plainEvent(id)
			long.Payload, long.Metadata = `"`+strings.Repeat("x", 20<<10)+`"`, `["not an object"]`
			inserted(f.t, f.db, f.d, long)
		}
		require.NoError(f.t, f.inTx(func(ctx context.Context, tx bun.Tx) error {
			rows, more, err := f.claims().LockDue(ctx, tx, store.DueNew, store.Cursor{}, 10, 1)
			require.NoError(f.t, err)
			require.True(f.t, more)
			require.Equal(f.t, []string{"a"}, namesOf(rows))
			require.Len(f.t, rows[0].Payload, 20<<10+2)
			require.Contains(f.t, rows[0].Malformed, "event_metadata is not a JSON object")
			return nil
		}))
	})
}
