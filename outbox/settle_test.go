package outbox_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// A delivery that had to wait may be over before the others of its event are. The event is settled as SENT then, not
// as FAILED until a sweep sees it.
func TestSettledAsWhatHasBecomeOfIt(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Servers() { // in SQLite the slow handler holds the only writer
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, testdb.Open(t, dialect))
			f.effects()
			f.counting("Paused", bus.ConsumerConfig{})
			let := make(chan struct{})
			release := sync.OnceFunc(func() { close(let) })
			bus.On(f.bus.Consumer("Slow", bus.ConsumerConfig{}), func(ctx context.Context, _ bun.Tx, _ bus.Message[orderPaid]) error {
				select {
				case <-let:
				case <-ctx.Done():
				}
				return ctx.Err()
			})
			f.once() // registers them
			op := outbox.Operation{Actor: "ann", Reason: "a test"}
			require.NoError(t, f.ob.Pause(t.Context(), op, "Paused", 0))
			f.run(outbox.PublisherConfig{Poll: 20 * time.Millisecond, Cron: "0 0 0 1 1 ?"}) // no sweep
			t.Cleanup(release)
			f.save(orderPaid{OrderID: "1"})
			f.eventually(func() bool {
				return f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE status = 'PENDING'") == 1
			}, "it waits in the log")
			require.NoError(t, f.ob.Resume(t.Context(), op, "Paused"))
			f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == 1 }, "it has waited")
			release()
			f.eventually(func() bool { return f.statuses()[outbox.StatusSent] == 1 }, "both deliveries are over")
		})
	}
}

// What a delivery has failed with is told of its event at once. One that only waits has no error.
func TestEventsSayWhyTheyFailed(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		var a atomic.Pointer[error]
		f.failing("Bad", bus.ConsumerConfig{}, &a)
		f.registered("Paused")
		require.NoError(t, f.ob.Pause(t.Context(), outbox.Operation{Actor: "ann", Reason: "a test"}, "Paused", 0))
		f.save(orderPaid{OrderID: "waits"})
		f.once()
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_outbox_event WHERE status = 'FAILED' AND last_error IS NULL"))
		a.Store(&errHandler)
		f.save(orderPaid{OrderID: "failed"})
		f.once()
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_outbox_event WHERE status = 'FAILED' AND aggregate_id = 'failed' "+
			"AND last_error LIKE '%handler says no%'"))
	})
}
