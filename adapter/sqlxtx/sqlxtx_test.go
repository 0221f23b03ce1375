package sqlxtx_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/adapter/sqlxtx"
	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/internal/txtest"
	"github.com/bluecone-go/bluecone/outbox"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// drivers are their names, by dialect.
var drivers = map[string]string{"mysql": "mysql", "postgres": "pgx", "sqlite": "sqlite"}

func TestSuite(t *testing.T) { //nolint:paralleltest // its tests are
	txtest.Run(t, txtest.Adapter[*sqlx.Tx]{Open: open})
}

func open(w *txtest.World) txtest.Door[*sqlx.Tx] {
	db := sqlx.NewDb(w.DB.DB, drivers[w.Dialect()])
	return txtest.Door[*sqlx.Tx]{
		Begin:    func(ctx context.Context) (*sqlx.Tx, error) { return db.BeginTxx(ctx, nil) },
		Commit:   func(_ context.Context, tx *sqlx.Tx) error { return tx.Commit() },
		Rollback: func(_ context.Context, tx *sqlx.Tx) error { return tx.Rollback() },
		Save: func(ctx context.Context, ob *outbox.Outbox, tx *sqlx.Tx, events ...bus.Event) error {
			return ob.Save(ctx, tx, events...)
		},
		Ways: ways,
		Number: func(ctx context.Context, tx *sqlx.Tx, query string, args ...any) (n int, err error) {
			err = tx.GetContext(ctx, &n, tx.Rebind(query), args...)
			return n, err
		},
		On: func(c *bus.Consumer, fn func(context.Context, *sqlx.Tx, bus.Message[txtest.Paid]) error) {
			sqlxtx.On(c, db, fn)
		},
		OnBatch: func(c *bus.Consumer, fn func(context.Context, *sqlx.Tx, []bus.Message[txtest.Paid]) error) {
			sqlxtx.OnBatch(c, db, fn)
		},
		NotOpen: map[string]*sqlx.Tx{"nil": nil, "the zero value": {}},
	}
}

// ways are sqlx's ways to send a statement.
var ways = map[string]func(ctx context.Context, tx *sqlx.Tx, query string, args ...any) error{
	"Exec": func(ctx context.Context, tx *sqlx.Tx, query string, args ...any) error {
		_, err := tx.ExecContext(ctx, tx.Rebind(query), args...)
		return err
	},
	"Select": func(ctx context.Context, tx *sqlx.Tx, query string, args ...any) error {
		var all []int
		return tx.SelectContext(ctx, &all, tx.Rebind(query), args...)
	},
	"Queryx": func(ctx context.Context, tx *sqlx.Tx, query string, args ...any) error {
		rows, err := tx.QueryxContext(ctx, tx.Rebind(query), args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
		}
		return rows.Err()
	},
	"Preparex": func(ctx context.Context, tx *sqlx.Tx, query string, args ...any) error {
		stmt, err := tx.PreparexContext(ctx, tx.Rebind(query))
		if err != nil {
			return err
		}
		defer stmt.Close()
		var all []int
		return stmt.SelectContext(ctx, &all, args...)
	},
	"NamedQuery": func(ctx context.Context, tx *sqlx.Tx, query string, args ...any) error {
		named, values := query, map[string]any{}
		for i, a := range args {
			name := string(rune('a' + i))
			named, values[name] = replaceOne(named, ":"+name), a
		}
		named, list, err := tx.BindNamed(named, values)
		if err != nil {
			return err
		}
		var all []int
		return sqlx.SelectContext(ctx, tx, &all, named, list...)
	},
}

func replaceOne(query, by string) string { return strings.Replace(query, "?", by, 1) }

// Seen is a row with a name that only a mapper of the application's own finds.
type Seen struct{ EventIdent string }

// A handler's transaction has the mapper and the unsafe mode of the application's db, and takes structs.
func TestTransactionIsLikeTheDB(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, bdb *bun.DB) {
		_, err := bdb.ExecContext(t.Context(), "CREATE TABLE seen (ident VARCHAR(64) NOT NULL, more INT)")
		require.NoError(t, err)
		db := sqlx.NewDb(bdb.DB, drivers[testdb.Dialect(testdb.Server(t, bdb))]).Unsafe()
		db.MapperFunc(func(string) string { return "ident" })
		ob, err := outbox.New(bdb, outbox.Config{})
		require.NoError(t, err)
		b := bus.New(bdb, bus.Config{})
		var read []Seen
		sqlxtx.On(b.Consumer("A", bus.ConsumerConfig{MaxAttempts: 1}), db,
			func(ctx context.Context, tx *sqlx.Tx, m bus.Message[txtest.Paid]) error {
				if _, err := tx.NamedExecContext(ctx, "INSERT INTO seen (ident) VALUES (:ident)", Seen{m.Payload.Order}); err != nil {
					return err
				}
				return tx.SelectContext(ctx, &read, "SELECT ident, more FROM seen") // of more it knows nothing, which is not safe
			})
		tx := db.MustBegin()
		require.NoError(t, ob.Save(t.Context(), tx, txtest.Paid{Order: "7"}))
		require.NoError(t, tx.Commit())
		p, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
		require.NoError(t, err)
		_, err = p.RunOnce(t.Context())
		require.NoError(t, err)
		require.Equal(t, []Seen{{"7"}}, read)
	})
}

// A db of another database is refused where its driver's name tells, before anything is sent.
func TestAnotherDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, bdb *bun.DB) {
		is := testdb.Dialect(testdb.Server(t, bdb))
		driver := "pgx"
		if is == "postgres" {
			driver = "mysql"
		}
		other := sqlx.NewDb(bdb.DB, driver)
		ob, err := outbox.New(bdb, outbox.Config{})
		require.NoError(t, err)
		b := bus.New(bdb, bus.Config{})
		noop := func(context.Context, *sqlx.Tx, bus.Message[txtest.Paid]) error { return nil }
		sqlxtx.On(b.Consumer("A", bus.ConsumerConfig{}), other, noop)
		sqlxtx.On(b.Consumer("B", bus.ConsumerConfig{}), nil, noop)
		sqlxtx.OnBatch(b.Consumer("C", bus.ConsumerConfig{}), other,
			func(context.Context, *sqlx.Tx, []bus.Message[txtest.Paid]) error { return nil })
		_, err = outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
		require.ErrorContains(t, err, `sqlxtx.On of consumer "A": the driver "`+driver+`" of db takes other placeholders than the bus's `+
			"database, which is "+is)
		require.ErrorContains(t, err, `sqlxtx.On of consumer "B": db is nil`)
		require.ErrorContains(t, err, `sqlxtx.OnBatch of consumer "C"`)
	})
}
