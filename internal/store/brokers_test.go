package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// An instance has one row for each broker, which says what it knows now; a number that nobody knows is NULL.
func TestWhatAnInstanceKnowsOfABrokerIsOneRow(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		s, ctx := store.NewBrokers(d), t.Context()
		b := store.Broker{Role: store.RoleInbox, Name: "in", Broker: "nats://host", State: store.BrokerUnknown, Window: 5, Behind: -1}
		require.NoError(t, s.Put(ctx, db, "me", b))
		require.NoError(t, s.Put(ctx, db, "other", b))
		row := func(instance string) (state, said string, behind int64, failed bool) {
			require.NoError(t, db.QueryRowContext(ctx, "SELECT state, COALESCE(last_error, ''), COALESCE(behind, -7), "+
				"CASE WHEN last_error_at < "+d.Now+" THEN 1 ELSE 0 END FROM bc_broker WHERE instance = ?", instance).
				Scan(&state, &said, &behind, &failed))
			return state, said, behind, failed
		}
		state, said, behind, failed := row("me")
		require.Equal(t, []any{store.BrokerUnknown, "", int64(-7), false}, []any{state, said, behind, failed})

		b.Heard(errors.New("no route"), false)
		b.ErrorAt, b.Behind = time.Now().Add(-time.Minute), 3
		require.NoError(t, s.Put(ctx, db, "me", b))
		state, said, behind, failed = row("me")
		require.Equal(t, []any{store.BrokerAway, "no route", int64(3), true}, []any{state, said, behind, failed})
		state, _, _, _ = row("other")
		require.Equal(t, store.BrokerUnknown, state, "the row of another instance is its own")

		require.NoError(t, s.Remove(ctx, db, "me", b))
		require.Equal(t, 1, countRows(t, db, "bc_broker"))
		require.NoError(t, s.Forget(ctx, db, time.Hour))
		require.Equal(t, 1, countRows(t, db, "bc_broker"), "it was written a moment ago")
		testdb.Exec(t, db, "UPDATE bc_broker SET seen_at = "+d.After, -dialect.Micro(2*time.Hour))
		require.NoError(t, s.Forget(ctx, db, time.Hour))
		require.Zero(t, countRows(t, db, "bc_broker"))
	})
}

// What a broker has answered says how it stands. The last error stays when all is well again.
func TestWhatABrokerAnswersSaysHowItStands(t *testing.T) {
	t.Parallel()
	var b store.Broker
	b.Heard(errors.New("bad password"), true)
	require.Equal(t, store.BrokerRefuses, b.State)
	require.Equal(t, "bad password", b.Error)
	b.Heard(nil, false)
	require.Equal(t, store.BrokerConnected, b.State)
	require.Equal(t, "bad password", b.Error)
	b.Failed(errors.New("message too large"))
	require.Equal(t, store.BrokerConnected, b.State, "that says nothing about the way to the broker")
	require.Equal(t, "message too large", b.Error)
	b.Heard(errors.New("timeout"), false)
	require.Equal(t, store.BrokerAway, b.State)
}
