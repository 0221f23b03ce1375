package outbox_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
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

// V5, V24: the same error means "committed" or "not committed". It is read back.
func TestUnknownCommitIsReadBack(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		for name, faults := range map[string]func(once func() error) inject.Faults{
			"Committed": func(f func() error) inject.Faults {
				return inject.Faults{AfterCommit: func(string, []string) error { return f() }}
			},
			"NotCommitted": func(f func() error) inject.Faults {
				return inject.Faults{BeforeCommit: func(string, []string) error { return f() }}
			},
		} {
			f := newFixture(t, db)
			f.effects()
			f.counting(name, bus.ConsumerConfig{})
			var hits atomic.Int64
			f.bus.Inject(faults(func() error {
				if hits.Add(1) == 1 {
					return driver.ErrBadConn
				}
				return nil
			}))
			f.save(orderPaid{OrderID: name})
			f.once()
			require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect WHERE consumer = ?", name))
			require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE consumer_name = ? AND status = 'SUCCESS'", name))
			require.Zero(t, f.count("SELECT COUNT(*) FROM bc_delivery_attempt"), "the database's trouble is no attempt")
		}
	})
}

// V1: after a deadlock MariaDB runs on in autocommit. A handler that swallows the error
// must not take effect without its SUCCESS row.
func TestSwallowedDeadlockNeverCommits(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"mysql", "postgres"} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, testdb.Open(t, dialect))
			f.effects()
			f.exec("CREATE TABLE hot (id INT PRIMARY KEY, n INT NOT NULL)")
			for i := range 100 {
				f.exec("INSERT INTO hot (id, n) VALUES (?, 0)", i)
			}
			var runs, poisoned atomic.Int64
			bus.On(f.bus.Consumer("A", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
				if runs.Add(1) == 1 {
					if err := f.deadlock(ctx, tx); err == nil {
						return errors.New("no deadlock happened")
					}
					if err := effect(ctx, tx, m, 1); err != nil {
						poisoned.Add(1)
					}
					return nil // swallowed
				}
				return effect(ctx, tx, m, 2)
			})
			f.save(orderPaid{OrderID: "1"})
			f.once()
			require.EqualValues(t, 2, runs.Load(), "run again at once, uncounted")
			require.EqualValues(t, 1, poisoned.Load(), "the poisoned transaction refuses statements")
			require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect"))
			require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect WHERE seq = 2"))
			require.Equal(t, 1, f.count("SELECT attempts FROM bc_event_consume_log"))
			require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 1}, f.statuses())
		})
	}
}

// deadlock makes tx the victim of one: the other side has changed more rows.
func (f *fixture) deadlock(ctx context.Context, tx bun.Tx) error {
	if _, err := tx.ExecContext(ctx, "UPDATE hot SET n = n + 1 WHERE id = 1"); err != nil {
		return err
	}
	locked := make(chan struct{})
	var once sync.Once
	unlock := func() { once.Do(func() { close(locked) }) }
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer unlock()
		_ = f.db.RunInTx(context.Background(), &sql.TxOptions{}, func(ctx context.Context, other bun.Tx) error {
			if f.db.Dialect().Name().String() == "pg" {
				if _, err := other.ExecContext(ctx, "SET LOCAL deadlock_timeout = '10s'"); err != nil { // the other side is found first
					return err
				}
			}
			if _, err := other.ExecContext(ctx, "UPDATE hot SET n = n + 1 WHERE id >= 2"); err != nil {
				return err
			}
			unlock()
			_, err := other.ExecContext(ctx, "UPDATE hot SET n = n + 1 WHERE id = 1")
			return err
		})
	}()
	<-locked
	_, err := tx.ExecContext(ctx, "UPDATE hot SET n = n + 1 WHERE id = 2")
	if err == nil {
		_ = tx.Rollback()
	}
	<-done
	return err
}

// V2: a lock wait timeout rolls back only its statement; COMMIT would keep the rest.
func TestSwallowedLockWaitNeverCommits(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testdb.Open(t, "mysql"))
	f.effects()
	f.exec("CREATE TABLE hot (id INT PRIMARY KEY, n INT NOT NULL)")
	f.exec("INSERT INTO hot VALUES (1, 0)")
	holder, err := f.db.BeginTx(context.Background(), nil)
	require.NoError(t, err)
	_, err = holder.ExecContext(context.Background(), "UPDATE hot SET n = 1")
	require.NoError(t, err)
	var runs atomic.Int64
	bus.On(f.bus.Consumer("A", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
		if runs.Add(1) > 1 {
			return effect(ctx, tx, m, 2)
		}
		if err := effect(ctx, tx, m, 1); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "SET SESSION innodb_lock_wait_timeout = 1"); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "UPDATE hot SET n = 2")
		require.Error(t, err)
		require.NoError(t, holder.Rollback())
		return nil // swallowed
	})
	f.save(orderPaid{OrderID: "1"})
	f.once()
	require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect"))
	require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect WHERE seq = 2"))
	require.Equal(t, 1, f.count("SELECT attempts FROM bc_event_consume_log"))
}

// Whoever is given a delivery that somebody else is at waits before its handler, not after: the handler
// never runs twice at a time.
func TestTwinsNeverRunAtOnce(t *testing.T) {
	t.Parallel()
	for dialect, waiting := range map[string]string{ // how many wait for a lock
		"mysql":    "SELECT COUNT(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id WHERE p.db = DATABASE() AND t.trx_state = 'LOCK WAIT'",
		"postgres": "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
	} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.DSN(t, dialect)
			one := newFixture(t, migrated(t, dsn))
			two := one.another(dsn)
			var entered atomic.Int64
			gate := make(chan struct{})
			for _, f := range []*fixture{one, two} {
				bus.On(f.bus.Consumer("A", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[orderPaid]) error {
					entered.Add(1)
					<-gate
					return nil
				})
			}
			one.save(orderPaid{OrderID: "1"})
			var all sync.WaitGroup
			all.Go(func() { one.once() })
			one.eventually(func() bool { return entered.Load() == 1 }, "the first is at it")
			one.exec("UPDATE bc_outbox_event SET next_retry_at = created_at") // its lease runs out
			all.Go(func() { two.once() })
			require.Eventually(t, func() bool { return entered.Load() > 1 || one.count(waiting) > 0 }, 20*time.Second, 250*time.Millisecond, // InnoDB shows what is new a tenth of a second after the last look
				"the second waits")
			require.Equal(t, int64(1), entered.Load())
			close(gate)
			all.Wait()
		})
	}
}

// A process that was frozen wakes up when another one has taken its event over.
func TestFrozenInstanceIsFenced(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Dialects() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.DSN(t, dialect)
			frozen := newFixture(t, migrated(t, dsn))
			healthy := frozen.another(dsn)
			frozen.effects()
			for _, f := range []*fixture{frozen, healthy} {
				f.counting("A", bus.ConsumerConfig{})
			}
			var once sync.Once
			taken := 0
			frozen.bus.Inject(inject.Faults{BeforeDelivery: func(string, []string) error {
				once.Do(func() { // the lease expires meanwhile, and the other instance does the work
					healthy.hurry()
					healthy.once()
					taken = healthy.count("SELECT COUNT(*) FROM effect")
				})
				return nil
			}})
			frozen.save(orderPaid{OrderID: "1"})
			frozen.once()
			require.Equal(t, 1, taken, "the other one took over while it was frozen")
			require.Equal(t, 1, frozen.count("SELECT COUNT(*) FROM effect"))
			require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 1}, frozen.statuses())
			require.Equal(t, map[consumelog.Status]int{consumelog.Success: 1}, frozen.deliveries())
		})
	}
}

// A lost lease keeps even a delivery that has no twin yet from taking effect: rule (d).
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
		f.bus.Inject(inject.Faults{BeforeDelivery: func(string, []string) error {
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
			if _, err := f.db.ExecContext(context.WithoutCancel(ctx), "UPDATE bc_outbox_event SET locked_by = 'thief', lock_version = lock_version + 1"); err != nil {
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

// A handler that ends the transaction itself gets no second effect.
func TestHandlerThatCommitsItself(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		bus.On(f.bus.Consumer("A", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
			if err := effect(ctx, tx, m, 1); err != nil {
				return err
			}
			return tx.Commit()
		})
		f.save(orderPaid{OrderID: "1"})
		f.once()
		f.hurry()
		f.once()
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect"))
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 1}, f.statuses())
	})
}

// A handler that rolls the transaction back behind the engine's back, and says that all is well, has
// not consumed the event.
func TestHandlerThatRollsBackItself(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		var calls atomic.Int64
		bus.On(f.bus.Consumer("A", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
			if calls.Add(1) == 1 {
				_, err := tx.ExecContext(ctx, "ROLLBACK")
				return err
			}
			return effect(ctx, tx, m, 1)
		})
		f.save(orderPaid{OrderID: "1"})
		f.once()
		f.hurry()
		f.once()
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect"))
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 1}, f.deliveries())
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 1}, f.statuses())
	})
}

// Leases are renewed while a handler runs: nobody takes over, however long it takes. (On SQLite the
// handler's transaction is the only writer, so there nobody can.)
func TestLongHandlerKeepsItsLease(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"mysql", "postgres"} {
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
		f.exec("INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, outbox_id, aggregate_type, aggregate_id, attempts, locked_by) " +
			"SELECT 'A', event_id, event_type, 'PROCESSING', id, aggregate_type, aggregate_id, 2, 'dead' FROM bc_outbox_event")
		f.hurry()
		f.once()
		f.once()
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 1, consumelog.Dead: 1}, f.deliveries(), "A has used up its attempts without an answer")
		require.Equal(t, map[outbox.Status]int{outbox.StatusDead: 1}, f.statuses())
	})
}
