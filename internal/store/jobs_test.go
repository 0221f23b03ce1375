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

// A job is last due when it is added, and adding it again changes nothing; making it due puts its last turn into the past.
func TestAJobHasTurns(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		j, ctx := store.NewJobs(d), t.Context()
		exists := func() bool {
			yes, err := j.Exists(ctx, db, "clean")
			require.NoError(t, err)
			return yes
		}
		makeDue := func() (known bool) {
			require.NoError(t, db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) (err error) {
				known, err = store.MakeJobDue(ctx, tx, d, "clean")
				return err
			}))
			return known
		}
		require.False(t, exists())
		require.False(t, makeDue())
		require.NoError(t, j.Add(ctx, db, "clean"))
		require.True(t, exists())
		turn, err := j.LastDue(ctx, db, "clean")
		require.NoError(t, err)
		require.InDelta(t, turn.Now, turn.LastDue, float64(time.Hour.Microseconds()))
		require.True(t, makeDue())
		require.True(t, makeDue(), "it is known also when it is due already")
		require.NoError(t, j.Add(ctx, db, "clean"))
		turn, err = j.LastDue(ctx, db, "clean")
		require.NoError(t, err)
		require.Equal(t, time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), time.UnixMicro(turn.LastDue).UTC())
	})
}

// One instance at a time has the lease of a job; what it has lost it neither renews nor releases.
func TestAJobHasOneOwner(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		j, ctx := store.NewJobs(d), t.Context()
		require.NoError(t, j.Add(ctx, db, "clean"))
		testdb.Exec(t, db, "UPDATE bc_job_lease SET last_due_at = "+d.At, int64(1_000_000))
		take := func(owner string, version int64, takesTurn bool) bool {
			done, err := j.Lease(ctx, db, store.JobLease{Code: "clean", Owner: owner, Version: version}, time.Hour, takesTurn)
			require.NoError(t, err)
			return done
		}
		turn, err := j.LastDue(ctx, db, "clean")
		require.NoError(t, err)
		v := turn.Version
		require.False(t, take("me", v+1, true))
		require.True(t, take("me", v, false))
		turn, err = j.LastDue(ctx, db, "clean")
		require.NoError(t, err)
		require.Equal(t, []int64{v + 1, 1_000_000}, []int64{turn.Version, turn.LastDue}, "out of turn")
		require.False(t, take("other", v+1, true), "it is leased")
		renew := func(owner string, version int64) bool {
			done, err := j.Renew(ctx, db, store.JobLease{Code: "clean", Owner: owner, Version: version}, time.Hour)
			require.NoError(t, err)
			return done
		}
		require.True(t, renew("me", v+1))
		require.False(t, renew("other", v+1))
		testdb.Exec(t, db, "UPDATE bc_job_lease SET locked_until = "+d.After, -dialect.Micro(time.Minute))
		require.True(t, take("other", v+1, true), "the lease has run out")
		require.False(t, renew("me", v+1))
		turn, err = j.LastDue(ctx, db, "clean")
		require.NoError(t, err)
		require.Greater(t, turn.LastDue, int64(1_000_000), "it took the turn")
		require.NoError(t, j.Release(ctx, db, store.JobLease{Code: "clean", Owner: "me", Version: v + 1}, "FAILED"))
		status := func() string {
			states, err := j.States(ctx, db, "another")
			require.NoError(t, err)
			require.Len(t, states, 1)
			return states[0].LastStatus
		}
		require.Equal(t, "RUNNING", status())
		require.NoError(t, j.Release(ctx, db, store.JobLease{Code: "clean", Owner: "other", Version: v + 2}, "SUCCESS"))
		require.Equal(t, "SUCCESS", status())
		states, err := j.States(ctx, db, "clean")
		require.NoError(t, err)
		require.Empty(t, states)
	})
}

// The history tells when a job last succeeded and why it last failed, and keeps the newest runs.
func TestRunsOfJobsAreKept(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		j, ctx := store.NewJobs(d), t.Context()
		lastSuccess := func() (time.Duration, bool) {
			age, ok, err := j.LastSuccess(ctx, db, "clean")
			require.NoError(t, err)
			return age, ok
		}
		lastError := func() string {
			said, err := j.LastError(ctx, db, "clean")
			require.NoError(t, err)
			return said
		}
		_, ok := lastSuccess()
		require.False(t, ok)
		require.Empty(t, lastError())
		add := func(code, status, said string) {
			require.NoError(t, j.AddRun(ctx, db, store.JobRun{
				Code: code, Instance: "me", Status: status, Took: time.Second, Counts: `{"removed":1}`, Error: said,
			}))
		}
		add("clean", "SUCCESS", "")
		testdb.Exec(t, db, "UPDATE bc_job_run SET finished_at = "+d.After, -dialect.Micro(2*time.Hour))
		add("clean", "FAILED", "no")
		add("other", "SUCCESS", "")
		age, ok := lastSuccess()
		require.True(t, ok)
		require.InDelta(t, 2*time.Hour, age, float64(30*time.Minute))
		require.Equal(t, "no", lastError())
		add("clean", "SUCCESS", "")
		require.Empty(t, lastError())

		before, err := j.RunBefore(ctx, db, "clean", 3)
		require.NoError(t, err)
		require.Zero(t, before, "there are no more")
		before, err = j.RunBefore(ctx, db, "clean", 1)
		require.NoError(t, err)
		require.NoError(t, j.RemoveRuns(ctx, db, "clean", before))
		require.Equal(t, 2, countRows(t, db, "bc_job_run"), "the newest, and that of the other job")
	})
}
