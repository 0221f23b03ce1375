package schedule_test

import (
	"context"
	"io"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/faultdb"
	"github.com/bluecone-go/bluecone/internal/schedule"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/migrations"
)

const lease = time.Minute

// withRenewals calls fn in a bubble, with an instance whose job runs until its context ends or so much time has passed. renew is
// called before each renewal of its lease, with its number.
func withRenewals(t *testing.T, atMost time.Duration, renew func(ctx context.Context, n int64) error,
	fn func(t *testing.T, took time.Duration, cause error),
) {
	dsn := testdb.DSN(t, "sqlite")
	require.NoError(t, migrations.Up(t.Context(), testdb.OpenDSN(t, dsn)))
	spec, err := schedule.Parse("0 0 0 1 1 ?")
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		var renewals atomic.Int64
		db, err := testdb.ConnectHooked(dsn, faultdb.Hook{Before: func(ctx context.Context, s faultdb.Step) error {
			if !strings.HasPrefix(s.Query, "UPDATE bc_job_lease SET locked_until") {
				return nil
			}
			return renew(ctx, renewals.Add(1))
		}})
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close()) }()
		var took time.Duration
		var cause error
		run := func(ctx context.Context) (schedule.Counts, error) {
			began := time.Now()
			select {
			case <-ctx.Done():
			case <-time.After(atMost):
			}
			took, cause = time.Since(began), context.Cause(ctx)
			return nil, cause
		}
		r, err := schedule.New(db, schedule.Config{Lease: lease, Logger: quiet}, schedule.Job{Code: "job", Spec: spec, Run: run})
		require.NoError(t, err)
		_, err = r.RunNow(t.Context(), "job")
		require.Equal(t, cause == nil, err == nil, "%v", err)
		fn(t, took, cause)
	})
}

// From the end of the lease on another instance may run the job: whoever cannot renew the lease cancels it then, however its
// database is away.
func TestAJobIsCancelledWhenItsLeaseCannotBeRenewed(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(ctx context.Context) error{
		"it answers errors": func(context.Context) error { return io.ErrUnexpectedEOF },
		"it does not answer": func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		},
		"its driver knows no deadline": func(context.Context) error {
			<-time.After(10 * lease)
			return io.ErrUnexpectedEOF
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			withRenewals(t, 20*lease, func(ctx context.Context, n int64) error {
				if n == 1 {
					return nil
				}
				return away(ctx)
			}, func(t *testing.T, took time.Duration, cause error) {
				require.ErrorContains(t, cause, "lease has run out")
				require.Equal(t, lease/3+lease, took, "a lease after the last renewal")
			})
		})
	}
}

// A renewal that fails is tried again before the lease is over, also when it was not answered.
func TestAJobGoesOnWhileSomeOfItsRenewalsSucceed(t *testing.T) {
	t.Parallel()
	withRenewals(t, 5*lease, func(ctx context.Context, n int64) error {
		if n%2 == 0 {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	}, func(t *testing.T, took time.Duration, cause error) {
		require.NoError(t, cause)
		require.Equal(t, 5*lease, took)
	})
}

// A job that calls runtime.Goexit, as a test's FailNow does, is FAILED, and its runner goes on.
func TestGoexitInAJobIsItsError(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "sqlite")
	r := runner(t, db, schedule.Config{}, "0 0 0 1 1 ?", func(context.Context) (schedule.Counts, error) {
		runtime.Goexit()
		return nil, nil
	})
	answer := make(chan error, 1)
	go func() {
		defer close(answer)
		_, err := r.RunNow(context.Background(), "job")
		answer <- err
	}()
	err, ok := <-answer
	require.True(t, ok, "it has ended its caller")
	require.ErrorContains(t, err, "runtime.Goexit was called")
	require.Equal(t, 1, testdb.Count(t, db, "SELECT COUNT(*) FROM bc_job_run WHERE status = 'FAILED'"))
}
