package outbox_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/inject"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// A lost lease keeps even a delivery that has no twin yet from taking effect.
func TestLostLeaseRollsBack(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		var calls atomic.Int64
		bus.On(f.bus.Consumer("A", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
			calls.Add(1)
			return effect(ctx, tx, m, 1)
		})
		var once sync.Once
		f.inject(inject.Faults{BeforeDelivery: func(string, []string) error {
			once.Do(func() {
				f.exec("UPDATE bc_outbox_event SET locked_by = 'thief', lock_version = lock_version + 1")
				f.hurry()
			})
			return nil
		}})
		f.save(orderPaid{OrderID: "1"})
		f.once()
		require.Zero(t, f.count("SELECT COUNT(*) FROM effect"))
		require.Equal(t, map[outbox.Status]int{outbox.StatusDispatching: 1}, f.statuses(), "the thief's lease is left alone")
		if db.Dialect().Name().String() != "mysql" {
			require.Zero(t, calls.Load(), "the marks notice before the handler")
		}
		f.once()
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect"))
		require.Equal(t, 1, f.count("SELECT retry_count FROM bc_outbox_event"))
	})
}

// The same while the handler runs, which only the last look can see.
func TestLostLeaseDuringTheHandlerRollsBack(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		if db.Dialect().Name().String() == "sqlite" {
			return // whoever holds the one write lock cannot be robbed
		}
		f := newFixture(t, db)
		f.effects()
		var once sync.Once
		bus.On(f.bus.Consumer("A", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
			once.Do(func() {
				f.exec("UPDATE bc_outbox_event SET locked_by = 'thief', lock_version = lock_version + 1")
				f.hurry()
			})
			return effect(ctx, tx, m, 1)
		})
		f.save(orderPaid{OrderID: "1"})
		f.once()
		require.Zero(t, f.count("SELECT COUNT(*) FROM effect"))
		f.once()
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect"))
	})
}

// An external handler that is told to stop, because its event has passed to another instance, has
// not failed: it is no attempt.
func TestStoppedExternalHandlerIsNoAttempt(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		var calls atomic.Int64
		bus.OnExternal(f.bus.Consumer("Sms", bus.ConsumerConfig{}), func(ctx context.Context, _ bus.Message[orderPaid]) error {
			if calls.Add(1) > 1 {
				return nil
			}
			if _, err := f.db.ExecContext(context.WithoutCancel(ctx), "UPDATE bc_outbox_event SET locked_by = 'thief', lock_version = "+
				"lock_version + 1"); err != nil {
				return err
			}
			<-ctx.Done() // the next renewal notices
			return ctx.Err()
		})
		f.save(orderPaid{OrderID: "1"})
		_, err := f.publisher(outbox.PublisherConfig{Lease: 3 * time.Second}).RunOnce(t.Context())
		require.NoError(t, err)
		require.Zero(t, f.count("SELECT COUNT(*) FROM bc_delivery_attempt"))
		require.Equal(t, map[consumelog.Status]int{consumelog.Pending: 1}, f.deliveries())
		require.Zero(t, f.count("SELECT attempts FROM bc_event_consume_log"))
		f.once()
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 1}, f.deliveries())
		require.Equal(t, 1, f.count("SELECT attempts FROM bc_event_consume_log"))
	})
}

// So is one that runs again, when it is its delivery that has passed to another instance.
func TestStoppedRetryIsToldWhy(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		var calls atomic.Int64
		var why error
		bus.OnExternal(f.bus.Consumer("Sms", bus.ConsumerConfig{Timeout: 20 * time.Second}),
			func(ctx context.Context, _ bus.Message[orderPaid]) error {
				if calls.Add(1) == 1 {
					return errors.New("not yet")
				}
				if _, err := f.db.ExecContext(context.WithoutCancel(ctx), "UPDATE bc_event_consume_log SET locked_by = 'thief', lock_version = "+
					"lock_version + 1"); err != nil {
					return err
				}
				<-ctx.Done() // the next renewal notices
				why = context.Cause(ctx)
				return why
			})
		f.save(orderPaid{OrderID: "1"})
		f.once()
		f.hurry()
		_, err := f.publisher(outbox.PublisherConfig{Lease: 3 * time.Second}).RunOnce(t.Context())
		require.NoError(t, err)
		require.ErrorContains(t, why, "passed to another instance")
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE locked_by = 'thief'"), "it is the thief's")
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_delivery_attempt"), "the one that failed")
	})
}

// Leases are renewed while a handler runs: nobody takes over, however long it takes. (On SQLite the
// handler's transaction is the only writer, so there nobody can.)
func TestLongHandlerKeepsItsLease(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Servers() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.DSN(t, dialect)
			f := newFixture(t, migrated(t, dsn))
			other := f.another(dsn)
			var calls atomic.Int64
			release := make(chan struct{})
			for _, x := range []*fixture{f, other} {
				bus.On(x.bus.Consumer("A", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[orderPaid]) error {
					calls.Add(1)
					<-release
					return nil
				})
				x.run(outbox.PublisherConfig{Lease: 4 * time.Second, Poll: 20 * time.Millisecond})
			}
			f.save(orderPaid{OrderID: "1"})
			f.eventually(func() bool { return calls.Load() == 1 }, "it runs")
			began := time.Now()
			f.eventually(func() bool { return time.Since(began) > 5*time.Second }, "longer than its lease")
			close(release)
			f.eventually(func() bool { return f.statuses()[outbox.StatusSent] == 1 }, "it is done")
			require.EqualValues(t, 1, calls.Load())
			require.Zero(t, f.count("SELECT retry_count FROM bc_outbox_event"), "no lease has run out")
		})
	}
}

// A retried delivery whose handler takes longer than a lease has its row locked by its own transaction. That
// keeps no other from being renewed.
func TestLongHandlerOfARetriedDeliveryHoldsUpNoRenewal(t *testing.T) {
	t.Parallel()
	testdb.EachServer(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		gate, entered := make(chan struct{}), make(chan struct{})
		bus.On(f.bus.Consumer("A", bus.ConsumerConfig{Concurrency: 1, Batch: 1}),
			func(_ context.Context, _ bun.Tx, m bus.Message[orderPaid]) error {
				if m.AggregateID == "long" {
					close(entered)
					<-gate
				}
				return nil
			})
		f.save(orderPaid{OrderID: "long"}, orderPaid{OrderID: "queued"})
		f.wait("A")
		f.run(outbox.PublisherConfig{Lease: 3 * time.Second, Poll: 10 * time.Millisecond})
		<-entered
		lease := func() (version int, until time.Time) {
			_ = f.db.QueryRowContext(t.Context(), "SELECT lock_version, next_retry_at FROM bc_event_consume_log WHERE aggregate_id = 'queued' "+
				"AND status = 'PROCESSING'").
				Scan(&version, &until) // none yet
			return version, until
		}
		f.eventually(func() bool { version, _ := lease(); return version > 0 }, "it is queued behind the long one")
		version, until := lease()
		f.eventually(func() bool { _, now := lease(); return now.After(until) }, "it has a later end")
		same, _ := lease()
		require.Equal(t, version, same, "of the same lease")
		close(gate)
		f.eventually(func() bool { return f.statuses()[outbox.StatusSent] == 2 }, "both are delivered")
	})
}

// An event that keeps killing its process is taken apart: each consumer alone.
func TestEventWhoseLeaseKeepsExpiringGoesToEachConsumerAlone(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("A", bus.ConsumerConfig{MaxAttempts: 2})
		f.counting("B", bus.ConsumerConfig{})
		f.save(orderPaid{OrderID: "1"})
		f.exec("UPDATE bc_outbox_event SET status = 'DISPATCHING', locked_by = 'dead', lock_version = 3, retry_count = 2")
		f.hurry()
		f.exec("INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, outbox_id, aggregate_type, aggregate_id, " +
			"attempts, started, locked_by) " +
			"SELECT 'A', event_id, event_type, 'PROCESSING', id, aggregate_type, aggregate_id, 2, 2, 'dead' FROM bc_outbox_event")
		f.hurry()
		f.once()
		f.once()
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 1, consumelog.Dead: 1}, f.deliveries(),
			"A has used up its attempts without an answer")
		require.Equal(t, map[outbox.Status]int{outbox.StatusDead: 1}, f.statuses())
	})
}
