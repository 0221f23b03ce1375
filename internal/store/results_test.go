package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
)

// What has become of deliveries, asked in every way.
func TestResultsOfDeliveries(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		ctx, db := f.t.Context(), f.db
		for _, id := range []string{"done", "dead", "failed", "left"} {
			f.waiting(id, id)
		}
		other := f.event("both", "5")
		other.Consumer = "D"
		require.NoError(f.t, f.log.Defer(ctx, db, []store.Delivery{other}, time.Hour))
		other.Consumer = "C"
		require.NoError(f.t, f.log.Defer(ctx, db, []store.Delivery{other}, time.Hour))
		f.set("done", "status = 'SUCCESS', next_retry_at = NULL")
		f.set("dead", "status = 'DEAD', next_retry_at = NULL, error_message = 'no', attempts = 3")
		f.set("failed", "status = 'FAILED', created_at = "+f.d.After, dialect.Micro(-2*time.Hour))
		f.set("left", "next_retry_at = "+f.d.Never)

		all := []string{"done", "dead", "both", "missing"}
		states, err := f.log.States(ctx, db, all)
		require.NoError(f.t, err)
		require.Equal(f.t, map[string]map[string]store.Status{
			"done": {"C": store.Success}, "dead": {"C": store.Dead}, "both": {"C": store.Pending, "D": store.Pending},
		}, states)
		states, err = f.log.States(ctx, db, all, "D")
		require.NoError(f.t, err)
		require.Equal(f.t, map[string]map[string]store.Status{"both": {"D": store.Pending}}, states)
		states, err = f.log.States(ctx, db, nil)
		require.NoError(f.t, err)
		require.Empty(f.t, states)

		sums, err := f.log.Summaries(ctx, db, all)
		require.NoError(f.t, err)
		require.Equal(f.t, map[string]store.Summary{"done": {Rows: 1}, "dead": {Rows: 1, Dead: 1}, "both": {Rows: 2, Waiting: 2}}, sums)

		counts, err := f.log.Counts(ctx, db)
		require.NoError(f.t, err)
		require.Equal(f.t, map[store.Status]int64{store.Success: 1, store.Dead: 1, store.Failed: 1, store.Pending: 3}, counts)

		backlog, err := f.log.Backlog(ctx, db, "C")
		require.NoError(f.t, err)
		require.Equal(f.t, []int64{3, 1}, []int64{backlog.Waiting, backlog.Dead})
		require.InDelta(f.t, 2*time.Hour, backlog.Oldest, float64(10*time.Minute))
		backlog, err = f.log.Backlog(ctx, db, "nobody")
		require.NoError(f.t, err)
		require.Equal(f.t, store.Backlog{}, backlog)

		rows, err := f.log.OfEvents(ctx, db, []string{"left", "dead", "both"})
		require.NoError(f.t, err)
		require.Len(f.t, rows, 4)
		require.Equal(f.t, []any{"dead", "C", "a.b", store.Dead, 3, "no"},
			[]any{rows[0].EventID, rows[0].Consumer, rows[0].EventType, rows[0].Status, rows[0].Attempts, rows[0].Error})
		require.WithinDuration(f.t, time.Now(), rows[0].CreatedAt, 10*time.Minute)
		require.True(f.t, rows[0].NextRetryAt.IsZero())
		require.True(f.t, rows[1].NextRetryAt.IsZero(), "what was left waits for no time")
		require.WithinDuration(f.t, time.Now().Add(time.Hour), rows[2].NextRetryAt, 10*time.Minute)
		rows, err = f.log.OfEvents(ctx, db, nil)
		require.NoError(f.t, err)
		require.Empty(f.t, rows)
	})
}
