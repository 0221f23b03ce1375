package pgxtx_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"

	"github.com/bluecone-go/bluecone/adapter/pgxtx"
	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/bustest"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// After the end of its context the transaction is rolled back. A handler that goes on with another context writes nothing, which the
// connection would commit by itself then.
func TestNothingIsSentAfterTheContextHasEnded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var calls int
	c := f.Bus.Consumer("Points", bus.ConsumerConfig{})
	pgxtx.On(c, func(_ context.Context, tx pgx.Tx, _ bus.Message[orderPaid]) error {
		if calls++; calls > 1 {
			_, err := tx.Exec(t.Context(), insert, "second call", 1)
			return err
		}
		cancel()
		for {
			if _, err := tx.Exec(t.Context(), "INSERT INTO effect SELECT 'after', 1 WHERE NOT EXISTS (SELECT FROM effect)"); err != nil {
				return nil //nolint:nilerr // swallowed
			}
		}
	})
	require.NoError(t, f.save(orderPaid{OrderID: "1"}))
	pub, err := outbox.NewPublisher(f.Outbox, f.Bus, outbox.PublisherConfig{DrainTimeout: 50 * time.Millisecond})
	require.NoError(t, err)
	_, _ = pub.RunOnce(ctx)
	require.Equal(t, 1, calls)
	require.Zero(t, f.effects())
	f.exec("UPDATE bc_outbox_event SET next_retry_at = now() - interval '1 hour'")
	require.Equal(t, 1, f.Drain()[consumelog.Success], f.errors())
	require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect WHERE id = 'second call'"))
	require.Equal(t, 1, f.effects())
}

// source is one of rows that uses the transaction it is copied into.
type source struct{ next func() error }

func (s source) Next() bool             { return true }
func (s source) Values() ([]any, error) { return nil, s.next() }
func (s source) Err() error             { return nil }

// A statement inside of another one answers that the connection is busy, instead of waiting for itself. Rows that are left open are
// closed.
func TestConnectionIsBusy(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	busy := make(map[string]error)
	c := f.Bus.Consumer("Points", bus.ConsumerConfig{Timeout: time.Minute})
	pgxtx.On(c, func(ctx context.Context, tx pgx.Tx, m bus.Message[orderPaid]) error {
		rows, err := tx.Query(ctx, "SELECT * FROM generate_series(1, 5000)")
		if err != nil || !rows.Next() {
			return errors.Join(err, errors.New("no row"))
		}
		_, busy["rows"] = tx.Exec(ctx, "SELECT 1")
		rows.Close()
		if err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			_, err := tx.CopyFrom(ctx, pgx.Identifier{"effect"}, []string{"id", "cents"}, source{func() error {
				_, busy["source"] = tx.Exec(ctx, "CALL nothing()")
				return errors.New("no more")
			}})
			return err
		}); err == nil {
			return errors.New("it was copied")
		}
		b := &pgx.Batch{}
		b.Queue("SELECT 1").QueryRow(func(row pgx.Row) error {
			_, busy["callback"] = tx.Exec(ctx, "SELECT 1")
			return row.Scan(new(int))
		})
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, insert, m.ID, 1); err != nil {
			return err
		}
		rows, err = tx.Query(ctx, "SELECT * FROM generate_series(1, 5000)")
		if err == nil && rows.Conn() != nil {
			err = errors.New("rows hand out their connection")
		}
		rows.Next()
		return err
	})
	require.NoError(t, f.save(orderPaid{OrderID: "1"}))
	require.Equal(t, 1, f.Drain()[consumelog.Success], f.errors())
	require.Equal(t, 1, f.effects())
	require.Len(t, busy, 3)
	for where, err := range busy {
		require.ErrorContains(t, err, "conn busy", where)
	}
}

// Whoever keeps a transaction can do nothing with it after its handler, in whatever way.
func TestTransactionEndsWithItsHandler(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var kept, nested pgx.Tx
	var rows pgx.Rows
	c := f.Bus.Consumer("Points", bus.ConsumerConfig{})
	pgxtx.On(c, func(ctx context.Context, tx pgx.Tx, _ bus.Message[orderPaid]) (err error) {
		kept = tx
		if nested, err = tx.Begin(ctx); err != nil {
			return err
		}
		rows, err = tx.Query(ctx, "SELECT 1") //nolint:sqlclosecheck // left open on purpose
		return err
	})
	require.NoError(t, f.save(orderPaid{OrderID: "1"}))
	require.Equal(t, 1, f.Drain()[consumelog.Success], f.errors())
	for name, way := range ways {
		require.ErrorIs(t, way(t.Context(), kept, insert, name, 1), pgx.ErrTxClosed, name)
		require.ErrorIs(t, way(t.Context(), nested, insert, name, 1), pgx.ErrTxClosed, name)
	}
	require.ErrorIs(t, kept.Commit(t.Context()), pgx.ErrTxClosed)
	require.ErrorIs(t, nested.Commit(t.Context()), pgx.ErrTxClosed)
	require.False(t, rows.Next())
	require.Zero(t, f.effects())
}

// A statement that gets past the watch ends no delivery well: the connection is not handed out, and the text of a rewriter is looked
// at before the handler's end.
func TestWhatPassesTheWatchBy(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, way := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"Conn":         func(_ context.Context, tx pgx.Tx) error { return tx.Conn().Close(context.Background()) },
		"LargeObjects": func(ctx context.Context, tx pgx.Tx) error { _, err := tx.LargeObjects(), ctx.Err(); return err },
		"Rewriter": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT 1", rewriter("ROLLBACK"))
			return err
		},
	} {
		pgxtx.On(f.Bus.Consumer(name, bus.ConsumerConfig{MaxAttempts: 1}), func(ctx context.Context, tx pgx.Tx, _ bus.Message[orderPaid]) error {
			if _, err := tx.Exec(ctx, insert, name, 1); err != nil {
				return err
			}
			err := way(ctx, tx)
			_, _ = tx.Exec(ctx, insert, name+" after it", 1)
			return err
		})
	}
	require.NoError(t, f.save(orderPaid{OrderID: "1"}))
	require.Equal(t, bustest.Report{consumelog.Dead: 3}, f.Drain(), f.errors())
	require.Zero(t, f.effects())
	for _, text := range []string{"does not hand out its connection", "has no LargeObjects", "was over before its handler"} {
		require.Contains(t, f.errors(), text)
	}
}

// rewriter sends another text.
type rewriter string

func (r rewriter) RewriteQuery(context.Context, *pgx.Conn, string, []any) (string, []any, error) {
	return string(r), nil, nil
}

type pgxConn = stdlib.Conn

// hiding is a connection of pgx that does not show it.
type hiding struct{ *pgxConn }

// Conn is not that of pgx.
func (hiding) Conn() {}

// connector opens such connections.
type connector struct{ driver.Connector }

// Connect opens one.
func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return hiding{conn.(*stdlib.Conn)}, nil
}

// A pool that has no connections of pgx is refused before it runs, or by its first delivery where only the connection tells.
func TestOtherPoolsAreRefused(t *testing.T) {
	t.Parallel()
	handle := func(context.Context, pgx.Tx, bus.Message[orderPaid]) error { return nil }
	register := func(db *bun.DB) error {
		b := bus.New(db, bus.Config{})
		pgxtx.On(b.Consumer("Points", bus.ConsumerConfig{}), handle)
		return b.Err()
	}
	require.ErrorContains(t, register(testdb.Open(t, "sqlite")), `pgxtx.On of consumer "Points": the pool of the bus has the driver `+
		`*sqlite.Driver (sqlite), which is not pgx's: open it by sql.Open("pgx", …)`)
	require.ErrorContains(t, register(nil), "bus.New: db is nil")

	dsn := testdb.DSN(t, "postgres")
	open := func(c driver.Connector) *bun.DB {
		db := bun.NewDB(sql.OpenDB(c), pgdialect.New())
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	libpq, err := pq.NewConnector(dsn)
	require.NoError(t, err)
	require.ErrorContains(t, register(open(libpq)), "has the driver *pq.Driver (postgres), which is not pgx's")

	config, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	own := stdlib.GetConnector(*config)
	require.NoError(t, register(open(own)))
	h := bustest.New(t, open(connector{own}))
	pgxtx.On(h.Bus.Consumer("Points", bus.ConsumerConfig{}), handle)
	require.Equal(t, bustest.Report{consumelog.Dead: 1}, bustest.Deliver(h, orderPaid{OrderID: "1"}), "at the first attempt")
}

// A handler that is nil is a mistake, and a consumer that is nil has no bus that could return it.
func TestNilIsRefused(t *testing.T) {
	t.Parallel()
	b := bus.New(testdb.Open(t, "postgres"), bus.Config{})
	pgxtx.On[orderPaid](b.Consumer("On", bus.ConsumerConfig{}), nil)
	pgxtx.OnBatch[orderPaid](b.Consumer("OnBatch", bus.ConsumerConfig{}), nil)
	require.ErrorContains(t, b.Err(), `consumer "On": the handler is nil`)
	require.ErrorContains(t, b.Err(), `consumer "OnBatch": the handler is nil`)
	require.Panics(t, func() { pgxtx.On(nil, func(context.Context, pgx.Tx, bus.Message[orderPaid]) error { return nil }) })
}
