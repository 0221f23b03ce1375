package enttx_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"

	"github.com/bluecone-go/bluecone/adapter/enttx"
	"github.com/bluecone-go/bluecone/adapter/enttx/testdata/ent"
	"github.com/bluecone-go/bluecone/bus"
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

// pay saves the order and its event: both, or neither.
func pay(ctx context.Context, client *ent.Client, ob *outbox.Outbox, orderID string, cents int) error {
	tx, err := client.Tx(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	if err := tx.Order.Create().SetID(orderID).SetCents(cents).Exec(ctx); err != nil {
		return err
	}
	if err := ob.Save(ctx, tx, OrderPaid{OrderID: orderID, Cents: cents}); err != nil {
		return err
	}
	return tx.Commit()
}

// openClient makes the client of handlers.
func openClient(drv dialect.Driver) *ent.Client { return ent.NewClient(ent.Driver(drv)) }

// registerPoints gives points for each order.
func registerPoints(b *bus.Bus) {
	c := b.Consumer("Points", bus.ConsumerConfig{})
	enttx.On(c, openClient, func(ctx context.Context, tx *ent.Tx, m bus.Message[OrderPaid]) error {
		return tx.Order.UpdateOneID(m.Payload.OrderID).AddPoints(m.Payload.Cents / 100).Exec(ctx)
	})
}

func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "shop")
	must(err)
	defer func() { _ = os.RemoveAll(dir) }()
	pool, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "shop.db")+
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=foreign_keys(1)")
	must(err)
	defer func() { _ = pool.Close() }()
	client := ent.NewClient(ent.Driver(entsql.OpenDB(dialect.SQLite, pool))) // yours
	must(client.Schema.Create(ctx))
	db, err := outbox.Open(ctx, pool) // the library's, on the same pool
	must(err)
	must(migrations.Up(ctx, db))
	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	b := bus.New(db, bus.Config{})
	registerPoints(b)
	must(pay(ctx, client, ob, "7", 4200))

	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx) // a program calls bus.Run
	must(err)
	fmt.Println(client.Order.GetX(ctx, "7").Points, "points")
	// Output:
	// 42 points
}

func must(err error) {
	if err != nil {
		log.Panic(err)
	}
}
