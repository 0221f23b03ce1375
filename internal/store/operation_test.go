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

// addConsumer registers a consumer for the event type a.b.
func addConsumer(t *testing.T, db *bun.DB, key, name string, replayable int) {
	t.Helper()
	testdb.Exec(t, db, "INSERT INTO bc_consumer (name, display_name, event_types, aliases, replayable) VALUES (?, ?, ?, '[]', ?)",
		key, name, `["a.b"]`, replayable)
	testdb.Exec(t, db, "INSERT INTO bc_consumer_type (consumer_name, event_type) VALUES (?, 'a.b')", key)
}

// A consumer is found by its key or its name, and its key goes first.
func TestAConsumerIsFoundByItsKeyBeforeItsName(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		p := store.NewOperations(d)
		addConsumer(t, db, "k1", "Stock", 0)
		addConsumer(t, db, "Stock", "Other", 1)
		for consumer, want := range map[string]string{"k1": "k1", "Stock": "Stock", "Other": "Stock", "Nobody": ""} {
			key, known, err := p.KeyOf(t.Context(), db, consumer)
			require.NoError(t, err)
			require.Equal(t, want, key, consumer)
			require.Equal(t, want != "", known, consumer)
		}
		for key, want := range map[string][2]bool{"k1": {true, false}, "Stock": {true, true}, "Nobody": {false, false}} {
			registered, err := p.IsRegistered(t.Context(), db, key)
			require.NoError(t, err)
			replayable, err := p.IsReplayable(t.Context(), db, key)
			require.NoError(t, err)
			require.Equal(t, want, [2]bool{registered, replayable}, key)
		}
	})
}

// Operators pause, resume and retire one consumer, and no other.
func TestOperatorsSteerOneConsumerAndNoOther(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		p := store.NewOperations(d)
		addConsumer(t, db, "A", "A", 0)
		addConsumer(t, db, "B", "B", 0)
		paused := func() (keys []string) {
			query := "SELECT name FROM bc_consumer WHERE paused_by = 'me' AND pause_reason = 'why' AND paused_until > " + d.Now
			require.NoError(t, db.NewRaw(query).Scan(t.Context(), &keys))
			return keys
		}
		require.NoError(t, p.PauseConsumer(t.Context(), db, "A", time.Hour, "me", "why"))
		require.Equal(t, []string{"A"}, paused())
		for _, wasPaused := range []bool{true, false} {
			resumed, err := p.ResumeConsumer(t.Context(), db, "A")
			require.NoError(t, err)
			require.Equal(t, wasPaused, resumed)
		}
		require.Empty(t, paused())

		inTx(t, db, func(ctx context.Context, tx bun.Tx) {
			list, err := p.LockTypes(ctx, tx, "A")
			require.NoError(t, err)
			require.JSONEq(t, `["a.b"]`, list)
			require.NoError(t, p.SetTypes(ctx, tx, "A", `[]`))
			n, err := p.RetireTypes(ctx, tx, "A", []string{"a.b", "c.d"})
			require.NoError(t, err)
			require.EqualValues(t, 1, n)
			_, err = p.LockTypes(ctx, tx, "Nobody")
			require.Error(t, err)
		})
		require.Equal(t, 1, countRows(t, db, "bc_consumer_type"))
		require.NoError(t, p.RetireConsumers(t.Context(), db, []string{"B", "B@replay"}))
		require.Equal(t, 1, countRows(t, db, "bc_consumer"))
		require.Zero(t, countRows(t, db, "bc_consumer_type"))
	})
}

// Only deliveries in a state that allows it are changed, of the consumers that are named, if any are.
func TestOnlyDeliveriesInAStateThatAllowsItAreChanged(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		p := store.NewOperations(d)
		for consumer, status := range map[string]string{"Dead": "DEAD", "Failed": "FAILED", "Done": "SUCCESS", "Waits": "PENDING"} {
			addDelivery(t, db, d, "e", consumer, status, 0)
		}
		addDelivery(t, db, d, "other", "Dead", "DEAD", 0)
		testdb.Exec(t, db, "UPDATE bc_event_consume_log SET attempts = 3, started = 2, locked_by = 'x', first_run_at = "+d.Now+
			", next_retry_at = NULL")
		change := func(consumers, states []string, c store.DeliveryChange) (changed []string) {
			inTx(t, db, func(ctx context.Context, tx bun.Tx) {
				var err error
				changed, err = p.ChangeDeliveries(ctx, tx, "e", consumers, states, c)
				require.NoError(t, err)
			})
			return changed
		}
		require.Empty(t, change([]string{"Done"}, []string{"DEAD", "FAILED"}, store.DeliveryChange{To: "PENDING"}))
		skipped := change(nil, []string{"FAILED", "PENDING"}, store.DeliveryChange{To: "SKIPPED", Why: "why"})
		require.ElementsMatch(t, []string{"Failed", "Waits"}, skipped)
		retried := change([]string{"Dead", "Done"}, []string{"DEAD", "FAILED"}, store.DeliveryChange{To: "PENDING", Delay: time.Hour})
		require.Equal(t, []string{"Dead"}, retried)
		counts := make(map[string]int)
		for status, cond := range map[string]string{
			"PENDING": "attempts = 0 AND first_run_at IS NULL AND started = 0 AND locked_by IS NULL AND lock_version = 1" +
				" AND next_retry_at > " + d.Now,
			"SKIPPED": "attempts = 3 AND error_message = 'why' AND next_retry_at IS NULL AND started = 0 AND locked_by IS NULL",
			"SUCCESS": "locked_by = 'x' AND lock_version = 0", "DEAD": "locked_by = 'x' AND event_id = 'other'",
		} {
			counts[status] = countRows(t, db, "bc_event_consume_log WHERE status = '"+status+"' AND "+cond)
		}
		require.Equal(t, map[string]int{"PENDING": 1, "SKIPPED": 2, "SUCCESS": 1, "DEAD": 1}, counts)
	})
}

// What an operator adds leaves deliveries alone that exist.
func TestWhatAnOperatorAddsLeavesRowsThatExist(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		p := store.NewOperations(d)
		addConsumer(t, db, "A", "A", 1)
		addConsumer(t, db, "B", "B", 1)
		id := addEvent(t, db, d, "e", "SENT", 0)
		addDelivery(t, db, d, "e", "A", "SUCCESS", 0)
		for _, isFirst := range []bool{true, false} {
			require.NoError(t, p.AddSkipped(t.Context(), db, id, "A@replay"))
			did, err := p.SkipRegistered(t.Context(), db, id, "why")
			require.NoError(t, err)
			require.Equal(t, isFirst, did)
		}
		require.Equal(t, 3, countRows(t, db, "bc_event_consume_log"))
		require.Equal(t, 1, countRows(t, db, "bc_event_consume_log WHERE consumer_name = 'A' AND status = 'SUCCESS' AND error_message IS NULL"))
		require.Equal(t, 1, countRows(t, db, "bc_event_consume_log WHERE consumer_name = 'B' AND status = 'SKIPPED' AND error_message = 'why'"))
		require.Equal(t, 1, countRows(t, db, "bc_event_consume_log WHERE consumer_name = 'A@replay' AND status = 'SKIPPED' AND outbox_id > 0"))
	})
}
