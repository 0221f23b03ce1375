package outbox_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// txKinds are the ways to begin a transaction on a database.
func txKinds(t *testing.T, dialect, dsn string, db *bun.DB) map[string]func() outbox.Tx {
	t.Helper()
	plain := func(pool *sql.DB) func() outbox.Tx {
		return func() outbox.Tx {
			tx, err := pool.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			return tx
		}
	}
	other := testdb.OpenDSN(t, dsn)
	kinds := map[string]func() outbox.Tx{
		"*sql.Tx": plain(db.DB), "*sql.Tx of another pool": plain(other.DB),
		"bun.Tx": func() outbox.Tx {
			tx, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			return tx
		},
		"bun.Tx of another pool": func() outbox.Tx {
			tx, err := other.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			return &tx
		},
		"a struct around a bun.Tx": func() outbox.Tx {
			tx, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			return struct{ bun.Tx }{tx}
		},
		"a struct around a *sql.Tx": func() outbox.Tx {
			tx, err := db.DB.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			return wrapped{tx, "as sqlx has it"}
		},
		"a struct with a bun.Tx in a field": func() outbox.Tx {
			tx, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			return logged{inner: tx}
		},
	}
	if testdb.Dialect(dialect) == "postgres" {
		for _, mode := range []string{"simple_protocol", "exec", "describe_exec"} {
			kinds["*sql.Tx, pgx in mode "+mode] = plain(testdb.OpenDSN(t, withOption(t, dsn, "default_query_exec_mode", mode)).DB)
		}
	}
	return kinds
}

type wrapped struct {
	*sql.Tx
	driver string
}

// logged has an optional logger, which may be nil.
type logged struct {
	inner  bun.Tx
	logger *slog.Logger
}

func (l logged) Commit() error   { return l.inner.Commit() }
func (l logged) Rollback() error { return l.inner.Rollback() }
func (l logged) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if l.logger != nil {
		l.logger.DebugContext(ctx, "statement", "sql", query)
	}
	return l.inner.Tx.ExecContext(ctx, query, args...)
}

func (l logged) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return l.inner.Tx.QueryContext(ctx, query, args...)
}

func withOption(t *testing.T, dsn, name, value string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	query := u.Query()
	query.Set(name, value)
	u.RawQuery = query.Encode()
	return u.String()
}

// all are events with everything that an event may have, and text that a database could misread.
func all(id string) []bus.Event {
	return []bus.Event{
		orderPaid{OrderID: id, Seq: 1},
		outbox.With(orderPaid{OrderID: id, Seq: 2}, outbox.Tenant(7, 3), outbox.Meta("note", `it's a \ "test" ? $1 ?`)),
		keyedPaid{orderPaid{OrderID: id, Seq: 3}},
		outbox.With(keyedPaid{orderPaid{OrderID: id, Seq: 4}}, outbox.Tenant(8, 0)),
		outbox.With(orderPaid{OrderID: id, Seq: 5}, nil, outbox.DeliverAt(time.Now().Add(time.Hour))),
		keyedPaid{orderPaid{OrderID: id, Seq: 6}}, // a repetition
	}
}

// An event exists if and only if its transaction committed, whatever kind of transaction it is.
func TestSaveTakesEveryKindOfTransaction(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Dialects() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.DSN(t, dialect)
			f := newFixture(t, migrated(t, dsn))
			f.effects()
			notes := make(map[string]int)
			bus.On(f.bus.Consumer("Counter", bus.ConsumerConfig{Concurrency: 1}),
				func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
					notes[m.Metadata["note"]]++
					return effect(ctx, tx, m, m.Payload.Seq)
				})
			saved := 0
			for name, begin := range txKinds(t, dialect, dsn, f.db) {
				for i := range 3 { // statements are prepared once they have been seen
					id := fmt.Sprint(saved)
					tx := begin()
					require.NoError(t, f.ob.Save(t.Context(), tx, all(id)...), name)
					require.NoError(t, f.ob.Save(t.Context(), tx, keyedPaid{orderPaid{OrderID: id}}), "%s: a repetition", name)
					require.NoError(t, tx.Rollback(), name)
					require.Equal(t, 5*saved, f.count("SELECT COUNT(*) FROM bc_outbox_event"), "%s: rolled back", name)

					tx = begin()
					require.NoError(t, f.ob.Save(t.Context(), tx, all(id)...), name)
					require.NoError(t, f.ob.Save(t.Context(), tx, keyedPaid{orderPaid{OrderID: id}}), "%s: a repetition", name)
					require.NoError(t, tx.Commit(), name)
					saved++
					require.Equal(t, 5*saved, f.count("SELECT COUNT(*) FROM bc_outbox_event"), "%s: committed", name)

					tx = begin()
					require.NoError(t, f.ob.Save(t.Context(), tx, all(id)[2:4]...), "%s: repetitions", name)
					require.NoError(t, tx.Commit(), name)
					require.Equal(t, 5*saved, f.count("SELECT COUNT(*) FROM bc_outbox_event"), "%s: repetitions are not saved", name)
					if i == 0 {
						f.once()
					}
				}
			}
			f.once()
			require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 4 * saved, outbox.StatusScheduled: saved}, f.statuses())
			require.Equal(t, map[consumelog.Status]int{consumelog.Success: 4 * saved}, f.deliveries())
			require.Equal(t, 4*saved, f.count("SELECT COUNT(*) FROM effect"))
			require.Equal(t, 10*saved, f.count("SELECT SUM(seq) FROM effect"), "each of 1, 2, 3 and 4")
			require.Equal(t, saved, notes[`it's a \ "test" ? $1 ?`])
		})
	}
}

// sent counts the statements that a plain transaction gets.
type sent struct {
	*sql.Tx
	all []string
}

func (s *sent) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	s.all = append(s.all, "Exec "+dialect.Verb(query))
	return s.Tx.ExecContext(ctx, query, args...)
}

func (s *sent) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	s.all = append(s.all, "Query "+dialect.Verb(query))
	return s.Tx.QueryContext(ctx, query, args...)
}

func (s *sent) Commit() error   { panic("the library must not commit") }
func (s *sent) Rollback() error { panic("the library must not roll back") }

// Saving costs one INSERT also in a plain transaction, from the first on; with a key three statements at most, on PostgreSQL and
// SQLite by ExecContext alone. The end of the transaction is the caller's.
func TestSaveCostsAPlainTransactionOneInsert(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		statements := func(events ...bus.Event) []string {
			tx, err := db.DB.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			seen := &sent{Tx: tx}
			require.NoError(t, f.ob.Save(t.Context(), seen, events...))
			require.NoError(t, tx.Commit())
			return seen.all
		}
		require.Equal(t, []string{"Exec INSERT"}, statements(orderPaid{OrderID: "1"}))
		require.Equal(t, []string{"Exec INSERT"}, statements(orderPaid{OrderID: "1"}, orderPaid{OrderID: "2"},
			outbox.With(orderPaid{OrderID: "3"}, outbox.DeliverAt(time.Now().Add(time.Hour)))))
		keyed, repeated := []string{"Exec INSERT", "Exec INSERT"}, []string{"Exec INSERT", "Exec INSERT"}
		if db.Dialect().Name().String() == "mysql" {
			keyed, repeated = []string{"Query SELECT", "Exec INSERT", "Exec INSERT"}, []string{"Query SELECT"}
		}
		require.Equal(t, keyed, statements(keyedPaid{orderPaid{OrderID: "2"}}))
		require.Equal(t, repeated, statements(keyedPaid{orderPaid{OrderID: "2"}}))
		require.Equal(t, 5, f.count("SELECT COUNT(*) FROM bc_outbox_event"))
	})
}

// A pool is no transaction: Save does not compile with it.
func TestNoPoolIsATransaction(t *testing.T) {
	t.Parallel()
	tx := reflect.TypeFor[outbox.Tx]()
	for _, pool := range []any{&sql.DB{}, &sql.Conn{}, &bun.DB{}, bun.Conn{}} {
		require.False(t, reflect.TypeOf(pool).Implements(tx), "%T", pool)
	}
	for _, open := range []any{&sql.Tx{}, bun.Tx{}, &bun.Tx{}} {
		require.True(t, reflect.TypeOf(open).Implements(tx), "%T", open)
	}
}

// What is no open transaction is refused by name, with what to do.
func TestSaveNeedsAnOpenTransaction(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		paid := orderPaid{OrderID: "1"}
		for _, never := range []outbox.Tx{
			bun.Tx{},
			&bun.Tx{}, (*bun.Tx)(nil), (*sql.Tx)(nil), &sql.Tx{},
			wrapped{},
			&wrapped{}, (*wrapped)(nil),
			struct{ bun.Tx }{},
			logged{},
			&logged{},
		} {
			err := f.ob.Save(t.Context(), never, paid)
			require.ErrorContains(t, err, fmt.Sprintf("outbox: Save needs an open transaction, got a %T that was never begun: begin one", never))
		}
		require.ErrorContains(t, f.ob.Save(t.Context(), nil, paid), "outbox: Save needs an open transaction, got nil: begin one")
		require.NoError(t, f.ob.Save(t.Context(), nil), "no event, nothing to do")

		for _, end := range []func(outbox.Tx) error{outbox.Tx.Commit, outbox.Tx.Rollback} {
			for name, begin := range map[string]func() outbox.Tx{
				"bun": func() outbox.Tx { return f.open(sql.LevelDefault) },
				"sql": func() outbox.Tx {
					tx, err := db.DB.BeginTx(t.Context(), nil)
					require.NoError(t, err)
					return tx
				},
			} {
				for _, event := range []bus.Event{paid, keyedPaid{paid}} {
					tx := begin()
					require.NoError(t, end(tx))
					err := f.ob.Save(t.Context(), tx, event)
					require.ErrorIs(t, err, sql.ErrTxDone, name)
					require.ErrorContains(t, err, "outbox: save order.paid: the transaction has ended: save before its Commit or Rollback", name)
				}
			}
		}
		tx, err := db.DB.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		require.ErrorContains(t, f.ob.Save(t.Context(), tx, nil), "event 1 of 1 (nil): the event is nil")
		require.ErrorIs(t, f.ob.Save(t.Context(), tx, paid, nil), outbox.ErrInvalidEvent)
		require.NoError(t, f.ob.Save(t.Context(), tx, paid), "nothing was sent: the transaction is still usable")
		require.NoError(t, tx.Commit())
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_outbox_event"))
	})
}

// A transaction of another kind of database is refused where it can be told, and otherwise the database's error says what it may be.
func TestTransactionOfAnotherDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		elsewhere := testdb.Open(t, "sqlite", testdb.Bare)
		elsewhereName := "sqlite"
		if db.Dialect().Name().String() == elsewhereName {
			elsewhere, elsewhereName = bun.NewDB(elsewhere.DB, pgdialect.New()), "pg"
		}
		tx, err := elsewhere.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, tx.Rollback()) }()
		err = f.ob.Save(t.Context(), tx, orderPaid{OrderID: "1"})
		require.ErrorContains(t, err, "outbox: Save got a transaction of another database ("+elsewhereName+"; the outbox is in "+
			db.Dialect().Name().String()+")")
		require.ErrorContains(t, err, "save in the transaction of the database that the outbox was made for")
		err = f.ob.Save(t.Context(), tx.Tx, orderPaid{OrderID: "1"})
		require.ErrorContains(t, err, "or the transaction is not one of the outbox's database ("+db.Dialect().Name().String()+")")
	})
}

// Open finds out the database, whatever the driver is called, and gives it to everything else.
func TestOpenFindsOutTheDatabase(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		opened, err := outbox.Open(t.Context(), db.DB)
		require.NoError(t, err)
		require.Equal(t, db.Dialect().Name(), opened.Dialect().Name())
		require.Same(t, db.DB, opened.DB, "it is the same pool")
		f := newFixture(t, opened)
		f.effects()
		f.counting("A", bus.ConsumerConfig{})
		tx, err := db.DB.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, f.ob.Save(t.Context(), tx, orderPaid{OrderID: "1"}))
		require.NoError(t, tx.Commit())
		f.once()
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect"))
	})
}

func TestOpenRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	_, err := outbox.Open(t.Context(), nil)
	require.ErrorContains(t, err, "outbox.Open: db is nil")
	closed := bun.NewDB(testdb.Open(t, "sqlite", testdb.Bare).DB, sqlitedialect.New())
	require.NoError(t, closed.Close())
	_, err = outbox.Open(t.Context(), closed.DB)
	require.ErrorContains(t, err, "outbox.Open: the database does not answer")
	for version, says := range map[string]string{
		"":                          "none of MySQL, MariaDB, PostgreSQL and SQLite, or does not say so: no such function",
		"CockroachDB CCL v24.1.0":   `(version "CockroachDB CCL v24.1.0", by its driver *outbox_test.oddDriver) is none of MySQL`,
		"Microsoft SQL Server 2022": "use one of these",
	} {
		odd := sql.OpenDB(&oddDriver{version: version})
		_, err = outbox.Open(t.Context(), odd)
		require.ErrorContains(t, err, says)
		require.NoError(t, odd.Close())
	}
}

// oddDriver is that of a database that says its version, if it has one, and nothing else.
type oddDriver struct{ version string }

func (d *oddDriver) Connect(context.Context) (driver.Conn, error) {
	return &oddConn{version: d.version}, nil
}
func (d *oddDriver) Driver() driver.Driver            { return d }
func (d *oddDriver) Open(string) (driver.Conn, error) { return d.Connect(context.Background()) }

type oddConn struct {
	version string
	done    bool
}

func (*oddConn) Prepare(string) (driver.Stmt, error) { return nil, errors.New("no such function") }
func (*oddConn) Close() error                        { return nil }
func (*oddConn) Begin() (driver.Tx, error)           { return nil, errors.New("no such function") }
func (*oddConn) Columns() []string                   { return []string{"version"} }

// QueryContext answers the one question.
func (c *oddConn) QueryContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Rows, error) {
	if c.version == "" || query != "SELECT version()" {
		return nil, errors.New("no such function")
	}
	c.done = false
	return c, nil
}

// Next is the version, once.
func (c *oddConn) Next(dest []driver.Value) error {
	if c.done {
		return io.EOF
	}
	c.done = true
	dest[0] = c.version
	return nil
}
