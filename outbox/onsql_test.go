package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// native is a query with the database's own placeholders.
func (f *fixture) native(query string) string {
	if f.db.Dialect().Name().String() != "pg" {
		return query
	}
	var b strings.Builder
	for i, part := range strings.Split(query, "?") {
		if i > 0 {
			fmt.Fprintf(&b, "$%d", i)
		}
		b.WriteString(part)
	}
	return b.String()
}

const insertEffect = "INSERT INTO effect (consumer, event_id, aggregate, seq) VALUES (?, ?, ?, ?)"

// sqlEffect is effect by way of a bus.Tx.
func (f *fixture) sqlEffect(ctx context.Context, tx bus.Tx, m bus.Message[orderPaid], seq int) error {
	_, err := tx.ExecContext(ctx, f.native(insertEffect), m.Consumer, m.ID, m.AggregateID, seq)
	return err
}

// The handlers of OnSQL and OnSQLBatch write by every method of their transaction, beside one of On in the same consumer.
func TestOnSQLTakesEffectOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		one := f.bus.Consumer("One", bus.ConsumerConfig{})
		bus.OnSQL(one, func(ctx context.Context, tx bus.Tx, m bus.Message[orderPaid]) error {
			stmt, err := tx.PrepareContext(ctx, f.native(insertEffect))
			if err != nil {
				return err
			}
			defer stmt.Close()
			if _, err := stmt.ExecContext(ctx, m.Consumer, m.ID, m.AggregateID, 1); err != nil {
				return err
			}
			if err := f.sqlEffect(ctx, tx, m, 2); err != nil {
				return err
			}
			seen, err := f.seen(ctx, tx, m.ID)
			if err != nil {
				return err
			}
			if fmt.Sprint(seen) != "[1 2]" {
				return fmt.Errorf("the handler sees %v of its own effects", seen)
			}
			return nil
		})
		bus.On(one, func(ctx context.Context, tx bun.Tx, m bus.Message[orderShipped]) error { return effect(ctx, tx, m, 3) })
		var calls atomic.Int64
		bus.OnSQLBatch(f.bus.Consumer("Many", bus.ConsumerConfig{}), func(ctx context.Context, tx bus.Tx, ms []bus.Message[orderPaid]) error {
			calls.Add(1)
			for _, m := range ms {
				if err := f.sqlEffect(ctx, tx, m, 1); err != nil {
					return err
				}
			}
			return nil
		})
		f.save(orderPaid{OrderID: "1"}, orderShipped{orderPaid{OrderID: "1"}}, orderPaid{OrderID: "2"})
		f.once()
		f.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 3}, f.statuses(),
			f.texts("SELECT COALESCE(error_message, consumer_name) FROM bc_event_consume_log"))
		require.Equal(t, 2, f.count("SELECT COUNT(*) FROM effect WHERE consumer = 'One' AND seq = 1"))
		require.Equal(t, 2, f.count("SELECT COUNT(*) FROM effect WHERE consumer = 'One' AND seq = 2"))
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect WHERE seq = 3"))
		require.Equal(t, 2, f.count("SELECT COUNT(*) FROM effect WHERE consumer = 'Many'"))
		require.EqualValues(t, 1, calls.Load(), "both in one call")
		require.Zero(t, f.count("SELECT COUNT(*) FROM bc_delivery_attempt"))
	})
}

// orderShipped is another fact about an order.
type orderShipped struct{ orderPaid }

func (orderShipped) EventType() string { return "order.shipped" }

// seen reads the effects of an event by rows, and looks at one by QueryRow.
func (f *fixture) seen(ctx context.Context, tx bus.Tx, event string) (seqs []int, err error) {
	const query = "SELECT seq, aggregate FROM effect WHERE consumer = 'One' AND event_id = ? ORDER BY seq"
	rows, err := tx.QueryContext(ctx, f.native(query), event)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	types, err := rows.ColumnTypes()
	if err != nil || len(types) != 2 || types[0].DatabaseTypeName() == "" {
		return nil, fmt.Errorf("columns are %v: %w", types, err)
	}
	for rows.Next() {
		var seq int
		var aggregate string
		if err := rows.Scan(&seq, &aggregate); err != nil {
			return nil, err
		}
		seqs = append(seqs, seq)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	var none int
	err = tx.QueryRowContext(ctx, f.native("SELECT seq FROM effect WHERE event_id = ? AND seq = 99"), event).Scan(&none)
	if !errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("no such row: %w", err)
	}
	return seqs, nil
}

// swallows are ways to meet an error and to go on as if there were none.
var swallows = map[string]func(ctx context.Context, tx bus.Tx, query string, args ...any) error{
	"Exec": func(ctx context.Context, tx bus.Tx, query string, args ...any) error {
		_, err := tx.ExecContext(ctx, query, args...)
		return err
	},
	"Stmt": func(ctx context.Context, tx bus.Tx, query string, args ...any) error {
		stmt, err := tx.PrepareContext(ctx, query)
		if err != nil {
			return fmt.Errorf("prepare: %w", err)
		}
		defer stmt.Close()
		_, err = stmt.ExecContext(ctx, args...)
		return err
	},
	"RowScan": func(ctx context.Context, tx bus.Tx, query string, args ...any) error {
		var n any
		return tx.QueryRowContext(ctx, query, args...).Scan(&n)
	},
	"RowsErr": func(ctx context.Context, tx bus.Tx, query string, args ...any) error {
		rows, err := tx.QueryContext(ctx, query, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
		}
		return rows.Err()
	},
	"StmtRows": func(ctx context.Context, tx bus.Tx, query string, args ...any) error {
		stmt, err := tx.PrepareContext(ctx, query)
		if err != nil {
			return fmt.Errorf("prepare: %w", err)
		}
		defer stmt.Close()
		var n any
		return stmt.QueryRowContext(ctx, args...).Scan(&n)
	},
}

// careless has a handler that swallows what spoil answers, and writes an effect before and after.
func (f *fixture) careless(name string, spoil func(ctx context.Context, tx bus.Tx) error) (runs, refused *atomic.Int64) {
	f.effects()
	runs, refused = new(atomic.Int64), new(atomic.Int64)
	bus.OnSQL(f.bus.Consumer(name, bus.ConsumerConfig{MaxAttempts: 3}), func(ctx context.Context, tx bus.Tx, m bus.Message[orderPaid]) error {
		if runs.Add(1) > 1 {
			return f.sqlEffect(ctx, tx, m, 2)
		}
		if err := f.sqlEffect(ctx, tx, m, 1); err != nil {
			return err
		}
		if err := spoil(ctx, tx); err == nil {
			return errors.New("nothing went wrong")
		}
		if err := f.sqlEffect(ctx, tx, m, 1); err != nil {
			refused.Add(1)
		}
		for _, way := range swallows {
			if err := way(ctx, tx, "SELECT 1"); err == nil {
				return errors.New("a statement was taken after the end")
			}
		}
		return nil // swallowed
	})
	return runs, refused
}

// After a deadlock MariaDB and MySQL run on in autocommit. Whichever way the handler met it and swallowed it, it is found out.
func TestOnSQLSwallowedDeadlockNeverCommits(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Servers() {
		for way, run := range swallows {
			t.Run(dialect+"/"+way, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t, testdb.Open(t, dialect))
				f.hot(100)
				runs, refused := f.careless("A", func(ctx context.Context, tx bus.Tx) error {
					return f.deadlock(ctx, tx, func() error {
						return run(ctx, tx, f.native("SELECT n FROM hot WHERE id IN (0, ?) ORDER BY id FOR UPDATE"), 2)
					})
				})
				f.save(orderPaid{OrderID: "1"})
				f.once()
				f.requireSecondRun(runs, refused)
			})
		}
	}
}

// SQLite ends a transaction by INSERT OR ROLLBACK, and runs on in autocommit. That is an attempt, and nothing of it stays.
func TestOnSQLSwallowedEndOfTheTransactionTakesNothingMore(t *testing.T) {
	t.Parallel()
	for way, run := range swallows {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, testdb.Open(t, "sqlite"))
			f.exec("CREATE TABLE seen (id INT PRIMARY KEY)")
			f.exec("INSERT INTO seen VALUES (1)")
			runs, refused := f.careless("A", func(ctx context.Context, tx bus.Tx) error {
				return run(ctx, tx, "INSERT OR ROLLBACK INTO seen VALUES (?) RETURNING id", 1)
			})
			f.save(orderPaid{OrderID: "1"})
			f.once()
			require.Equal(t, map[consumelog.Status]int{consumelog.Failed: 1}, f.deliveries(), "the handler's doing: a counted attempt")
			require.Zero(t, f.count("SELECT COUNT(*) FROM effect"))
			require.EqualValues(t, 1, refused.Load())
			f.hurry()
			f.once()
			require.EqualValues(t, 2, runs.Load())
			require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect WHERE seq = 2"))
		})
	}
}

// A lock wait timeout rolls back only its statement; COMMIT would keep the rest.
func TestOnSQLSwallowedLockWaitNeverCommits(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Servers() {
		if testdb.Dialect(dialect) != "mysql" {
			continue
		}
		for way, run := range swallows {
			t.Run(dialect+"/"+way, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t, testdb.Open(t, dialect))
				f.hot(1)
				holder := f.holdHot()
				runs, refused := f.careless("A", func(ctx context.Context, tx bus.Tx) error {
					if _, err := tx.ExecContext(ctx, "SET SESSION innodb_lock_wait_timeout = 1"); err != nil {
						return nil //nolint:nilerr // then the test fails
					}
					err := run(ctx, tx, "SELECT n FROM hot WHERE id = ? FOR UPDATE", 0)
					_ = holder.Rollback()
					return err
				})
				f.save(orderPaid{OrderID: "1"})
				f.once()
				f.requireSecondRun(runs, refused)
			})
		}
	}
}

// A connection that is lost under the handler takes its transaction along.
func TestOnSQLSwallowedLossOfTheConnectionNeverCommits(t *testing.T) {
	t.Parallel()
	kill := map[string]string{"postgres": "SELECT pg_terminate_backend(?)", "mysql": "KILL ?"}
	ask := map[string]string{"postgres": "SELECT pg_backend_pid()", "mysql": "SELECT CONNECTION_ID()"}
	for _, dialect := range testdb.Servers() {
		for way, run := range swallows {
			t.Run(dialect+"/"+way, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t, testdb.Open(t, dialect))
				runs, refused := f.careless("A", func(ctx context.Context, tx bus.Tx) error {
					var id int64
					if err := tx.QueryRowContext(ctx, ask[testdb.Dialect(dialect)]).Scan(&id); err != nil {
						return nil //nolint:nilerr // then the test fails
					}
					f.exec(kill[testdb.Dialect(dialect)], id)
					f.eventually(func() bool { return run(ctx, tx, "SELECT seq FROM effect") != nil }, "the connection is gone")
					return errors.New("it is gone")
				})
				f.save(orderPaid{OrderID: "1"})
				f.once()
				f.requireSecondRun(runs, refused)
			})
		}
	}
}

// Commit, Rollback and statements that say the same fail the delivery, whatever the handler answers, and nothing takes effect.
func TestOnSQLHandlerCannotEndItsTransaction(t *testing.T) {
	t.Parallel()
	ends := map[string]func(ctx context.Context, tx bus.Tx) error{
		"Commit":   func(_ context.Context, tx bus.Tx) error { return tx.Commit() },
		"Rollback": func(_ context.Context, tx bus.Tx) error { return tx.Rollback() },
	}
	for _, query := range []string{"COMMIT", " /* now */ commit", "ROLLBACK", "END", "rollback work", "COMMIT AND CHAIN", "BEGIN"} {
		for way, run := range swallows {
			ends[way+" "+query] = func(ctx context.Context, tx bus.Tx) error { return run(ctx, tx, query) }
		}
	}
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		for name, end := range ends {
			bus.OnSQL(f.bus.Consumer(consumerName(name), bus.ConsumerConfig{MaxAttempts: 1}),
				func(ctx context.Context, tx bus.Tx, m bus.Message[orderPaid]) error {
					if err := f.sqlEffect(ctx, tx, m, 1); err != nil {
						return err
					}
					if err := end(ctx, tx); err == nil {
						return bus.RetryAfter(errors.New("it was allowed"), 0)
					}
					_ = f.sqlEffect(ctx, tx, m, 2)
					return nil
				})
		}
		f.save(orderPaid{OrderID: "1"})
		f.once()
		require.Zero(t, f.count("SELECT COUNT(*) FROM effect"))
		require.Equal(t, map[consumelog.Status]int{consumelog.Dead: len(ends)}, f.deliveries(),
			f.texts("SELECT COALESCE(error_message, consumer_name) FROM bc_event_consume_log"))
		require.Equal(t, len(ends), f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE error_message LIKE '%ended its transaction%'"))
	})
}

// consumerName makes a name of a text.
func consumerName(text string) string {
	return strings.Map(func(r rune) rune {
		if r == ' ' || r == '/' || r == '*' {
			return '_'
		}
		return r
	}, text)
}
