package enttx_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/adapter/enttx"
	"github.com/bluecone-go/bluecone/adapter/enttx/testdata/ent"
	"github.com/bluecone-go/bluecone/adapter/enttx/testdata/ent/order"
	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/bustest"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// clientOf is an application's client, with the table of the orders.
func clientOf(t *testing.T, db *bun.DB) *ent.Client {
	t.Helper()
	names := map[string]string{"mysql": dialect.MySQL, "pg": dialect.Postgres, "sqlite": dialect.SQLite}
	client := ent.NewClient(ent.Driver(entsql.OpenDB(names[db.Dialect().Name().String()], db.DB)))
	_, err := db.ExecContext(t.Context(), "CREATE TABLE orders (id VARCHAR(64) PRIMARY KEY, cents INT NOT NULL, points INT NOT NULL)")
	require.NoError(t, err)
	return client
}

// What generated code writes in a handler happens once, whatever breaks: it creates, in bulk too, changes, asks, deletes, and swallows a
// violated key.
func TestGeneratedCodeHasItsEffectOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		client := clientOf(t, db)
		h := bustest.New(t, db)
		h.Break(bustest.FailBeforeCommit, bustest.FailAfterCommit, bustest.HandlerError)
		var hooked atomic.Int64
		withHook := func(drv dialect.Driver) *ent.Client {
			c := openClient(drv)
			c.Use(func(next ent.Mutator) ent.Mutator {
				return ent.MutateFunc(func(ctx context.Context, m ent.Mutation) (ent.Value, error) {
					hooked.Add(1)
					return next.Mutate(ctx, m)
				})
			})
			return c
		}
		enttx.On(h.Bus.Consumer("Points", bus.ConsumerConfig{}), withHook, func(ctx context.Context, tx *ent.Tx, m bus.Message[OrderPaid]) error {
			id := m.Payload.OrderID
			made := []*ent.OrderCreate{tx.Order.Create().SetID(id + "a").SetCents(1), tx.Order.Create().SetID(id + "b").SetCents(2)}
			if err := tx.Order.CreateBulk(made...).Exec(ctx); err != nil {
				return err
			}
			if err := tx.Order.UpdateOneID(id).AddPoints(m.Payload.Cents / 100).Exec(ctx); err != nil {
				return err
			}
			if db.Dialect().Name().String() != "pg" { // where an error ends the transaction
				if err := tx.Order.Create().SetID(id).SetCents(3).Exec(ctx); !ent.IsConstraintError(err) {
					return fmt.Errorf("created twice: %w", err)
				}
			}
			if n, err := tx.Order.Query().Where(order.IDIn(id, id+"a", id+"b")).Count(ctx); err != nil || n != 3 {
				return fmt.Errorf("there are %d: %w", n, err)
			}
			if err := tx.Order.DeleteOneID(id + "a").Exec(ctx); err != nil {
				return err
			}
			if _, err := tx.Client().Tx(ctx); !errors.Is(err, ent.ErrTxStarted) {
				return fmt.Errorf("a transaction in a transaction: %w", err)
			}
			return nil
		})
		for i := range 3 {
			tx, err := client.Tx(t.Context())
			require.NoError(t, err)
			require.NoError(t, tx.Order.Create().SetID(fmt.Sprint(i)).SetCents(4200).Exec(t.Context()))
			require.NoError(t, h.Outbox.Save(t.Context(), tx, OrderPaid{OrderID: fmt.Sprint(i), Cents: 4200}))
			require.NoError(t, tx.Commit())
		}
		require.Equal(t, 3, h.Drain()[consumelog.Success])
		require.Equal(t, 6, client.Order.Query().CountX(t.Context()))
		require.Equal(t, 3, client.Order.Query().Where(order.Points(42)).CountX(t.Context()))
		require.Positive(t, hooked.Load(), "hooks of the client that open made are called")
	})
}

// What is wired wrongly is refused, with what to do.
func TestWrongWiringIsRefused(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "sqlite")
	mine := ent.NewClient(ent.Driver(entsql.OpenDB(dialect.SQLite, db.DB)))
	handle := func(context.Context, *ent.Tx, bus.Message[OrderPaid]) error { return nil }
	for what, open := range map[string]func(dialect.Driver) *ent.Client{
		"open is nil":             nil,
		"open has made no client": func(dialect.Driver) *ent.Client { return nil },
		"does not use the driver": func(dialect.Driver) *ent.Client { return mine },
	} {
		b := bus.New(db, bus.Config{})
		enttx.On(b.Consumer("Points", bus.ConsumerConfig{}), open, handle)
		require.ErrorContains(t, b.Err(), `enttx.On of consumer "Points": `)
		require.ErrorContains(t, b.Err(), what)
		require.ErrorContains(t, b.Err(), "ent.NewClient(ent.Driver(drv))")
		require.Zero(t, db.DB.Stats().InUse, "what was begun is over")
	}
	b := bus.New(db, bus.Config{})
	enttx.On[OrderPaid, *ent.Tx](b.Consumer("Points", bus.ConsumerConfig{}), openClient, nil)
	require.ErrorContains(t, b.Err(), "the handler is nil")
	var outside *ent.Client
	b = bus.New(db, bus.Config{})
	enttx.On(b.Consumer("Points", bus.ConsumerConfig{}), func(drv dialect.Driver) *ent.Client {
		outside = openClient(drv)
		return outside
	}, handle)
	require.NoError(t, b.Err())
	require.ErrorContains(t, outside.Order.Create().SetID("1").SetCents(1).Exec(t.Context()), "in the transaction of a delivery only")
	_, err := outside.Order.Query().Count(t.Context())
	require.ErrorContains(t, err, "in the transaction of a delivery only")
}
