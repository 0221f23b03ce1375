package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/store"
)

// attempt is a row of the history.
type attempt struct {
	n                      int
	outcome, err, instance string
}

func (f logFixture) history(id string) (all []attempt) {
	f.t.Helper()
	rows, err := f.db.QueryContext(f.t.Context(), "SELECT attempt, outcome, COALESCE(error_message, ''), instance FROM bc_delivery_attempt "+
		"WHERE event_id = ? ORDER BY id", id)
	require.NoError(f.t, err)
	defer rows.Close()
	for rows.Next() {
		var a attempt
		require.NoError(f.t, rows.Scan(&a.n, &a.outcome, &a.err, &a.instance))
		all = append(all, a)
	}
	require.NoError(f.t, rows.Err())
	return all
}

// The first failure of a delivery makes its row and its history, unless the delivery has a row already.
func TestAFirstFailureMakesTheRowAndTheHistory(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		by := store.Attempt{Instance: "me", Duration: time.Second}
		for _, of := range []struct {
			id      string
			verdict store.Verdict
			want    deliveryRow
			history []attempt
		}{
			{
				"failed",
				store.Verdict{Status: store.Failed, Delay: time.Hour, Error: "no", Counts: true},
				deliveryRow{status: store.Failed, attempts: 1, due: "later", ran: true, err: "no"},
				[]attempt{{1, "FAILED", "no", "me"}},
			},
			{
				"uncounted",
				store.Verdict{Status: store.Failed, Error: "away"},
				deliveryRow{status: store.Failed, due: "now", ran: true, err: "away"},
				[]attempt{{1, "PENDING", "away", "me"}},
			},
			{
				"dead",
				store.Verdict{Status: store.Dead, Error: "never", Counts: true},
				deliveryRow{status: store.Dead, attempts: 1, due: "none", ran: true, err: "never"},
				[]attempt{{1, "DEAD", "never", "me"}},
			},
			{
				"skipped",
				store.Verdict{Status: store.Skipped, Error: "old", Counts: true},
				deliveryRow{status: store.Skipped, attempts: 1, due: "none", ran: true, err: "old"},
				nil,
			},
		} {
			d := f.event(of.id, of.id)
			mine, err := f.log.Fail(f.t.Context(), d, of.verdict, by)
			require.NoError(f.t, err)
			require.True(f.t, mine)
			require.Equal(f.t, of.want, f.row(of.id))
			mine, err = f.log.Fail(f.t.Context(), d, store.Verdict{Status: store.Dead, Error: "twin", Counts: true}, by)
			require.NoError(f.t, err)
			require.False(f.t, mine)
			require.Equal(f.t, of.want, f.row(of.id))
			require.Equal(f.t, of.history, f.history(of.id))
		}
	})
}

// A verdict ends the lease and is one more row of the history. Of a lease that has gone nothing is written.
func TestFailuresOfLeasedDeliveries(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		ctx, by := f.t.Context(), store.Attempt{Instance: "me"}
		f.waiting("a", "1")
		d := f.claimOne("me")
		require.NoError(f.t, f.log.FailLeased(ctx, "me", d, store.Verdict{Status: store.Failed, Error: "no", Counts: true}, by))
		require.Equal(f.t, deliveryRow{status: store.Failed, attempts: 1, version: 2, due: "now", ran: true, err: "no"}, f.row("a"))
		require.ErrorIs(f.t, f.log.FailLeased(ctx, "me", d, store.Verdict{Status: store.Dead, Counts: true}, by), store.ErrLeaseLost)
		require.Equal(f.t, []attempt{{1, "FAILED", "no", "me"}}, f.history("a"))

		d = f.claimOne("me")
		require.Equal(f.t, 2, d.Attempts)
		require.NoError(f.t, f.log.StartCounted(ctx, "me", d))
		require.NoError(f.t, f.log.FailLeased(ctx, "me", d, store.Verdict{Status: store.Pending, Error: "away"}, by))
		require.Equal(f.t, deliveryRow{status: store.Pending, attempts: 1, version: 4, due: "now", ran: true, err: "away"}, f.row("a"),
			"a run that does not count is not counted, though it was counted before it began")

		d = f.claimOne("me")
		require.NoError(f.t, f.log.StartCounted(ctx, "me", d))
		require.NoError(f.t, f.log.FailLeased(ctx, "me", d, store.Verdict{Status: store.Dead, Error: "never", Counts: true}, by))
		require.Equal(f.t, deliveryRow{status: store.Dead, attempts: 2, version: 6, due: "none", ran: true, err: "never"}, f.row("a"))
		require.Equal(f.t, []attempt{{1, "FAILED", "no", "me"}, {2, "PENDING", "away", "me"}, {2, "DEAD", "never", "me"}}, f.history("a"))
	})
}

// The history of a delivery that fails for ever keeps its beginning and its end.
func TestHistoryIsTrimmedInItsMiddle(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		const runs = 25
		f.waiting("a", "1")
		f.waiting("b", "2")
		for range runs {
			for _, d := range f.claim("me") {
				failed := store.Verdict{Status: store.Failed, Counts: true}
				require.NoError(f.t, f.log.FailLeased(f.t.Context(), "me", d, failed, store.Attempt{Instance: "me"}))
			}
		}
		for _, id := range []string{"a", "b"} {
			require.Equal(f.t, runs, f.row(id).attempts)
			var kept []int
			for _, a := range f.history(id) {
				kept = append(kept, a.n)
			}
			require.Equal(f.t, []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25}, kept)
		}
	})
}
