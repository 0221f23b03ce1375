package schedule_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/schedule"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

var quiet = slog.New(slog.DiscardHandler)

func runner(t *testing.T, db *bun.DB, cfg schedule.Config, cron string,
	run func(ctx context.Context) (schedule.Counts, error),
) *schedule.Runner {
	t.Helper()
	spec, err := schedule.Parse(cron)
	require.NoError(t, err)
	cfg.Logger = quiet
	r, err := schedule.New(db, cfg, schedule.Job{Code: "job", Spec: spec, Timeout: time.Minute, Run: run})
	require.NoError(t, err)
	return r
}

// Five instances, a job that is due every second: each turn is taken by one of them.
func TestEachTurnRunsOnceInTheWholeDeployment(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		var running, overlaps, runs atomic.Int64
		var all []*schedule.Runner
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			all = append(all, runner(t, db, schedule.Config{Instance: name}, "* * * * * ?", func(context.Context) (schedule.Counts, error) {
				if running.Add(1) > 1 {
					overlaps.Add(1)
				}
				defer running.Add(-1)
				runs.Add(1)
				return schedule.Counts{"done": 1}, nil
			}))
		}
		testdb.Run(t, all...)
		require.Eventually(t, func() bool { return runs.Load() >= 3 }, testdb.Patience(), 5*time.Millisecond)
		require.Zero(t, overlaps.Load())
		var perSecond []int // no second has two runs
		group := map[string]string{
			"mysql": "DATE_FORMAT(started_at, '%s')", "pg": "date_trunc('second', started_at)",
			"sqlite": "substr(started_at, 1, 19)",
		}[db.Dialect().Name().String()]
		require.NoError(t, db.NewRaw("SELECT COUNT(*) FROM bc_job_run GROUP BY "+group).Scan(t.Context(), &perSecond))
		for _, n := range perSecond {
			require.Equal(t, 1, n)
		}
	})
}

// Whatever was missed while nobody ran is caught up by one run.
func TestMissedTurnsAreCaughtUpOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		var runs atomic.Int64
		r := runner(t, db, schedule.Config{}, "0 0 * * * ?", func(context.Context) (schedule.Counts, error) {
			runs.Add(1)
			return nil, nil
		})
		long := map[string]string{
			"mysql": "UTC_TIMESTAMP(6) - INTERVAL 9 HOUR", "pg": "now() - interval '9 hours'",
			"sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now', '-9 hours') || '000')",
		}[db.Dialect().Name().String()]
		_, err := db.ExecContext(t.Context(), "INSERT INTO bc_job_lease (job_code, last_due_at) VALUES ('job', "+long+")")
		require.NoError(t, err)
		testdb.Run(t, r)
		require.Eventually(t, func() bool { return testdb.Count(t, db, "SELECT COUNT(*) FROM bc_job_run") == 1 },
			testdb.Patience(), 5*time.Millisecond)
		_, err = r.RunNow(t.Context(), "job") // would be a second run, were another turn due
		require.NoError(t, err)
		require.Equal(t, int64(2), runs.Load())
	})
}

func TestRunNowIsRefusedWhileTheJobRunsElsewhere(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		entered, gate := make(chan struct{}), make(chan struct{})
		a := runner(t, db, schedule.Config{Instance: "a"}, "0 0 0 1 1 ?", func(context.Context) (schedule.Counts, error) {
			close(entered)
			<-gate
			return schedule.Counts{"released": 3}, errors.New("one was stuck")
		})
		b := runner(t, db, schedule.Config{Instance: "b"}, "0 0 0 1 1 ?", func(context.Context) (schedule.Counts, error) { return nil, nil })
		type result struct {
			report schedule.Report
			err    error
		}
		done := make(chan result, 1)
		go func() {
			rep, err := a.RunNow(context.Background(), "job")
			done <- result{rep, err}
		}()
		<-entered
		_, err := b.RunNow(t.Context(), "job")
		require.ErrorIs(t, err, schedule.ErrBusy)
		close(gate)
		got := <-done
		require.EqualError(t, got.err, "one was stuck")
		require.Equal(t, schedule.Counts{"released": 3}, got.report.Counts)
		require.Equal(t, 1, testdb.Count(t, db, "SELECT COUNT(*) FROM bc_job_run WHERE status = 'FAILED' AND instance = 'a' "+
			"AND error_message = 'one was stuck' AND counts LIKE '%\"released\":3%' AND duration_us > 0"))
		_, err = b.RunNow(t.Context(), "job")
		require.NoError(t, err)
		_, err = b.RunNow(t.Context(), "other")
		require.ErrorContains(t, err, `there is no job "other"`)
	})
}

// A dead instance's turn ends with its lease; a frozen one that comes back loses its job.
func TestLeaseOfADeadInstanceExpires(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		ended := make(chan error, 1)
		entered := make(chan struct{})
		frozen := runner(t, db, schedule.Config{Instance: "frozen", Lease: 300 * time.Millisecond}, "0 0 0 1 1 ?",
			func(ctx context.Context) (schedule.Counts, error) {
				close(entered)
				<-ctx.Done()
				ended <- context.Cause(ctx)
				return nil, ctx.Err()
			})
		other := runner(t, db, schedule.Config{Instance: "other"}, "0 0 0 1 1 ?",
			func(context.Context) (schedule.Counts, error) { return nil, nil })
		done := make(chan error, 1)
		go func() {
			_, err := frozen.RunNow(context.Background(), "job")
			done <- err
		}()
		<-entered
		// As if it had been frozen for longer than its lease: somebody else takes over.
		past := map[string]string{
			"mysql": "UTC_TIMESTAMP(6) - INTERVAL 1 SECOND", "pg": "now() - interval '1 second'",
			"sqlite": "'2020-01-01 00:00:00.000000'",
		}[db.Dialect().Name().String()]
		require.Eventually(t, func() bool {
			_, err := db.ExecContext(t.Context(), "UPDATE bc_job_lease SET locked_until = "+past)
			require.NoError(t, err)
			_, err = other.RunNow(t.Context(), "job")
			return err == nil
		}, time.Minute, time.Millisecond)
		require.ErrorContains(t, <-ended, "lease passed to another instance")
		require.ErrorContains(t, <-done, "lease passed to another instance")
	})
}

func TestAPanicInAJobIsItsError(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "sqlite")
	r := runner(t, db, schedule.Config{}, "0 0 0 1 1 ?", func(context.Context) (schedule.Counts, error) { panic("oh no") })
	_, err := r.RunNow(t.Context(), "job")
	require.ErrorContains(t, err, "job job panicked: oh no")
	gone := runner(t, db, schedule.Config{}, "0 0 0 1 1 ?", func(context.Context) (schedule.Counts, error) {
		runtime.Goexit()
		return nil, nil
	})
	_, err = gone.RunNow(t.Context(), "job")
	require.ErrorContains(t, err, "job job panicked: runtime.Goexit was called")
	require.Equal(t, 2, testdb.Count(t, db, "SELECT COUNT(*) FROM bc_job_run WHERE status = 'FAILED'"))
}

// The history keeps the newest runs only.
func TestHistoryIsTrimmed(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "sqlite")
	r := runner(t, db, schedule.Config{}, "0 0 0 1 1 ?", func(context.Context) (schedule.Counts, error) { return nil, nil })
	_, err := db.ExecContext(t.Context(),
		"INSERT INTO bc_job_run (job_code, instance, status) VALUES "+strings.TrimSuffix(strings.Repeat("('job', 'x', 'SUCCESS'),", 300), ","))
	require.NoError(t, err)
	_, err = r.RunNow(t.Context(), "job")
	require.NoError(t, err)
	require.Equal(t, 200, testdb.Count(t, db, "SELECT COUNT(*) FROM bc_job_run"))
}

func TestTwoJobsOfOneCodeAreAnError(t *testing.T) {
	t.Parallel()
	_, err := schedule.New(testdb.Open(t, "sqlite"), schedule.Config{}, schedule.Job{Code: "x"}, schedule.Job{Code: "x"})
	require.ErrorContains(t, err, "two jobs have the code x")
}

// When a job is due stands in its row: the doctor and operators read it there. Of two releases the one that started last says it.
func TestAJobSaysWhenItIsDue(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		says := func(cron string) func() bool {
			return func() bool {
				return testdb.Count(t, db, "SELECT COUNT(*) FROM bc_job_lease WHERE cron = '"+cron+"'") == 1
			}
		}
		never := func(context.Context) (schedule.Counts, error) { return nil, nil }
		testdb.Run(t, runner(t, db, schedule.Config{}, "0 0 0 1 1 ?", never))
		require.Eventually(t, says("0 0 0 1 1 ?"), testdb.Patience(), 5*time.Millisecond)
		testdb.Run(t, runner(t, db, schedule.Config{}, "0 0 12 1 1 ?", never))
		require.Eventually(t, says("0 0 12 1 1 ?"), testdb.Patience(), 5*time.Millisecond)
	})
}
