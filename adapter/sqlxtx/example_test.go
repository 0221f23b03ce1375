package sqlxtx_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/jmoiron/sqlx"

	"github.com/bluecone-go/bluecone/adapter/sqlxtx"
	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

// OrderPaid says that an order has been paid.
type OrderPaid struct {
	OrderID string
	Cents   int
}

// EventType is the durable name.
func (OrderPaid) EventType() string { return "order.paid" }

// Aggregate is the order.
func (e OrderPaid) Aggregate() (kind, id string) { return "ORDER", e.OrderID }

// Booking is a row of the module that gives points.
type Booking struct {
	OrderID string `db:"order_id"`
	Points  int    `db:"points"`
}

// The order and its event are saved in one transaction of sqlx, and a handler writes by sqlx in the transaction of its delivery.
func Example() {
	ctx := context.Background()
	pool, end := openPool()
	defer end()

	shop := sqlx.NewDb(pool, "sqlite") // yours
	shop.MustExec("CREATE TABLE orders (id TEXT PRIMARY KEY, cents INT NOT NULL)")
	shop.MustExec("CREATE TABLE bookings (order_id TEXT PRIMARY KEY, points INT NOT NULL)")

	db, err := outbox.Open(ctx, pool) // the same pool, for the library
	must(err)
	must(migrations.Up(ctx, db))
	ob, err := outbox.New(db, outbox.Config{})
	must(err)

	b := bus.New(db, bus.Config{})
	points := b.Consumer("Points", bus.ConsumerConfig{})
	sqlxtx.On(points, shop, func(ctx context.Context, tx *sqlx.Tx, m bus.Message[OrderPaid]) error {
		booking := Booking{OrderID: m.Payload.OrderID, Points: m.Payload.Cents / 100}
		_, err := tx.NamedExecContext(ctx, "INSERT INTO bookings (order_id, points) VALUES (:order_id, :points)", booking)
		return err
	})

	tx, err := shop.BeginTxx(ctx, nil)
	must(err)
	_, err = tx.ExecContext(ctx, tx.Rebind("INSERT INTO orders (id, cents) VALUES (?, ?)"), "7", 4200)
	must(err)
	must(ob.Save(ctx, tx, OrderPaid{OrderID: "7", Cents: 4200})) // a *sqlx.Tx is an outbox.Tx
	must(tx.Commit())

	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx) // in your program: bus.Run(ctx, pub), until ctx ends
	must(err)
	var bookings []Booking
	must(shop.Select(&bookings, "SELECT * FROM bookings"))
	fmt.Println(bookings)
	// Output: [{7 42}]
}

func openPool() (pool *sql.DB, end func()) {
	dir, err := os.MkdirTemp("", "example")
	must(err)
	pool, err = sql.Open("sqlite", "file:"+filepath.Join(dir, "shop.db")+
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")
	must(err)
	return pool, func() {
		_ = pool.Close()
		_ = os.RemoveAll(dir)
	}
}

func must(err error) {
	if err != nil {
		log.Panic(err)
	}
}
