package outbox_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/invariant"
	"github.com/bluecone-go/bluecone/outbox"
)

// While one of three consumers is slow, failing or paused, the two others deliver everything; when it
// is well again it catches up. That is W6 of the benchmark in small: what it costs in time is measured
// there, here nothing may depend on it.
func TestOthersFinishWhileOneIsDisturbed(t *testing.T) {
	t.Parallel()
	const events = 400
	for _, how := range []string{"slow", "failing", "paused"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db *bun.DB) {
				if how == "slow" && db.Dialect().Name() == dialect.SQLite {
					return // its one writer waits in the handler's transaction, and everybody with it
				}
				f := newFixture(t, db)
				f.effects()
				f.counting("B", bus.ConsumerConfig{})
				f.counting("C", bus.ConsumerConfig{})
				a := &disturbed{how: how, well: make(chan struct{})}
				bus.On(f.bus.Consumer("A", bus.ConsumerConfig{Queue: 20, Batch: 4, MaxAttempts: 1000}), a.handle)
				f.once() // announces the consumers
				if how == "paused" {
					require.NoError(t, f.ob.Pause(t.Context(), outbox.Operation{Actor: "ann", Reason: "a test"}, "A", 0))
				}
				f.run(outbox.PublisherConfig{Poll: 20 * time.Millisecond})
				for i := range events {
					f.save(orderPaid{OrderID: ids(40)[i%40], Seq: i})
				}
				f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect WHERE consumer <> 'A'") == 2*events }, "the others finish")
				require.Zero(t, f.count("SELECT COUNT(*) FROM effect WHERE consumer = 'A'"), "the disturbed one has not begun")
				if how == "paused" {
					require.Zero(t, a.calls.Load(), "and was left alone")
					require.NoError(t, f.ob.Resume(t.Context(), outbox.Operation{Actor: "ann", Reason: "a test"}, "A"))
				}
				close(a.well)
				f.eventually(func() bool { f.hurryFailed(); return f.statuses()[outbox.StatusSent] == events }, "it catches up")
				found, err := invariant.Check(t.Context(), db, invariant.Config{Quiet: true, Effects: invariant.Effects{Table: "effect"}})
				require.NoError(t, err)
				require.Empty(t, found)
				require.Equal(t, 3*events, f.count("SELECT COUNT(*) FROM effect"))
			})
		})
	}
}

// disturbed is a consumer in trouble until well is closed.
type disturbed struct {
	how   string
	well  chan struct{}
	calls atomic.Int64
}

func (a *disturbed) handle(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
	a.calls.Add(1)
	select {
	case <-a.well:
		return effect(ctx, tx, m, m.Payload.Seq)
	default:
	}
	if a.how == "slow" {
		select {
		case <-a.well:
			return effect(ctx, tx, m, m.Payload.Seq)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return errors.New("not now")
}

// hurryFailed makes deliveries that have failed due now, and leaves leases alone.
func (f *fixture) hurryFailed() {
	past := map[string]string{
		"mysql": "UTC_TIMESTAMP(6) - INTERVAL 1 SECOND", "pg": "now() - interval '1 second'",
		"sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now', '-1 seconds') || '000')",
	}[f.db.Dialect().Name().String()]
	f.exec("UPDATE bc_event_consume_log SET next_retry_at = " + past + " WHERE status = 'FAILED'")
}
