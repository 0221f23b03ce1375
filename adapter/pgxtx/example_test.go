package pgxtx_test

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/adapter/pgxtx"
	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

// OrderPaid says that an order has been paid.
type OrderPaid struct {
	OrderID string
	Cents   int
}

func (OrderPaid) EventType() string              { return "order.paid" }
func (e OrderPaid) Aggregate() (kind, id string) { return "ORDER", e.OrderID }

// wire makes the parts on a pool of database/sql that takes its connections from the application's.
func wire(ctx context.Context, pool *sql.DB) (*outbox.Outbox, *bus.Bus, error) {
	db, err := outbox.Open(ctx, pool)
	if err != nil {
		return nil, nil, err
	}
	if err := migrations.Up(ctx, db); err != nil {
		return nil, nil, err
	}
	ob, err := outbox.New(db, outbox.Config{})
	return ob, bus.New(db, bus.Config{}), err
}

// pay saves the order and its event: both, or neither.
func pay(ctx context.Context, pool *pgxpool.Pool, ob *outbox.Outbox, orderID string, cents int) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO orders (id, cents) VALUES ($1, $2)", orderID, cents); err != nil {
			return err
		}
		return pgxtx.Save(ctx, ob, tx, OrderPaid{OrderID: orderID, Cents: cents})
	})
}

// registerPoints gives points for each order, in one round trip for many.
func registerPoints(b *bus.Bus) {
	c := b.Consumer("Points", bus.ConsumerConfig{})
	pgxtx.OnBatch(c, func(ctx context.Context, tx pgx.Tx, ms []bus.Message[OrderPaid]) error {
		batch := &pgx.Batch{}
		for _, m := range ms {
			batch.Queue("UPDATE accounts SET points = points + $1", m.Payload.Cents/100)
		}
		return tx.SendBatch(ctx, batch).Close()
	})
}

// registerInvoices writes an invoice for each order, and counts a copy if there is one already.
func registerInvoices(b *bus.Bus) {
	c := b.Consumer("Invoices", bus.ConsumerConfig{})
	pgxtx.On(c, func(ctx context.Context, tx pgx.Tx, m bus.Message[OrderPaid]) error {
		if err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { // a savepoint
			_, err := tx.Exec(ctx, "INSERT INTO invoices (order_id) VALUES ($1)", m.Payload.OrderID)
			return err
		}); err == nil {
			return nil
		}
		_, err := tx.Exec(ctx, "UPDATE invoices SET copies = copies + 1 WHERE order_id = $1", m.Payload.OrderID)
		return err
	})
}

// shop sells two orders and publishes what was saved.
func shop(ctx context.Context, pool *pgxpool.Pool) error {
	std := stdlib.OpenDBFromPool(pool) // of github.com/jackc/pgx/v5/stdlib
	defer func() { _ = std.Close() }()
	ob, b, err := wire(ctx, std)
	if err != nil {
		return err
	}
	registerPoints(b)
	registerInvoices(b)
	if err := errors.Join(pay(ctx, pool, ob, "7", 4200), pay(ctx, pool, ob, "8", 1000)); err != nil {
		return err
	}
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	if err != nil {
		return err
	}
	_, err = pub.RunOnce(ctx) // a program calls bus.Run
	return err
}

// TestExample runs it: it has no output of its own because PostgreSQL may be missing.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	if err := shop(ctx, pool); err != nil {
		log.Fatal(err)
	}
}

func TestExample(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), testdb.DSN(t, "postgres"))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	_, err = pool.Exec(t.Context(), "CREATE TABLE orders (id TEXT PRIMARY KEY, cents INT NOT NULL); "+
		"CREATE TABLE accounts (points INT NOT NULL); INSERT INTO accounts VALUES (0); "+
		"CREATE TABLE invoices (order_id TEXT PRIMARY KEY, copies INT NOT NULL DEFAULT 1); INSERT INTO invoices VALUES ('8')")
	require.NoError(t, err)
	require.NoError(t, shop(t.Context(), pool))
	var points, invoices, copies int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT points, (SELECT COUNT(*) FROM invoices), (SELECT SUM(copies) FROM invoices) "+
		"FROM accounts").Scan(&points, &invoices, &copies))
	require.Equal(t, []int{52, 2, 3}, []int{points, invoices, copies})
}
