package view_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/store/view"
)

// Open events are counted by status, of some tenants or all, up to a limit, with when the first that is due was saved.
func TestOpenEventsAreCounted(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		ctx, count := f.t.Context(), must[view.Open](f.t)
		require.Zero(f.t, count(view.CountOpen(ctx, f.Reader, "NEW", nil, 10)).First)
		f.event("a", "NEW", 3*time.Hour)
		f.event("b", "NEW", 2*time.Hour)
		f.event("sent", "SENT", 5*time.Hour)
		f.event("later", "SCHEDULED", -time.Hour)
		f.exec("UPDATE bc_outbox_event SET tenant_id = 7 WHERE event_id = 'b'")
		all := count(view.CountOpen(ctx, f.Reader, "NEW", nil, 10))
		require.Equal(f.t, []int64{2, 2}, []int64{all.Looked, all.Count})
		f.ago(3*time.Hour, all.First)
		f.ago(0, all.At)
		require.EqualValues(f.t, 1, count(view.CountOpen(ctx, f.Reader, "NEW", nil, 1)).Count)
		mine := count(view.CountOpen(ctx, f.Reader, "NEW", []int64{7}, 10))
		require.Equal(f.t, []int64{2, 1}, []int64{mine.Looked, mine.Count})
		f.ago(2*time.Hour, mine.First)
		require.EqualValues(f.t, 1, count(view.CountOpen(ctx, f.Reader, "NEW", []int64{0}, 10)).Count)
		scheduled := count(view.CountOpen(ctx, f.Reader, "SCHEDULED", nil, 10))
		require.EqualValues(f.t, 1, scheduled.Count)
		require.Zero(f.t, scheduled.First, "it is not due")
		delayed := count(view.CountOpen(ctx, f.Reader, "SCHEDULED", []int64{0}, 10))
		require.Equal(f.t, []int64{1, 1}, []int64{delayed.Looked, delayed.Count}, "of some tenants, too")
		require.Zero(f.t, delayed.First, "it is not due")
		require.Zero(f.t, count(view.CountOpen(ctx, f.Reader, "SCHEDULED", []int64{7}, 10)).Count)
		f.event("due", "SCHEDULED", time.Hour)
		delayed = count(view.CountOpen(ctx, f.Reader, "SCHEDULED", []int64{0}, 10))
		require.EqualValues(f.t, 2, delayed.Count)
		f.ago(time.Hour, delayed.First)
		delayed = count(view.CountOpen(ctx, f.Reader, "SCHEDULED", []int64{0}, 1))
		require.EqualValues(f.t, 1, delayed.Count)
		f.ago(time.Hour, delayed.First) // what is due is looked at first

		grown := must[view.Growth](f.t)(view.Grown(ctx, f.Reader, 2))
		require.Equal(f.t, []int64{5, 0, 2}, []int64{grown.LastEvent, grown.LastDelivery, grown.Open})
	})
}

// An event that was delayed has been due since it fell due, and once it is in the log since the first of its deliveries that waits.
func TestOpenEventsAreOldSinceTheyFellDue(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		first := func(status string, want time.Duration) {
			f.t.Helper()
			for _, tenants := range [][]int64{nil, {0}} {
				f.ago(want, must[view.Open](f.t)(view.CountOpen(f.t.Context(), f.Reader, status, tenants, 10)).First)
			}
		}
		f.event("due", "SCHEDULED", time.Hour)
		f.exec("UPDATE bc_outbox_event SET created_at = "+f.D.After, -dialect.Micro(24*time.Hour))
		first("SCHEDULED", time.Hour)
		f.exec("UPDATE bc_outbox_event SET status = 'DISPATCHING', updated_at = "+f.D.After, -dialect.Micro(2*time.Hour))
		first("DISPATCHING", 2*time.Hour)
		f.exec("UPDATE bc_outbox_event SET status = 'FAILED', next_retry_at = NULL")
		first("FAILED", 24*time.Hour)
		f.delivery("due", "C", "FAILED", 3*time.Hour)
		first("FAILED", 3*time.Hour)
	})
}

// Queues that are not empty are listed and counted, of some tenants or all, with the age of the oldest delivery.
func TestQueuesAreCounted(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		ctx := f.t.Context()
		f.delivery("a", "C", "FAILED", 3*time.Hour)
		f.delivery("b", "C", "FAILED", 2*time.Hour)
		f.delivery("c", "C", "SUCCESS", time.Hour)
		f.delivery("d", "D", "DEAD", time.Hour)
		f.exec("UPDATE bc_event_consume_log SET tenant_id = 7 WHERE event_id = 'b'")
		queues := must[[]store.Queue](f.t)(view.Queues(ctx, f.Reader))
		failed, dead := store.Queue{Consumer: "C", Status: "FAILED"}, store.Queue{Consumer: "D", Status: "DEAD"}
		require.Equal(f.t, []store.Queue{failed, dead}, queues)
		counts := must[[]view.QueueCount](f.t)
		all := counts(view.CountQueues(ctx, f.Reader, queues, nil, 10))
		require.Len(f.t, all, 2)
		require.Equal(f.t, []any{failed, int64(2), int64(2)}, []any{all[0].Queue, all[0].Looked, all[0].Count})
		require.InDelta(f.t, 3*time.Hour, all[0].Oldest, float64(30*time.Minute))
		require.EqualValues(f.t, 1, counts(view.CountQueues(ctx, f.Reader, queues, nil, 1))[0].Count)
		mine := counts(view.CountQueues(ctx, f.Reader, []store.Queue{failed}, []int64{7}, 10))[0]
		require.Equal(f.t, []int64{2, 1}, []int64{mine.Looked, mine.Count})
		require.InDelta(f.t, 2*time.Hour, mine.Oldest, float64(30*time.Minute))
		require.Empty(f.t, counts(view.CountQueues(ctx, f.Reader, nil, nil, 10)))

		var latest []view.Failed
		require.NoError(f.t, view.FailedOf(ctx, f.Reader, queues, 1, 4, func(d view.Failed) { latest = append(latest, d) }))
		require.Len(f.t, latest, 2)
		f.ago(0, latest[0].At)
		require.Equal(f.t, view.Failed{
			Queue: failed, EventID: "b", EventType: "a.b", Error: "it br", At: latest[0].At, TenantID: 7,
		}, latest[0])
		require.Equal(f.t, "d", latest[1].EventID)
	})
}

// The last success and the last failed attempt of each consumer are found among the newest.
func TestTheLatestOfEachConsumer(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		ctx := f.t.Context()
		f.delivery("a", "C", "SUCCESS", 0)
		f.delivery("b", "D", "DEAD", 0)
		successes := must[map[string]time.Time](f.t)
		found := successes(view.LatestSuccesses(ctx, f.Reader, 10))
		require.Len(f.t, found, 1)
		f.ago(0, found["C"])
		require.Empty(f.t, successes(view.LatestSuccesses(ctx, f.Reader, 1)))
		f.attempt("a", "C", 1, "FAILED")
		f.attempt("b", "C", 2, "FAILED")
		f.attempt("b", "D", 1, "DEAD")
		f.exec("UPDATE bc_delivery_attempt SET error_message = 'the last' WHERE event_id = 'b' AND consumer_name = 'C'")
		said := make(map[string]string)
		for _, a := range must[[]view.Attempt](f.t)(view.LatestErrors(ctx, f.Reader, 10, 100)) {
			said[a.Consumer] = a.Error
		}
		require.Equal(f.t, map[string]string{"C": "the last", "D": "it broke"}, said)
		require.Len(f.t, must[[]view.Attempt](f.t)(view.LatestErrors(ctx, f.Reader, 1, 100)), 1)
	})
}
