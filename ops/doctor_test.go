package ops_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/doctor"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

// watcher counts the statements under way, and those without a deadline in time.
type watcher struct {
	timeout              time.Duration
	now, most, all, late atomic.Int64
}

func (w *watcher) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context {
	n := w.now.Add(1)
	for most := w.most.Load(); n > most && !w.most.CompareAndSwap(most, n); most = w.most.Load() {
	}
	w.all.Add(1)
	if until, ok := ctx.Deadline(); !ok || time.Until(until) > w.timeout {
		w.late.Add(1)
	}
	return ctx
}

func (w *watcher) AfterQuery(context.Context, *bun.QueryEvent) { w.now.Add(-1) }

// Whoever asks for the doctor again and again, under many names, has no more statements under way than other readers, and
// each has a deadline.
func TestTheDoctorTakesTheTurnOfOneReader(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		const timeout = time.Minute
		f := newFixture(t, db, ops.Config{Queries: 1, Timeout: timeout})
		w := &watcher{timeout: timeout}
		db.AddQueryHook(w) //nolint:staticcheck // the statements of this test are to be seen
		var readers sync.WaitGroup
		for i := range 40 {
			ctx := ops.WithCaller(t.Context(), ops.Caller{Name: "reader " + itoa(i)})
			readers.Go(func() {
				r, err := f.ops.Doctor(ctx)
				if err != nil || len(r) < 10 {
					t.Errorf("%v: %v", r, err)
				}
			})
		}
		readers.Wait()
		require.Greater(t, w.all.Load(), int64(10), "the doctor asks")
		require.Zero(t, w.late.Load(), "statements without a deadline in time, of %d", w.all.Load())
		require.EqualValues(t, 1, w.most.Load(), "statements under way at once")
	})
}

// What a database answers to a check that cannot look is for the log of the service. Whoever looks gets the reference to it.
func TestTheDoctorShowsNoErrorsOfTheDatabase(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		_, err := db.ExecContext(t.Context(), "DROP TABLE bc_consumer_type")
		require.NoError(t, err)
		var log bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&log, nil))
		ob, err := outbox.New(db, outbox.Config{Logger: logger})
		require.NoError(t, err)
		o, err := ops.New(db, ob, ops.Config{Logger: logger, Timeout: time.Minute})
		require.NoError(t, err)
		report, err := o.Doctor(t.Context())
		require.NoError(t, err)
		const answers = "no such table|doesn't exist|does not exist"
		references := 0
		for _, f := range report {
			require.NotRegexp(t, answers, fmt.Sprint(f), f.Check)
			if f.Rule != "unexamined_logged" {
				continue
			}
			references++
			require.Equal(t, doctor.Warn, f.Level)
			require.NotEmpty(t, f.Check)
			require.Contains(t, f.Says, "under the reference "+f.Args["reference"])
			line := regexp.MustCompile(`reference=` + f.Args["reference"] + `.*checks\.` + f.Check + `.*(` + answers + ")")
			require.Regexp(t, line, log.String())
		}
		require.Positive(t, references, "a check could not look: %v", report)
		full, err := o.DoctorWithErrors(t.Context())
		require.NoError(t, err)
		require.Len(t, full, len(report))
		shown := 0
		for _, f := range full {
			if says, ok := f.Unexamined(); ok {
				shown++
				require.Regexp(t, answers, says)
			}
		}
		require.Equal(t, references, shown)
		_, err = o.DoctorWithErrors(ops.WithCaller(t.Context(), ops.Caller{Name: "mallory", Tenants: []int64{1}}))
		require.ErrorIs(t, err, ops.ErrForbidden)
	})
}
