package outbox_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// writers counts the transactions that are open, or wait for the lock, at a time.
type writers struct{ now, most atomic.Int64 }

// BeforeQuery counts who begins.
func (w *writers) BeforeQuery(ctx context.Context, ev *bun.QueryEvent) context.Context {
	if ev.Operation() == "BEGIN" {
		n := w.now.Add(1)
		for most := w.most.Load(); n > most && !w.most.CompareAndSwap(most, n); most = w.most.Load() {
		}
	}
	return ctx
}

// AfterQuery counts who has ended.
func (w *writers) AfterQuery(_ context.Context, ev *bun.QueryEvent) {
	if op := ev.Operation(); op == "COMMIT" || op == "ROLLBACK" {
		w.now.Add(-1)
	}
}

// On SQLite what an engine writes about failures, and about what waits behind them, takes turns with its deliveries,
// instead of polling for the lock.
func TestOneWriterAtATime(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testdb.Open(t, "sqlite"))
	f.effects()
	f.counting("Good", bus.ConsumerConfig{Batch: 2})
	f.failing("Bad", bus.ConsumerConfig{Batch: 2}, answer(errHandler))
	f.once()
	const n = 60
	for i := range n {
		f.save(orderPaid{OrderID: fmt.Sprint(i % (n / 2)), Seq: i})
	}
	var w writers
	f.db.AddQueryHook(&w) //nolint:staticcheck // the engine's own statements are to be seen
	f.run(outbox.PublisherConfig{Lease: time.Hour, Cron: "0 0 0 1 1 ?"})
	f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == n }, "the other consumer goes on")
	f.eventually(func() bool { return f.statuses()[outbox.StatusFailed] == n }, "all is settled")
	require.EqualValues(t, 1, w.most.Load())
}
