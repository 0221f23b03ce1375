package ops_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

func TestOverviewOfADeployment(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{}).consumers()
		p, err := outbox.NewPublisher(f.ob, f.bus, outbox.PublisherConfig{Poll: 20 * time.Millisecond})
		require.NoError(t, err)
		run, stop := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() { over <- p.Run(run) }()
		defer stop()
		var v ops.Overview
		see := func(ok func() bool, what string) {
			require.Eventually(t, func() bool {
				v, err = f.ops.Overview(t.Context())
				return err == nil && ok()
			}, 30*time.Second, 50*time.Millisecond, what)
		}
		see(func() bool { return v.Health.Rule == ops.RuleHealthy && len(v.Instances) == 1 && len(v.Consumers) == 2 }, "an idle deployment")
		require.Equal(t, "test-1", v.Instances[0].Name)
		require.True(t, v.Instances[0].Alive)
		require.Less(t, v.Instances[0].ClockOffset.Abs(), time.Minute)
		f.save(paid{OrderID: "1", Note: "die"}, paid{OrderID: "2", Note: "fail"})
		see(func() bool { return v.Events[outbox.StatusDead].Count == 1 && v.Events[outbox.StatusFailed].Count == 1 }, "one DEAD, one FAILED")
		see(func() bool { return v.Health.Rule == ops.RuleDead && len(v.Dead) == 2 }, "the worst is told")
		require.Equal(t, "1 event is DEAD and waits for somebody to decide, order.paid for Moody: order # is cursed.", v.Health.Says)
		require.Equal(t, ops.Count{Count: 1}, v.Deliveries[consumelog.Dead])
		require.NotContains(t, v.Events, outbox.StatusSent)
		require.NotZero(t, v.Oldest)
		moody, steady := f.consumer("Moody"), f.consumer("Steady")
		require.Equal(t, ops.Running, moody.State)
		require.EqualValues(t, 1, moody.Dead.Count)
		require.EqualValues(t, 1, moody.Failed.Count)
		require.NotEmpty(t, moody.LastError)
		require.NotZero(t, steady.LastSuccess)
		require.True(t, steady.Replayable)
		require.Equal(t, []string{"order.noted", "order.paid"}, steady.Types)
		stop()
		require.NoError(t, <-over)
		see(func() bool { return len(v.Instances) == 0 }, "an instance that ends as it should is gone")
		require.Equal(t, ops.RuleNobody, v.Health.Rule)
	})
}

// job is a job of this process.
type job struct{ fails error }

func (job) Schedule() (code, cron string) { return "a_job", "0 */5 * * * ?" }

func (j job) RunNow(context.Context) (map[string]int64, error) {
	return map[string]int64{"done": 3}, j.fails
}

func TestJobsRunHereOrAreAskedFor(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{Jobs: []ops.Job{job{}}})
		counts, ran, err := f.ops.RunJob(t.Context(), op, "a_job")
		require.NoError(t, err)
		require.True(t, ran)
		require.Equal(t, map[string]int64{"done": 3}, counts)
		f.exec("INSERT INTO bc_job_lease (job_code, last_due_at) VALUES ('elsewhere', " + f.now(0) + ")")
		_, ran, err = f.ops.RunJob(t.Context(), op, "elsewhere")
		require.NoError(t, err)
		require.False(t, ran)
		states, err := f.ops.Jobs(t.Context())
		require.NoError(t, err)
		require.Len(t, states, 2)
		require.Equal(t, "every 5 minutes", states[0].Words)
		require.True(t, states[0].Here)
		require.Equal(t, "elsewhere", states[1].Code)
		require.Equal(t, 2000, states[1].LastDue.Year(), "whoever has it finds it missed")
		_, _, err = f.ops.RunJob(t.Context(), op, "nobody")
		require.ErrorIs(t, err, ops.ErrNotFound)
		require.Equal(t, []string{"run job"}, f.actions("elsewhere"))
		require.Empty(t, f.actions("nobody"))
	})
	f := newFixture(t, testdb.Open(t, "sqlite"), ops.Config{Jobs: []ops.Job{job{fails: errors.New("no")}}})
	_, ran, err := f.ops.RunJob(t.Context(), op, "a_job")
	require.Error(t, err)
	require.True(t, ran)
}

// Whoever asks for a job that another instance has may ask again before that one has looked.
func TestAJobOfAnotherInstanceIsAskedForTwice(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{})
		f.exec("INSERT INTO bc_job_lease (job_code, last_due_at) VALUES ('elsewhere', " + f.now(0) + ")")
		for range 2 {
			_, ran, err := f.ops.RunJob(t.Context(), op, "elsewhere")
			require.NoError(t, err)
			require.False(t, ran)
		}
		require.Equal(t, []string{"run job", "run job"}, f.actions("elsewhere"))
	})
}

// lacking answers that orders lack an event.
type lacking struct{}

func (lacking) Lacks(_ context.Context, key string) (map[string][]string, error) {
	return map[string][]string{"order.paid": {key}}, nil
}

func TestAStoryByAnyKey(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		section := func(_ context.Context, key string) (*ops.Facts, error) {
			switch key {
			case "7":
				return &ops.Facts{
					Title: "Host", Rows: []ops.Fact{{Name: "coupon"}, {Name: "total", Value: "5"}}, Keys: []string{"8"},
					Moments: []ops.Moment{{At: time.Now().Add(-time.Hour), Kind: "host", Says: "it began"}},
				}, nil
			case "bad":
				return nil, errors.New("away")
			}
			return nil, nil
		}
		f := newFixture(t, db, ops.Config{Sections: []ops.Section{section}}).consumers()
		f.save(paid{OrderID: "7", Note: "die"}, noted{OrderID: "7"}, paid{OrderID: "8"}, paid{OrderID: "9"})
		f.once()
		require.NoError(t, f.ops.Skip(t.Context(), op, paidID("7"), "Moody"))
		f.exec("INSERT INTO bc_audit_log (actor, action, target, reason, details) " +
			"VALUES ('reaper', 'release', 'ORDER/7', 'the lock was 31m0s old', 'wallet.freeze 7')")
		for _, key := range []string{"7", "ORDER/7", paidID("7"), "order:7:paid", "steady:7"} {
			s, err := f.ops.Trace(t.Context(), key)
			require.NoError(t, err, key)
			require.Equal(t, []string{"7", "7", "8"}, orders(s.Events), key)
			require.Equal(t, []string{"Moody", "Steady"}, s.Consumers)
			require.Len(t, s.Sections, 1)
			require.Equal(t, []ops.Fact{{Name: "total", Value: "5"}}, s.Sections[0].Rows, "what has no value is not shown")
			require.Equal(t, "it began", s.Moments[0].Says)
			kinds := make(map[string]int)
			for i, m := range s.Moments {
				kinds[m.Kind]++
				require.False(t, i > 0 && m.At.Before(s.Moments[i-1].At), "oldest first")
			}
			require.Equal(t, 1, kinds[ops.MomentDead], key)
			require.Equal(t, 1, kinds[ops.MomentSkipped], key)
			require.Equal(t, 1, kinds[ops.MomentOperator], key)
			require.Equal(t, 1, kinds[ops.MomentReleased], key)
			require.Equal(t, 3, kinds[ops.MomentSaved], key)
			require.Equal(t, ops.RuleHealthy, s.Findings[0].Rule, key)
		}
		_, err := f.ops.Trace(t.Context(), "nobody")
		require.ErrorIs(t, err, ops.ErrNotFound)
		_, err = f.ops.Trace(t.Context(), "")
		require.Error(t, err)
		f = newFixture(t, db, ops.Config{Checks: lacking{}, Sections: []ops.Section{section}})
		s, err := f.ops.Trace(t.Context(), "bad")
		require.NoError(t, err)
		require.Equal(t, []string{ops.RuleMissingEvent, ops.RuleSection}, []string{s.Findings[0].Rule, s.Findings[1].Rule})
	})
}
