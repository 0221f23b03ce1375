package ops_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ops"
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
		db.AddQueryHook(w)
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
