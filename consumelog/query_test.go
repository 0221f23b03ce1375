package consumelog_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// What users ask of the log says what stands in its rows.
func TestTheLogAnswersFromItsRows(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		ctx := t.Context()
		d, err := dialect.Of(db)
		require.NoError(t, err)
		log, err := consumelog.New(db)
		require.NoError(t, err)
		counts, err := log.Counts(ctx)
		require.NoError(t, err)
		every := []consumelog.Status{
			consumelog.Pending, consumelog.Processing, consumelog.Failed, consumelog.Success, consumelog.Dead, consumelog.Skipped,
		}
		require.Len(t, counts, len(every), "every state, also without a delivery")
		insert := func(consumer, event string, status consumelog.Status, more string, args ...any) {
			_, err := db.ExecContext(ctx, "INSERT INTO bc_event_consume_log "+
				"(consumer_name, event_id, event_type, status, attempts, idempotency_key, consume_result, error_message, created_at, next_retry_at) "+
				"VALUES (?, ?, 'a.b', ?, 2, 'order-1', '{\"a\":1}', 'no', "+d.After+", "+more+")",
				append([]any{consumer, event, string(status), dialect.Micro(-time.Hour)}, args...)...)
			require.NoError(t, err)
		}
		for _, status := range every {
			insert("C", string(status), status, "NULL")
		}
		insert("C", "left", consumelog.Pending, d.Never)
		insert("D", "left", consumelog.Failed, d.After, dialect.Micro(time.Hour))

		counts, err = log.Counts(ctx)
		require.NoError(t, err)
		require.Equal(t, map[consumelog.Status]int64{
			consumelog.Pending: 2, consumelog.Processing: 1, consumelog.Failed: 2, consumelog.Success: 1, consumelog.Dead: 1, consumelog.Skipped: 1,
		}, counts)
		lag, err := log.Lag(ctx, "C")
		require.NoError(t, err)
		require.Equal(t, []int64{4, 1}, []int64{lag.Waiting, lag.Dead})
		require.InDelta(t, time.Hour, lag.Oldest, float64(10*time.Minute))
		lag, err = log.Lag(ctx, "nobody")
		require.NoError(t, err)
		require.Equal(t, consumelog.Lag{}, lag)

		records, err := log.ByEvents(ctx, "left")
		require.NoError(t, err)
		require.Len(t, records, 2)
		require.True(t, records[0].NextRetryAt.IsZero(), "it waits for an instance that knows its schema version")
		require.WithinDuration(t, time.Now().Add(time.Hour), records[1].NextRetryAt, 10*time.Minute)
		require.WithinDuration(t, time.Now().Add(-time.Hour), records[1].CreatedAt, 10*time.Minute)
		records[1].ID, records[1].CreatedAt, records[1].ConsumedAt, records[1].NextRetryAt = 0, time.Time{}, time.Time{}, time.Time{}
		require.Equal(t, consumelog.Record{
			Consumer: "D", EventID: "left", EventType: "a.b", Status: consumelog.Failed, Attempts: 2,
			IdempotencyKey: "order-1", Result: `{"a":1}`, Error: "no",
		}, records[1])
		records, err = log.ByEvents(ctx)
		require.NoError(t, err)
		require.Empty(t, records)
	})
}

// Each state is one of those on which the engine works, of those that are over, or DEAD.
func TestStatesAreWaitingOrDoneOrDead(t *testing.T) {
	t.Parallel()
	for status, want := range map[consumelog.Status][2]bool{
		consumelog.Pending: {true, false}, consumelog.Processing: {true, false}, consumelog.Failed: {true, false},
		consumelog.Success: {false, true}, consumelog.Skipped: {false, true}, consumelog.Dead: {false, false},
	} {
		require.Equal(t, want, [2]bool{status.Waiting(), status.Done()}, status)
	}
}

// Replays stand in the log under a name of their own, which names the consumer.
func TestNamesOfReplays(t *testing.T) {
	t.Parallel()
	name := consumelog.ReplayName("Billing")
	require.True(t, consumelog.IsReplay(name))
	require.False(t, consumelog.IsReplay("Billing"))
	require.Equal(t, []string{"Billing", "Billing"}, []string{consumelog.ReplayOf(name), consumelog.ReplayOf("Billing")})
}

func TestALogOfNoDatabaseIsAnError(t *testing.T) {
	t.Parallel()
	_, err := consumelog.New(nil)
	require.ErrorContains(t, err, "db is nil: give it the *bun.DB")
}
