package pgxtx_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/adapter/pgxtx"
	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/bustest"
	"github.com/bluecone-go/bluecone/consumelog"
)

const insert = "INSERT INTO effect (id, cents) VALUES ($1, $2)"

// ways are the ways in which pgx sends a statement.
var ways = map[string]func(ctx context.Context, tx pgx.Tx, query string, args ...any) error{
	"Exec": func(ctx context.Context, tx pgx.Tx, query string, args ...any) error {
		_, err := tx.Exec(ctx, query, args...)
		return err
	},
	"Query": func(ctx context.Context, tx pgx.Tx, query string, args ...any) error {
		rows, err := tx.Query(ctx, query, args...)
		if err != nil {
			return err
		}
		rows.Close()
		return rows.Err()
	},
	"CollectRows": func(ctx context.Context, tx pgx.Tx, query string, args ...any) error {
		rows, _ := tx.Query(ctx, query, args...)
		_, err := pgx.CollectRows(rows, pgx.RowToMap)
		return err
	},
	"QueryRow": func(ctx context.Context, tx pgx.Tx, query string, args ...any) error {
		if err := tx.QueryRow(ctx, query, args...).Scan(anyRow{}); err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		return nil
	},
	"Prepare": func(ctx context.Context, tx pgx.Tx, query string, args ...any) error {
		if _, err := tx.Prepare(ctx, query, query); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, query, args...)
		return err
	},
	"batch": func(ctx context.Context, tx pgx.Tx, query string, args ...any) error {
		b := &pgx.Batch{}
		b.Queue("SELECT 1")
		b.Queue(query, args...)
		b.Queue("SELECT 2")
		return tx.SendBatch(ctx, b).Close()
	},
	"results of a batch": func(ctx context.Context, tx pgx.Tx, query string, args ...any) error {
		b := &pgx.Batch{}
		b.Queue("SELECT 1")
		b.Queue(query, args...)
		results := tx.SendBatch(ctx, b)
		defer func() { _ = results.Close() }()
		var one int
		if err := results.QueryRow().Scan(&one); err != nil {
			return err
		}
		_, err := results.Exec()
		return err
	},
	"callback of a batch": func(ctx context.Context, tx pgx.Tx, query string, args ...any) (err error) {
		b := &pgx.Batch{}
		b.Queue(query, args...).Query(func(rows pgx.Rows) error {
			rows.Close()
			err = rows.Err()
			return nil
		})
		return errors.Join(tx.SendBatch(ctx, b).Close(), err)
	},
	"savepoint": func(ctx context.Context, tx pgx.Tx, query string, args ...any) error {
		return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, query, args...)
			return err
		})
	},
}

// anyRow takes any row.
type anyRow struct{}

// ScanRow looks at nothing.
func (anyRow) ScanRow(pgx.Rows) error { return nil }

// A handler's effect happens once in whatever way it is sent, whatever breaks, and follow-up events with it.
func TestOnHasItsEffectOnce(t *testing.T) {
	t.Parallel()
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.Break(bustest.FailBeforeCommit, bustest.FailAfterCommit, bustest.LoseLease, bustest.Duplicate, bustest.HandlerError)
			var calls atomic.Int64
			c := f.Bus.Consumer("Points", bus.ConsumerConfig{})
			pgxtx.On(c, func(ctx context.Context, tx pgx.Tx, m bus.Message[orderPaid]) error {
				calls.Add(1)
				if err := way(ctx, tx, insert, m.Payload.OrderID, m.Payload.Cents); err != nil {
					return err
				}
				return pgxtx.Save(ctx, f.Outbox, tx, keyed{m.Payload})
			})
			pgxtx.OnBatch(c, func(context.Context, pgx.Tx, []bus.Message[keyed]) error { return nil })
			for i := range 5 {
				require.NoError(t, f.save(orderPaid{OrderID: fmt.Sprint(i), Cents: i}))
			}
			require.Equal(t, 10, f.Drain()[consumelog.Success], f.errors())
			require.Greater(t, calls.Load(), int64(5), "something broke")
			require.Equal(t, 5, f.effects())
			require.Len(t, bustest.AllSaved[keyed](f.Harness), 5)
		})
	}
}

// An error of the database that the handler swallows never commits, in whatever way it was sent, and the delivery fails.
func TestSwallowedErrorNeverCommits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var errs sync.Map // of consumers that run side by side
	for name, way := range ways {
		if name == "savepoint" {
			continue // which fixes it
		}
		c := f.Bus.Consumer(strings.ReplaceAll(name, " ", "-"), bus.ConsumerConfig{MaxAttempts: 1})
		pgxtx.On(c, func(ctx context.Context, tx pgx.Tx, _ bus.Message[orderPaid]) error {
			if _, err := tx.Exec(ctx, insert, name, 1); err != nil {
				return err
			}
			errs.Store(name, way(ctx, tx, insert, name, 2))
			return nil
		})
	}
	swallowsCopy(f, &errs)
	require.NoError(t, f.save(orderPaid{OrderID: "1"}))
	require.Equal(t, bustest.Report{consumelog.Dead: len(ways)}, f.Drain(), f.errors())
	require.Zero(t, f.effects())
	var names []string
	errs.Range(func(name, err any) bool {
		names = append(names, name.(string))
		var pg *pgconn.PgError
		require.ErrorAs(t, err.(error), &pg, name)
		require.Equal(t, "23505", pg.Code, name)
		return true
	})
	require.Len(t, names, len(ways))
	require.Contains(t, f.errors(), "an error of the database that the handler swallowed does this")
}

// swallowsCopy is a consumer whose COPY fails.
func swallowsCopy(f *fixture, errs *sync.Map) {
	pgxtx.On(f.Bus.Consumer("copy", bus.ConsumerConfig{MaxAttempts: 1}), func(ctx context.Context, tx pgx.Tx, _ bus.Message[orderPaid]) error {
		twice := pgx.CopyFromRows([][]any{{"copied", 1}, {"copied", 2}})
		_, err := tx.CopyFrom(ctx, pgx.Identifier{"effect"}, []string{"id", "cents"}, twice)
		errs.Store("copy", err)
		return nil
	})
}

// After an error that ends a transaction on other databases (a deadlock) nothing more is sent and nothing commits, even if the
// handler goes back to a savepoint. The delivery runs again, and that is no attempt.
func TestSwallowedDeadlockNeverCommits(t *testing.T) {
	t.Parallel()
	const deadlock = "DO $$ BEGIN RAISE EXCEPTION 'a deadlock' USING ERRCODE = '40P01'; END $$"
	for name, way := range ways {
		if name == "savepoint" || name == "Prepare" { // the one is in each, the other cannot prepare DO
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			var calls atomic.Int64
			c := f.Bus.Consumer("Points", bus.ConsumerConfig{MaxAttempts: 1})
			pgxtx.On(c, func(ctx context.Context, tx pgx.Tx, _ bus.Message[orderPaid]) error {
				n := calls.Add(1)
				if _, err := tx.Exec(ctx, insert, fmt.Sprint("call ", n), n); err != nil || n > 1 {
					return err
				}
				nested, err := tx.Begin(ctx)
				if err != nil {
					return err
				}
				if way(ctx, nested, deadlock) == nil {
					return errors.New("no deadlock")
				}
				if err := nested.Rollback(ctx); !errors.Is(err, pgx.ErrTxClosed) {
					return fmt.Errorf("it can go back: %w", err)
				}
				_, _ = tx.Exec(ctx, insert, "after it", 1)
				return nil
			})
			require.NoError(t, f.save(orderPaid{OrderID: "1"}))
			require.Equal(t, 1, f.Drain()[consumelog.Success], f.errors())
			require.Equal(t, 1, f.effects())
			require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect WHERE id = 'call 2'"))
			require.Zero(t, f.count("SELECT COUNT(*) FROM bc_delivery_attempt"))
		})
	}
}

// A handler that ends its transaction, by whatever, is found out: the delivery fails, and what it wrote is not there.
func TestEarlyEndIsFoundOut(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ends := map[string]func(ctx context.Context, tx pgx.Tx) error{
		"method Commit":   func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
		"method Rollback": func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
		"begun by a batch": func(ctx context.Context, tx pgx.Tx) error {
			b := &pgx.Batch{}
			b.BeginTx(pgx.TxOptions{})
			return tx.SendBatch(ctx, b).Close()
		},
	}
	for _, statement := range []string{"COMMIT", "ROLLBACK", "BEGIN"} {
		for name, way := range ways {
			ends[statement+" by "+name] = func(ctx context.Context, tx pgx.Tx) error { return way(ctx, tx, statement) }
		}
	}
	for name, end := range ends {
		c := f.Bus.Consumer(strings.ReplaceAll(name, " ", "-"), bus.ConsumerConfig{MaxAttempts: 1})
		pgxtx.On(c, func(ctx context.Context, tx pgx.Tx, _ bus.Message[orderPaid]) error {
			if _, err := tx.Exec(ctx, insert, name, 1); err != nil {
				return err
			}
			if end(ctx, tx) == nil {
				return errors.New("not refused")
			}
			_, _ = tx.Exec(ctx, insert, name+" after it", 1)
			return nil
		})
	}
	require.NoError(t, f.save(orderPaid{OrderID: "1"}))
	require.Equal(t, bustest.Report{consumelog.Dead: len(ends)}, f.Drain())
	require.Zero(t, f.effects())
	require.NotContains(t, f.errors(), "not refused")
	require.Contains(t, f.errors(), "the handler ended its transaction")
}

// One text of several statements ends a transaction behind the watch; that is found out after it, and others of a batch, which it
// could have committed, are not in that transaction.
func TestHiddenEndIsFoundOut(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pgxtx.On(f.Bus.Consumer("Points", bus.ConsumerConfig{}), func(ctx context.Context, tx pgx.Tx, m bus.Message[orderPaid]) error {
		if _, err := tx.Exec(ctx, insert, m.Payload.OrderID, m.Attempt); err != nil {
			return err
		}
		if m.Payload.OrderID == "2" && m.Attempt == 1 {
			_, _ = tx.Exec(ctx, "SELECT 1; ROLLBACK; BEGIN")
			_, _ = tx.Exec(ctx, insert, "after it", 1)
		}
		return nil
	})
	for i := range 5 {
		require.NoError(t, f.save(orderPaid{OrderID: fmt.Sprint(i)}))
	}
	require.Equal(t, 5, f.Drain()[consumelog.Success], f.errors())
	require.Equal(t, 5, f.effects())
	require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect WHERE id = '2' AND cents = 2"), "its second attempt")
	require.Zero(t, f.count("SELECT COUNT(*) FROM effect WHERE id = 'after it'"))
}

// A batch handler writes all its events by one COPY, or one batch.
func TestOnBatchSendsAllAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Break(bustest.FailAfterCommit)
	pgxtx.OnBatch(f.Bus.Consumer("Copy", bus.ConsumerConfig{}), func(ctx context.Context, tx pgx.Tx, ms []bus.Message[orderPaid]) error {
		_, err := tx.CopyFrom(ctx, pgx.Identifier{"effect"}, []string{"id", "cents"},
			pgx.CopyFromSlice(len(ms), func(i int) ([]any, error) { return []any{"copied " + ms[i].ID, ms[i].Payload.Cents}, nil }))
		return err
	})
	pgxtx.OnBatch(f.Bus.Consumer("Pipeline", bus.ConsumerConfig{}), func(ctx context.Context, tx pgx.Tx, ms []bus.Message[orderPaid]) error {
		b := &pgx.Batch{}
		for _, m := range ms {
			b.Queue(insert, "sent "+m.ID, m.Payload.Cents)
		}
		return tx.SendBatch(ctx, b).Close()
	})
	for i := range 50 {
		require.NoError(t, f.save(orderPaid{OrderID: fmt.Sprint(i), Cents: i}))
	}
	require.Equal(t, bustest.Report{consumelog.Success: 100}, f.Drain(), f.errors())
	require.Equal(t, 50, f.count("SELECT COUNT(*) FROM effect WHERE id LIKE 'copied %'"))
	require.Equal(t, 50, f.count("SELECT COUNT(*) FROM effect WHERE id LIKE 'sent %'"))
}
