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

// hiddenCommit is a statement that commits, although it does not look so, and what it needs.
func hiddenCommit(t *testing.T, dialect string) (*fixture, string) {
	t.Helper()
	dsn := testdb.DSN(t, dialect)
	if dialect == "postgres" {
		dsn += "&default_query_exec_mode=simple_protocol" // the only one that takes several statements in one text
	}
	f := newFixture(t, migrated(t, dsn))
	f.effects()
	if testdb.Dialect(dialect) != "mysql" {
		return f, "DELETE FROM effect WHERE seq = 77; COMMIT"
	}
	f.exec("CREATE PROCEDURE committing() BEGIN DELETE FROM effect WHERE seq = 77; COMMIT; END")
	return f, "CALL committing()"
}

// A COMMIT that no first word tells of is found out after it was sent. What was committed is one effect; what the handler writes
// after it is refused; and no other event is lost, because no other one is in the transaction.
func TestOnSQLFindsOutAHiddenCommit(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Dialects() {
		for _, way := range []string{"Exec", "RowsErr"} {
			t.Run(dialect+"/"+way, func(t *testing.T) {
				t.Parallel()
				f, query := hiddenCommit(t, dialect)
				var runs, found atomic.Int64
				a := f.bus.Consumer("A", bus.ConsumerConfig{MaxAttempts: 3, Concurrency: 1})
				bus.OnSQL(a, func(ctx context.Context, tx bus.Tx, m bus.Message[orderPaid]) error {
					runs.Add(1)
					if err := f.sqlEffect(ctx, tx, m, 1); err != nil {
						return err
					}
					if m.Payload.Seq == 1 { // others of its batch are before it and behind it
						if err := swallows[way](ctx, tx, query); err != nil {
							found.Add(1)
						}
						_ = f.sqlEffect(ctx, tx, m, 2)
						return errors.New("and fails after it")
					}
					return nil
				})
				var events []bus.Event
				for i := range 6 {
					events = append(events, orderPaid{OrderID: fmt.Sprint(i), Seq: i})
				}
				f.save(events...)
				f.once()
				f.hurry()
				f.once()
				require.Greater(t, runs.Load(), int64(6), "they were together at first, and ran again")
				require.Equal(t, 6, f.count("SELECT COUNT(*) FROM effect WHERE seq = 1"), "each once")
				require.Zero(t, f.count("SELECT COUNT(*) FROM effect WHERE seq = 2"), "nothing after the end")
				require.Positive(t, found.Load())
				require.Equal(t, map[consumelog.Status]int{consumelog.Success: 6}, f.deliveries())
				require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 6}, f.statuses())
			})
		}
	}
}

// A procedure that ends nothing is like any other statement, but that its event is alone in its transaction.
func TestOnSQLCallsProcedures(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Servers() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, testdb.Open(t, dialect))
			f.effects()
			if testdb.Dialect(dialect) == "mysql" {
				f.exec("CREATE PROCEDURE add_effect(what VARCHAR(64)) BEGIN INSERT INTO effect (consumer, event_id, aggregate, seq) " +
					"VALUES ('P', what, '', 1); SELECT what; END")
			} else {
				f.exec("CREATE PROCEDURE add_effect(what VARCHAR(64)) LANGUAGE sql AS $$ INSERT INTO effect (consumer, event_id, aggregate, seq) " +
					"VALUES ('P', what, '', 1) $$")
			}
			bus.OnSQL(f.bus.Consumer("P", bus.ConsumerConfig{}), func(ctx context.Context, tx bus.Tx, m bus.Message[orderPaid]) error {
				_, err := tx.ExecContext(ctx, f.native("CALL add_effect(?)"), m.ID)
				return err
			})
			for i := range 20 {
				f.save(orderPaid{OrderID: fmt.Sprint(i)})
			}
			f.once()
			require.Equal(t, 20, f.count("SELECT COUNT(DISTINCT event_id) FROM effect"))
			require.Equal(t, 20, f.count("SELECT COUNT(*) FROM effect"))
			require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 20}, f.statuses())
			require.Zero(t, f.count("SELECT COUNT(*) FROM bc_delivery_attempt"))
		})
	}
}

// A handler goes back to a savepoint of its own; what it wrote before and after that stays.
func TestOnSQLSavepoints(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		bus.OnSQL(f.bus.Consumer("A", bus.ConsumerConfig{}), func(ctx context.Context, tx bus.Tx, m bus.Message[orderPaid]) error {
			for seq, query := range []string{"SAVEPOINT here", "ROLLBACK TO SAVEPOINT here", "RELEASE SAVEPOINT here"} {
				if err := f.sqlEffect(ctx, tx, m, seq); err != nil {
					return err
				}
				if seq == 1 { // an error that going back fixes
					if _, err := tx.ExecContext(ctx, "INSERT INTO nowhere VALUES (1)"); err == nil {
						return errors.New("there is such a table")
					}
				}
				if _, err := tx.ExecContext(ctx, query); err != nil {
					return err
				}
			}
			return nil
		})
		f.save(orderPaid{OrderID: "1"})
		f.once()
		require.Equal(t, 2, f.count("SELECT COUNT(*) FROM effect"), f.texts("SELECT COALESCE(error_message, '') FROM bc_event_consume_log"))
		require.Zero(t, f.count("SELECT COUNT(*) FROM effect WHERE seq = 1"))
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 1}, f.statuses())
	})
}

// Rows and statements that a handler leaves open are closed, and whoever keeps its transaction can do nothing with it.
func TestOnSQLEndsWithItsHandler(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		var kept bus.Tx
		var stmt *sql.Stmt
		var rows *sql.Rows
		bus.OnSQL(f.bus.Consumer("A", bus.ConsumerConfig{}), func(ctx context.Context, tx bus.Tx, m bus.Message[orderPaid]) (err error) {
			if err := f.sqlEffect(ctx, tx, m, 1); err != nil {
				return err
			}
			kept = tx
			stmt, err = tx.PrepareContext(ctx, "SELECT seq FROM effect") //nolint:sqlclosecheck // left open on purpose
			if err != nil {
				return err
			}
			rows, err = tx.QueryContext(ctx, "SELECT seq FROM effect") //nolint:rowserrcheck,sqlclosecheck // left open on purpose
			if !rows.Next() {
				return errors.New("no row")
			}
			return err
		})
		f.save(orderPaid{OrderID: "1"})
		f.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 1}, f.statuses(),
			f.texts("SELECT COALESCE(error_message, '') FROM bc_event_consume_log"))
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect"))
		require.Error(t, rows.Scan(new(int)))
		_, err := stmt.ExecContext(t.Context())
		require.Error(t, err)
		for name, way := range swallows {
			require.ErrorIs(t, way(t.Context(), kept, "SELECT 1"), sql.ErrTxDone, name)
		}
		require.ErrorIs(t, kept.Commit(), sql.ErrTxDone)
	})
}

// On PostgreSQL the driver keeps the statements of a bus.Tx prepared, although its default mode would not; behind a pooler that
// gives each transaction any connection nothing is prepared, also by PrepareContext.
func TestOnSQLIsPreparedUnlessAPoolerStandsBetween(t *testing.T) {
	t.Parallel()
	dsn := testdb.DSN(t, "postgres")
	migrated(t, dsn)
	//nolint:paralleltest // one after the other, on one table
	for way, through := range map[string]string{"direct": dsn, "pooler": testdb.PoolerDSN(t, dsn)} {
		t.Run(way, func(t *testing.T) {
			f := newFixture(t, testdb.OpenDSN(t, through+"&default_query_exec_mode=simple_protocol"))
			f.effects()
			f.exec("DELETE FROM effect")
			var most atomic.Int64
			bus.OnSQL(f.bus.Consumer(way, bus.ConsumerConfig{}), func(ctx context.Context, tx bus.Tx, m bus.Message[orderPaid]) error {
				if err := f.sqlEffect(ctx, tx, m, 1); err != nil {
					return err
				}
				stmt, err := tx.PrepareContext(ctx, "DELETE FROM effect WHERE seq = $1")
				if err != nil {
					return err
				}
				defer stmt.Close()
				if _, err := stmt.ExecContext(ctx, 77); err != nil {
					return err
				}
				var n int64
				const prepared = "SELECT COUNT(*) FROM pg_prepared_statements WHERE statement LIKE '% effect %'"
				if err := tx.QueryRowContext(ctx, prepared).Scan(&n); err != nil {
					return err
				}
				most.Store(max(most.Load(), n))
				return nil
			})
			for i := range 5 { // the first ones find out what stands between
				f.save(orderPaid{OrderID: way + fmt.Sprint(i)})
				f.once()
			}
			require.Equal(t, 5, f.count("SELECT COUNT(*) FROM effect"))
			require.Equal(t, map[string]int64{"direct": 2, "pooler": 0}[way], most.Load())
			require.Zero(t, f.count("SELECT COUNT(*) FROM bc_delivery_attempt"))
		})
	}
}

// $1 on a bun.Tx and ? on a bus.Tx of PostgreSQL: the error says what to write.
func TestPlaceholdersOfTheWrongKindAreNamed(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		bus.On(f.bus.Consumer("Bun", bus.ConsumerConfig{MaxAttempts: 1}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO effect (consumer, event_id, aggregate, seq) VALUES ($1, $2, 'x', 1)", m.Consumer, m.ID)
			return err
		})
		own := f.bus.Consumer("SQL", bus.ConsumerConfig{MaxAttempts: 1})
		bus.OnSQL(own, func(ctx context.Context, tx bus.Tx, m bus.Message[orderPaid]) error {
			_, err := tx.ExecContext(ctx, insertEffect, m.Consumer, m.ID, m.AggregateID, 1)
			return err
		})
		f.save(orderPaid{OrderID: "1"})
		f.once()
		errs := f.texts("SELECT COALESCE(error_message, '') FROM bc_event_consume_log")
		require.Contains(t, errs, "register the handler with bus.OnSQL")
		if f.db.Dialect().Name().String() == "pg" {
			require.Contains(t, errs, "which are $1, $2 on PostgreSQL, not ?")
		} else {
			require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect"))
		}
		require.Equal(t, strings.Count(errs, "bus.OnSQL"), 1)
	})
}

// followUp is saved by the handler of another event.
type followUp struct{ orderPaid }

func (followUp) EventType() string { return "order.followed" }

var _ outbox.Tx = bus.Tx(nil)

// A bus.Tx is an outbox.Tx: what a handler saves with it belongs to its event's tenant, and exists only if the handler succeeded.
func TestOnSQLSavesFollowUpEvents(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		bus.OnSQL(f.bus.Consumer("A", bus.ConsumerConfig{MaxAttempts: 1}), func(ctx context.Context, tx bus.Tx, m bus.Message[orderPaid]) error {
			if err := f.ob.Save(ctx, tx, followUp{m.Payload}); err != nil {
				return err
			}
			if m.Payload.Seq == 1 {
				return errors.New("and fails after it")
			}
			return nil
		})
		bus.OnSQLBatch(f.bus.Consumer("B", bus.ConsumerConfig{}), func(ctx context.Context, tx bus.Tx, ms []bus.Message[followUp]) error {
			for _, m := range ms {
				if _, err := tx.ExecContext(ctx, f.native(insertEffect), m.Consumer, m.ID, m.AggregateID, m.TenantID); err != nil {
					return err
				}
			}
			return nil
		})
		f.save(outbox.With(orderPaid{OrderID: "1"}, outbox.Tenant(12, 0)), orderPaid{OrderID: "2", Seq: 1})
		f.once()
		f.once()
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_outbox_event WHERE event_type = 'order.followed'"))
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect WHERE consumer = 'B' AND aggregate = '1' AND seq = 12"))
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 2, consumelog.Dead: 1}, f.deliveries())
	})
}
