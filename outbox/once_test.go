package outbox_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"strings"
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

// The same error means "committed" or "not committed". It is read back.
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
			f.inject(faults(func() error {
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

// After a deadlock MariaDB runs on in autocommit. A handler that swallows the error
// must not take effect without its SUCCESS row.
func TestSwallowedDeadlockNeverCommits(t *testing.T) {
	t.Parallel()
	testdb.EachServer(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.hot(100)
		var runs, poisoned atomic.Int64
		bus.On(f.bus.Consumer("A", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
			if runs.Add(1) == 1 {
				err := f.deadlock(ctx, tx, func() error {
					_, err := tx.ExecContext(ctx, "UPDATE hot SET n = n + 1 WHERE id = 2")
					return err
				})
				if err == nil {
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
		f.requireSecondRun(&runs, &poisoned)
	})
}

// A lock wait timeout rolls back only its statement; COMMIT would keep the rest.
func TestSwallowedLockWaitNeverCommits(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testdb.Open(t, "mysql"))
	f.effects()
	f.hot(1)
	holder := f.holdHot()
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
	f.requireOneEffectOfTheSecondRun()
}

// Whoever is given a delivery that somebody else is at waits before its handler, not after: the handler
// never runs twice at a time.
func TestTwinsNeverRunAtOnce(t *testing.T) {
	t.Parallel()
	queries := map[string]string{ // how many wait for a lock
		"mysql": "SELECT COUNT(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p " +
			"ON p.id = t.trx_mysql_thread_id WHERE p.db = DATABASE() AND t.trx_state = 'LOCK WAIT'",
		"postgres": "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
	}
	for _, dialect := range testdb.Servers() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			waiting := queries[testdb.Dialect(dialect)]
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
			// InnoDB shows what is new a tenth of a second after the last look
			require.Eventually(t, func() bool { return entered.Load() > 1 || one.count(waiting) > 0 }, 5*time.Minute, 250*time.Millisecond,
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
			frozen.inject(inject.Faults{BeforeDelivery: func(string, []string) error {
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

// A handler that ends the transaction of several events takes nothing from the others, and nothing of theirs happens twice.
func TestHandlerThatEndsTheTransactionOfSeveralEvents(t *testing.T) {
	t.Parallel()
	ends := map[string]func(ctx context.Context, tx bun.Tx) error{
		"Commit":   func(_ context.Context, tx bun.Tx) error { return tx.Commit() },
		"Rollback": func(_ context.Context, tx bun.Tx) error { return tx.Rollback() },
	}
	for _, query := range []string{"COMMIT", "ROLLBACK"} {
		ends[query] = func(ctx context.Context, tx bun.Tx) error {
			_, err := tx.ExecContext(ctx, query)
			return err
		}
		ends["raw "+query] = func(ctx context.Context, tx bun.Tx) error {
			_, err := tx.NewRaw(query+" /* ? */", "a; value").Exec(ctx)
			return err
		}
		if db := "several, " + query; query == "COMMIT" {
			ends[db] = func(ctx context.Context, tx bun.Tx) error {
				if _, err := tx.ExecContext(ctx, "SELECT 1; COMMIT"); err != nil && tx.Dialect().Name().String() == "mysql" {
					_, err = tx.ExecContext(ctx, "COMMIT") // its driver sends one statement at a time
					return err
				} else if err != nil {
					return err
				}
				return nil
			}
		}
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db *bun.DB) {
				f := newFixture(t, db)
				f.effects()
				var calls atomic.Int64
				bus.On(f.bus.Consumer("A", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
					if err := effect(ctx, tx, m, 1); err != nil {
						return err
					}
					switch m.AggregateID {
					case "2":
						if calls.Add(1) > 2 { // once beside others, once alone
							return nil
						}
						err := end(ctx, tx)
						if strings.Contains(strings.ToUpper(name), "ROLLBACK") {
							_ = effect(ctx, tx, m, 2) // would be without its SUCCESS row
						}
						return err
					case "3":
						if m.Attempt == 1 {
							return errHandler
						}
					}
					return nil
				})
				f.save(orderPaid{OrderID: "1"}, orderPaid{OrderID: "2"}, orderPaid{OrderID: "3"}, orderPaid{OrderID: "4"})
				f.once()
				for range 2 {
					f.hurry()
					f.once()
				}
				require.Equal(t, 4, f.count("SELECT COUNT(*) FROM effect"))
				require.Zero(t, f.count("SELECT COUNT(*) FROM effect WHERE seq = 2"))
				require.Equal(t, map[consumelog.Status]int{consumelog.Success: 4}, f.deliveries())
				require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 4}, f.statuses())
			})
		})
	}
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
