package examples_test

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/Masterminds/squirrel"
	"github.com/uptrace/bun"
	_ "modernc.org/sqlite"

	"github.com/bluecone-go/bluecone/adapter/examples/testdata/shopdb"
	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

// OrderPaid says that an order has been paid.
type OrderPaid struct {
	OrderID string
	Cents   int64
}

// EventType is the durable name.
func (OrderPaid) EventType() string { return "order.paid" }

// Aggregate is the order.
func (e OrderPaid) Aggregate() (kind, id string) { return "ORDER", e.OrderID }

// The code that sqlc writes runs in whatever transaction it is given.
func Example_sqlc() {
	ctx := context.Background()
	pool, db, ob, end := open()
	defer end()

	b := bus.New(db, bus.Config{})
	points := b.Consumer("Points", bus.ConsumerConfig{})
	bus.OnSQL(points, func(ctx context.Context, tx bus.Tx, m bus.Message[OrderPaid]) error {
		return shopdb.New(tx).AddPoints(ctx, shopdb.AddPointsParams{Points: m.Payload.Cents / 100, ID: 1})
	})

	tx, err := pool.BeginTx(ctx, nil)
	must(err)
	must(shopdb.New(tx).PayOrder(ctx, shopdb.PayOrderParams{ID: "7", Cents: 4200}))
	must(ob.Save(ctx, tx, OrderPaid{OrderID: "7", Cents: 4200}))
	must(tx.Commit())

	deliver(ctx, ob, b)
	has, err := shopdb.New(pool).Points(ctx, 1)
	must(err)
	fmt.Println(has, "points")
	// Output: 42 points
}

// squirrel builds statements; whoever has a transaction runs them in it.
func Example_squirrel() {
	ctx := context.Background()
	pool, db, ob, end := open()
	defer end()

	b := bus.New(db, bus.Config{})
	points := b.Consumer("Points", bus.ConsumerConfig{})
	bus.OnSQL(points, func(ctx context.Context, tx bus.Tx, m bus.Message[OrderPaid]) error {
		add := squirrel.Update("accounts").Set("points", squirrel.Expr("points + ?", m.Payload.Cents/100)).Where(squirrel.Eq{"id": 1})
		_, err := squirrel.ExecContextWith(ctx, tx, add) // PlaceholderFormat(squirrel.Dollar) on PostgreSQL
		return err
	})

	tx, err := pool.BeginTx(ctx, nil)
	must(err)
	_, err = squirrel.Insert("orders").Columns("id", "cents").Values("7", 4200).RunWith(tx).ExecContext(ctx)
	must(err)
	must(ob.Save(ctx, tx, OrderPaid{OrderID: "7", Cents: 4200}))
	must(tx.Commit())

	deliver(ctx, ob, b)
	var has int
	must(squirrel.Select("points").From("accounts").RunWith(pool).QueryRowContext(ctx).Scan(&has))
	fmt.Println(has, "points")
	// Output: 42 points
}

// Code that takes no other type than *sql.Tx, such as a builder with RunWith, gets one of the handler's transaction.
func Example_runWith() {
	ctx := context.Background()
	pool, db, ob, end := open()
	defer end()

	b := bus.New(db, bus.Config{})
	points := b.Consumer("Points", bus.ConsumerConfig{})
	bus.OnSQL(points, func(ctx context.Context, tx bus.Tx, m bus.Message[OrderPaid]) error {
		std, err := bus.SQLTx(ctx, tx) // a *sql.Tx
		if err != nil {
			return err
		}
		build := squirrel.StatementBuilder.RunWith(std)
		var has int64
		if err := build.Select("points").From("accounts").Where("id = 1").QueryRowContext(ctx).Scan(&has); err != nil {
			return err
		}
		_, err = build.Update("accounts").Set("points", has+m.Payload.Cents/100).ExecContext(ctx)
		return err
	})

	tx, err := pool.BeginTx(ctx, nil)
	must(err)
	must(ob.Save(ctx, tx, OrderPaid{OrderID: "7", Cents: 4200}, OrderPaid{OrderID: "8", Cents: 800}))
	must(tx.Commit())

	deliver(ctx, ob, b)
	var has int
	must(squirrel.Select("points").From("accounts").RunWith(pool).QueryRowContext(ctx).Scan(&has))
	fmt.Println(has, "points")
	// Output: 50 points
}

//go:embed schema.sql
var schema string

// open makes the tables of the shop, with one account, and those of the library.
func open() (pool *sql.DB, db *bun.DB, ob *outbox.Outbox, end func()) {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "example")
	must(err)
	pool, err = sql.Open("sqlite", "file:"+filepath.Join(dir, "shop.db")+
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")
	must(err)
	_, err = pool.ExecContext(ctx, schema+"INSERT INTO accounts VALUES (1, 0)")
	must(err)
	db, err = outbox.Open(ctx, pool)
	must(err)
	must(migrations.Up(ctx, db))
	ob, err = outbox.New(db, outbox.Config{})
	must(err)
	return pool, db, ob, func() {
		_ = pool.Close()
		_ = os.RemoveAll(dir)
	}
}

func deliver(ctx context.Context, ob *outbox.Outbox, b *bus.Bus) {
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx) // in your program: bus.Run(ctx, pub), until ctx ends
	must(err)
}

func must(err error) {
	if err != nil {
		log.Panic(err)
	}
}
