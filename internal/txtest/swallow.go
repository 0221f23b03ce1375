package txtest

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
)

// way sends one statement.
type way[T any] = func(ctx context.Context, tx T, query string, args ...any) error

// trouble makes a handler's transaction end by an error, which it meets by one of the library's ways.
type trouble[T any] struct {
	name    string
	on      func(database string) bool
	counted bool // an attempt: the handler's doing
	meet    func(w *World, d Door[T], by way[T]) func(ctx context.Context, tx T) error
}

func troubles[T any]() []trouble[T] {
	isServer := func(database string) bool { return database != "sqlite" }
	return []trouble[T]{
		{"a deadlock", isServer, false, deadlock[T]},
		{"a lock wait timeout", func(database string) bool { return database == "mysql" || database == "mysql9" }, false, lockWait[T]},
		{"a lost connection", isServer, false, lostConnection[T]},
		{"the end by a statement", func(database string) bool { return database == "sqlite" }, true, rolledBack[T]},
	}
}

// eachSwallow runs a handler that swallows an error after which a database may run on outside of the transaction: nothing of that
// run takes effect, and nothing more is taken.
func eachSwallow[T any](t *testing.T, a Adapter[T], database string) {
	t.Helper()
	for _, tr := range troubles[T]() {
		if tr.on(database) {
			each(t, database+"/"+tr.name+" that the handler swallows", a, database, func(w *World, d Door[T]) {
				done := 0
				for name, by := range d.Ways {
					w.Bus = bus.New(w.DB, bus.Config{Logger: logger()})
					runs, refused := d.careless(w, tr.meet(w, d, by))
					w.save(Paid{Order: name})
					w.once()
					if tr.counted {
						require.Equal(w.T, done, w.effects(2), "%s: a counted attempt comes later", name)
						w.hurry()
						w.once()
					}
					done++
					require.EqualValues(w.T, 2, runs.Load(), "%s: run again, %s", name, w.errors())
					require.EqualValues(w.T, 1, refused.Load(), "%s: after the end statements are refused", name)
					require.Zero(w.T, w.effects(1), "%s: nothing of the first run", name)
					require.Equal(w.T, done, w.effects(2), name)
					attempts := w.count("SELECT MAX(attempts) FROM bc_event_consume_log")
					require.Equal(w.T, tr.counted, attempts > 1, "%s: %d attempts", name, attempts)
					w.requireSent(done)
				}
			})
		}
	}
}

// careless has a handler that swallows what meet answers, and writes an effect before and after.
func (d Door[T]) careless(w *World, meet func(ctx context.Context, tx T) error) (runs, refused *atomic.Int64) {
	runs, refused = new(atomic.Int64), new(atomic.Int64)
	d.On(w.Bus.Consumer("A", bus.ConsumerConfig{MaxAttempts: 3}), func(ctx context.Context, tx T, m bus.Message[Paid]) error {
		if runs.Add(1) > 1 {
			return d.write(ctx, tx, m, 2)
		}
		if err := d.write(ctx, tx, m, 1); err != nil {
			return err
		}
		if err := meet(ctx, tx); err == nil {
			return bus.Permanent(errors.New("nothing went wrong"))
		}
		if err := d.write(ctx, tx, m, 1); err != nil {
			refused.Add(1)
		}
		for _, by := range d.Ways {
			if err := by(ctx, tx, "SELECT 1"); err == nil {
				return bus.Permanent(errors.New("a statement was taken after the end"))
			}
		}
		return nil // swallowed
	})
	return runs, refused
}

// After a deadlock MariaDB and MySQL run on in autocommit.
func deadlock[T any](w *World, d Door[T], by way[T]) func(ctx context.Context, tx T) error {
	return func(ctx context.Context, tx T) error {
		if err := d.Ways["Exec"](ctx, tx, "UPDATE hot SET n = n + 1 WHERE id = 1"); err != nil {
			return nil // then the test fails
		}
		locked := make(chan struct{})
		unlock := sync.OnceFunc(func() { close(locked) })
		ctxOther, stop := context.WithCancel(context.WithoutCancel(ctx))
		defer stop()
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer unlock()
			_ = w.DB.RunInTx(ctxOther, &sql.TxOptions{}, func(ctx context.Context, other bun.Tx) error {
				return lockOpposite(ctx, w, other, unlock)
			})
		}()
		<-locked
		err := by(ctx, tx, "SELECT n FROM hot WHERE id IN (0, ?) ORDER BY id FOR UPDATE", 2)
		if err == nil {
			stop() // or it would wait for this transaction
		}
		<-done
		return err
	}
}

// lockOpposite has changed more rows, so that the other transaction is the victim.
func lockOpposite(ctx context.Context, w *World, tx bun.Tx, locked func()) error {
	if w.Dialect() == "postgres" {
		if _, err := tx.ExecContext(ctx, "SET LOCAL deadlock_timeout = '10s'"); err != nil { // the other side is found first
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, "UPDATE hot SET n = n + 1 WHERE id >= 2"); err != nil {
		return err
	}
	locked()
	_, err := tx.ExecContext(ctx, "UPDATE hot SET n = n + 1 WHERE id = 1")
	return err
}

// A lock wait timeout rolls back only its statement; COMMIT would keep the rest.
func lockWait[T any](w *World, d Door[T], by way[T]) func(ctx context.Context, tx T) error {
	holder, err := w.DB.BeginTx(context.Background(), nil)
	require.NoError(w.T, err)
	_, err = holder.ExecContext(context.Background(), "UPDATE hot SET n = 1 WHERE id = 3")
	require.NoError(w.T, err)
	return func(ctx context.Context, tx T) error {
		if err := d.Ways["Exec"](ctx, tx, "SET SESSION innodb_lock_wait_timeout = 1"); err != nil {
			return nil //nolint:nilerr // then the test fails
		}
		err := by(ctx, tx, "SELECT n FROM hot WHERE id = ? FOR UPDATE", 3)
		_ = holder.Rollback()
		return err
	}
}

// A connection that is lost takes its transaction along.
func lostConnection[T any](w *World, d Door[T], by way[T]) func(ctx context.Context, tx T) error {
	kill := map[string]string{"postgres": "SELECT pg_terminate_backend(?)", "mysql": "KILL ?"}[w.Dialect()]
	ask := map[string]string{"postgres": "SELECT pg_backend_pid()", "mysql": "SELECT CONNECTION_ID()"}[w.Dialect()]
	return func(ctx context.Context, tx T) error {
		id, err := d.Number(ctx, tx, ask)
		if err != nil {
			return nil //nolint:nilerr // then the test fails
		}
		w.exec(kill, id)
		w.eventually(func() bool { return by(ctx, tx, "SELECT seq FROM effect") != nil }, "the connection is gone")
		return errors.New("it is gone")
	}
}

// SQLite ends a transaction by INSERT OR ROLLBACK, and runs on in autocommit.
func rolledBack[T any](_ *World, _ Door[T], by way[T]) func(ctx context.Context, tx T) error {
	return func(ctx context.Context, tx T) error {
		return by(ctx, tx, "INSERT OR ROLLBACK INTO hot (id, n) VALUES (?, 0) RETURNING id", 1)
	}
}
