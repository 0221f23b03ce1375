package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// Open events are counted by why they are open, each kind up to a limit; what is leased, done or not due is not among them.
func TestOpenEventsAreCountedByKind(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		ask, ctx := store.NewConditions(f.d), f.t.Context()
		f.everyKind()
		f.put("dead", "DEAD", 0, 1)
		f.waiting("dead delivery", "9")
		f.set("dead delivery", "status = 'DEAD'")
		testdb.Exec(f.t, f.db, "UPDATE bc_outbox_event SET status = 'DEAD' WHERE event_id = 'dead delivery'")
		testdb.Exec(f.t, f.db, "UPDATE bc_outbox_event SET last_error = 'no consumer' WHERE status = 'SCHEDULED' AND lock_version > 0")
		testdb.Exec(f.t, f.db, "UPDATE bc_outbox_event SET created_at = "+f.d.After, -dialect.Micro(time.Hour))
		open := func(most int) map[store.OpenKind]int64 {
			found, err := ask.OpenEvents(ctx, f.db, most)
			require.NoError(f.t, err)
			counts := make(map[store.OpenKind]int64)
			for _, o := range found {
				require.Equal(f.t, "a.b", o.EventType)
				counts[o.Kind] = o.Count
			}
			return counts
		}
		require.Equal(f.t, map[store.OpenKind]int64{
			store.OpenNew: 3, store.OpenLeased: 2, store.OpenDue: 1, store.OpenParked: 2, store.OpenDead: 1,
		}, open(10))
		require.Equal(f.t, map[store.OpenKind]int64{
			store.OpenNew: 1, store.OpenLeased: 1, store.OpenDue: 1, store.OpenParked: 1, store.OpenDead: 1,
		}, open(1))
	})
}

// The registry tells who is paused, the audit log since when, and the newest deliveries when the last ended well.
func TestWhatTheRegistryAndTheLogSay(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		ask, ctx := store.NewConditions(d), t.Context()
		testdb.Exec(t, db, "INSERT INTO bc_consumer (name, event_types, aliases, paused_until, paused_by) VALUES ('A', '[]', '[]', "+d.After+
			", 'ann'), ('B', '[]', '[]', "+d.After+", 'bob')", dialect.Micro(time.Hour), -dialect.Micro(time.Hour))
		consumers, err := ask.Consumers(ctx, db)
		require.NoError(t, err)
		require.Len(t, consumers, 2)
		require.Equal(t, store.ConsumerState{Name: "A", IsPaused: true, PausedBy: "ann", Seen: consumers[0].Seen}, consumers[0])
		require.False(t, consumers[1].IsPaused, "the pause is over")
		require.Positive(t, consumers[1].Seen)
		for i, action := range []string{"pause", "pause", "resume"} {
			testdb.Exec(t, db, "INSERT INTO bc_audit_log (actor, action, target, reason, created_at) VALUES ('ann', ?, 'A', 'a test', "+d.At+")",
				action, int64(i+1)*1_000_000)
		}
		since, err := ask.PausedSince(ctx, db, []string{"A", "B"})
		require.NoError(t, err)
		require.Equal(t, map[string]int64{"A": 2_000_000}, since)

		last := func(among int) int64 {
			at, err := ask.LastDelivered(ctx, db, among)
			require.NoError(t, err)
			return at
		}
		require.Zero(t, last(10))
		addDelivery(t, db, d, "a", "A", "SUCCESS", 0)
		addDelivery(t, db, d, "b", "A", "DEAD", 0)
		testdb.Exec(t, db, "UPDATE bc_event_consume_log SET consumed_at = "+d.At, int64(5_000_000))
		require.EqualValues(t, 5_000_000, last(10))
		require.Zero(t, last(1), "the newest one is DEAD")
	})
}

// Queues are measured by event type, with what does not count and what waits for another release.
func TestQueuesAreMeasured(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		ask := store.NewConditions(d)
		for i, attempts := range []int{0, 0, 3} {
			addDelivery(t, db, d, fmt.Sprint("f", i), "A", "FAILED", time.Hour)
			testdb.Exec(t, db, "UPDATE bc_event_consume_log SET attempts = ? WHERE event_id = ?", attempts, fmt.Sprint("f", i))
		}
		addDelivery(t, db, d, "p", "A", "PENDING", time.Hour)
		addDelivery(t, db, d, "left", "A", "PENDING", time.Hour)
		testdb.Exec(t, db, "UPDATE bc_event_consume_log SET next_retry_at = "+d.Never+" WHERE event_id = 'left'")
		addDelivery(t, db, d, "other", "B", "DEAD", time.Hour)
		measure := func(most int, queues ...store.Queue) map[string]store.QueueState {
			found, err := ask.QueueStates(t.Context(), db, queues, most)
			require.NoError(t, err)
			states := make(map[string]store.QueueState)
			for _, q := range found {
				require.Equal(t, "a.b", q.EventType)
				require.Positive(t, q.Changed)
				states[q.Consumer+" "+q.Status] = q
			}
			return states
		}
		failed, pending := store.Queue{Consumer: "A", Status: "FAILED"}, store.Queue{Consumer: "A", Status: "PENDING"}
		states := measure(10, failed, pending)
		require.Len(t, states, 2)
		is := states["A FAILED"]
		require.Equal(t, []int64{3, 2, 0}, []int64{is.All.Count, is.Uncounted.Count, is.Left.Count})
		require.Equal(t, is.All.Since, is.Uncounted.Since)
		is = states["A PENDING"]
		require.Equal(t, []int64{2, 0, 1}, []int64{is.All.Count, is.Uncounted.Count, is.Left.Count})
		require.EqualValues(t, 1, measure(1, failed)["A FAILED"].All.Count)
		require.Empty(t, measure(10))
	})
}

// Attempts that failed lately are counted by consumer, and so are the newest deliveries with those that succeeded lately.
func TestAttemptsAndSuccessesAreCountedByConsumer(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		ask, ctx := store.NewConditions(d), t.Context()
		for i, ago := range []time.Duration{0, time.Minute, 2 * time.Hour} {
			testdb.Exec(t, db, "INSERT INTO bc_delivery_attempt (consumer_name, event_id, attempt, outcome, instance, duration_us, created_at) "+
				"VALUES ('A', ?, 1, 'FAILED', 'me', 1, "+d.After+")", fmt.Sprint(i), -dialect.Micro(ago))
		}
		failed, err := ask.FailedAttempts(ctx, db, time.Hour, 10)
		require.NoError(t, err)
		require.EqualValues(t, 2, failed["A"].Count)
		require.Positive(t, failed["A"].Since)
		failed, err = ask.FailedAttempts(ctx, db, time.Hour, 1)
		require.NoError(t, err)
		require.EqualValues(t, 1, failed["A"].Count)

		addDelivery(t, db, d, "old", "A", "SUCCESS", 3*time.Hour)
		addDelivery(t, db, d, "new", "A", "SUCCESS", 2*time.Hour)
		addDelivery(t, db, d, "dead", "A", "DEAD", time.Hour)
		testdb.Exec(t, db, "UPDATE bc_event_consume_log SET consumed_at = "+d.At, int64(5_000_000))
		testdb.Exec(t, db, "UPDATE bc_event_consume_log SET consumed_at = "+d.At+" WHERE event_id = 'old'", int64(3_000_000))
		newest := func(since int64, among int) store.NewestDeliveries {
			found, err := ask.NewestDeliveries(ctx, db, since, among)
			require.NoError(t, err)
			require.Len(t, found, 1)
			require.Positive(t, found[0].Oldest)
			found[0].Oldest = 0
			return found[0]
		}
		require.Equal(t, store.NewestDeliveries{Consumer: "A", Count: 3, Succeeded: 1}, newest(4_000_000, 10))
		require.Equal(t, store.NewestDeliveries{Consumer: "A", Count: 3, Succeeded: 2}, newest(1_000_000, 10))
		require.Equal(t, store.NewestDeliveries{Consumer: "A", Count: 1}, newest(1_000_000, 1))
	})
}
