package schedule_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/alert"
	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consistency"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
	"github.com/bluecone-go/bluecone/reaper"
	"github.com/bluecone-go/bluecone/schedule"
)

const (
	everySecond = "* * * * * ?"
	onceAYear   = "0 0 1 1 *"
)

func nothing(context.Context) error { return nil }

func quiet(instance string) schedule.Config {
	return schedule.Config{Instance: instance, Logger: slog.New(slog.DiscardHandler)}
}

// Three instances have a job that is due every second: no two of them run it at a time, and every run is in the history.
func TestJobOfAUserRunsOnceInTheWholeDeployment(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		var running, overlaps, runs atomic.Int64
		var all []*schedule.Schedule
		for _, instance := range []string{"a", "b", "c"} {
			all = append(all, schedule.New(db, quiet(instance)).Add("coupons.expire", everySecond, func(ctx context.Context) error {
				if running.Add(1) > 1 {
					overlaps.Add(1)
				}
				defer running.Add(-1)
				runs.Add(1)
				schedule.Count(ctx, "expired", 2)
				schedule.Count(ctx, "expired", 3)
				return nil
			}))
		}
		testdb.Run(t, all...)
		testdb.Eventually(t, func() bool {
			return testdb.Count(t, db, "SELECT COUNT(*) FROM bc_job_run WHERE job_code = 'coupons.expire' AND status = 'SUCCESS' "+
				`AND counts = '{"expired":5}'`) >= 3
		}, "the history has the runs and what they have counted")
		require.Zero(t, overlaps.Load())
		require.LessOrEqual(t, testdb.Count(t, db, "SELECT COUNT(*) FROM bc_job_run"), int(runs.Load()))
	})
}

// An error and a panic are FAILED runs, and the job is tried again at its next turn.
func TestJobThatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		var runs atomic.Int64
		testdb.Run(t, schedule.New(db, quiet("a")).Add("moody", everySecond, func(ctx context.Context) error {
			schedule.Count(ctx, "tried", 1)
			switch runs.Add(1) {
			case 1:
				return errors.New("the printer has no paper")
			case 2:
				panic("the printer burns")
			}
			return nil
		}))
		testdb.Eventually(t, func() bool {
			return testdb.Count(t, db, "SELECT COUNT(*) FROM bc_job_run WHERE status = 'SUCCESS'") > 0
		}, "it has recovered")
		require.Equal(t, 1, testdb.Count(t, db, "SELECT COUNT(*) FROM bc_job_run WHERE status = 'FAILED' AND error_message = "+
			`'the printer has no paper' AND counts = '{"tried":1}'`))
		require.Equal(t, 1, testdb.Count(t, db, "SELECT COUNT(*) FROM bc_job_run WHERE status = 'FAILED' AND error_message LIKE "+
			"'%job moody panicked: the printer burns%'"))
	})
}

// The console sees a user's jobs with their history and can run them, and the alerts hear of those that fail or are late.
func TestJobsOfAUserAreSeenLikeTheLibrarys(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		logger := slog.New(slog.DiscardHandler)
		s := schedule.New(db, quiet("a")).
			Add("moody", onceAYear, func(ctx context.Context) error {
				schedule.Count(ctx, "tried", 1)
				return errors.New("the printer has no paper")
			}).
			Add("missed", "*/5 * * * *", nothing)
		ob, err := outbox.New(db, outbox.Config{Logger: logger})
		require.NoError(t, err)
		o, err := ops.New(db, ob, ops.Config{Logger: logger, Jobs: s.Jobs(), Timeout: testdb.Patience()})
		require.NoError(t, err)
		counts, here, err := o.RunJob(t.Context(), ops.Operation{Actor: "anna", Reason: "a test"}, "moody")
		require.ErrorContains(t, err, "the printer has no paper")
		require.True(t, here)
		require.Equal(t, map[string]int64{"tried": 1}, counts)

		jobs, err := o.Jobs(t.Context())
		require.NoError(t, err)
		require.Len(t, jobs, 2)
		moody := jobs[1]
		require.Equal(t, "moody", moody.Code)
		require.Equal(t, onceAYear, moody.Cron)
		require.True(t, moody.Here)
		require.Equal(t, "FAILED", moody.LastStatus)
		require.Equal(t, "the printer has no paper", moody.Runs[0].Error)
		require.Equal(t, map[string]int64{"tried": 1}, moody.Runs[0].Counts)

		past := map[string]string{
			"mysql": "UTC_TIMESTAMP(6) - INTERVAL 9 HOUR", "pg": "now() - interval '9 hours'",
			"sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now', '-9 hours') || '000')",
		}[db.Dialect().Name().String()]
		_, err = db.ExecContext(t.Context(), "INSERT INTO bc_job_lease (job_code, last_due_at) VALUES ('missed', "+past+")")
		require.NoError(t, err)
		told := map[string]string{}
		sink := alert.SinkFunc(func(_ context.Context, n alert.Notice) error {
			told[n.Rule] += n.Subject
			return nil
		})
		alerter, err := alert.New(db, ob, alert.Config{
			Logger: logger, Jobs: s.Crons(), Routes: []alert.Route{{Name: "test", Sink: sink}},
		})
		require.NoError(t, err)
		_, err = alerter.RunOnce(t.Context())
		require.NoError(t, err)
		require.Equal(t, map[string]string{alert.RuleJobFailed: "moody", alert.RuleJobLate: "missed"}, told)
	})
}

// When its context ends, Run ends the context of the job that runs, waits for it, and the run stands in the history.
func TestRunDrainsTheJobThatRuns(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		began, ended := make(chan struct{}), atomic.Bool{}
		s := schedule.New(db, quiet("a")).Add("slow", everySecond, func(ctx context.Context) error {
			close(began)
			<-ctx.Done()
			ended.Store(true)
			return ctx.Err()
		})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- bus.Run(ctx, s) }()
		<-began
		require.ErrorIs(t, another(t, db, "slow"), schedule.ErrBusy)
		stop()
		require.NoError(t, <-done)
		require.True(t, ended.Load())
		require.Equal(t, 1, testdb.Count(t, db, "SELECT COUNT(*) FROM bc_job_run WHERE status = 'FAILED' AND job_code = 'slow'"))
		require.NoError(t, another(t, db, "slow"), "the lease has ended with it")
	})
}

// another runs a job of another instance, out of turn.
func another(t *testing.T, db *bun.DB, name string) error {
	t.Helper()
	_, err := schedule.New(db, quiet("b")).Add(name, onceAYear, nothing).RunNow(t.Context(), name)
	return err
}

// Run returns every mistake at once, each with the name of its job, and runs nothing.
func TestMistakesOfJobsAreReturnedAtOnce(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "sqlite")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ran := func(context.Context) error { t.Error("it ran"); stop(); return nil }
	s := schedule.New(db, quiet("a"), quiet("b")).
		Add("good", everySecond, ran).
		Add("good", everySecond, ran).
		Add(outbox.RetentionJob, everySecond, ran).
		Add("", everySecond, ran).
		Add("two words", everySecond, ran).
		Add(strings.Repeat("x", 65), everySecond, ran).
		Add("never", "0 0 31 2 *", ran).
		Add("zoned", "TZ=Asia/Shanghai 0 3 * * *", ran).
		Add("broken", "whenever", nil)
	err := s.Run(ctx)
	require.Equal(t, s.Err(), err)
	for _, says := range []string{
		"schedule.New: there are 2 configurations: give one",
		`the job "good" is added twice`,
		`the job "outbox_retention" has the name of one of the library's own jobs`,
		`the job "" has a name that is not valid: use at most 64 letters`,
		`the job "two words" has a name that is not valid`,
		`the job "` + strings.Repeat("x", 65) + `" has a name that is not valid`,
		`the job "never" cannot have its schedule: cron expression "0 0 31 2 *" names a date that never comes`,
		`the job "zoned" cannot have its schedule: cron expression "TZ=Asia/Shanghai 0 3 * * *" names a time zone: schedules are always UTC`,
		`the job "broken" cannot have its schedule: cron expression "whenever" has 1 field:`,
		`the job "broken" has no function`,
	} {
		require.ErrorContains(t, err, says)
	}
	require.Len(t, strings.Split(err.Error(), "\n"), 10)
	_, err = s.RunNow(t.Context(), "good")
	require.Equal(t, s.Err(), err)
	require.ErrorContains(t, schedule.New(nil).Run(t.Context()), "schedule.New: db is nil")
	require.ErrorContains(t, schedule.New(db, quiet(strings.Repeat("x", 65))).Err(), "schedule.Config.Instance")
}

// No job of a user can take the turns of one of the library's.
func TestNamesOfTheLibrarysJobsAreTaken(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "sqlite")
	for _, name := range []string{alert.JobCode, consistency.JobCode, outbox.PublisherJob, outbox.RetentionJob, reaper.JobCode} {
		require.ErrorContains(t, schedule.New(db).Add(name, onceAYear, nothing).Err(), "has the name of one of the library's own jobs", name)
	}
}

// What is added after the first run would never run: it ends Run, which says so.
func TestJobThatIsAddedTooLateEndsRun(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "sqlite")
	began := make(chan struct{}, 100)
	s := schedule.New(db, quiet("a")).Add("first", everySecond, func(context.Context) error { began <- struct{}{}; return nil })
	done := make(chan error, 1)
	go func() { done <- s.Run(t.Context()) }()
	<-began
	s.Add("second", everySecond, nothing).Add("third", everySecond, nothing)
	select {
	case err := <-done:
		require.ErrorContains(t, err, `the job "second" is added too late: add all jobs before the first run`)
	case <-time.After(testdb.Patience()):
		t.Error("Run goes on without the second job")
	}
}
