package gormtx_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"gorm.io/driver/sqlite"
	"gorm.io/gorm"

	"github.com/bluecone-go/bluecone/adapter/gormtx"
	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

// Order is a model of the module that sells.
type Order struct {
	ID    string
	Cents int
}

// Wallet is a model of the module that gives points.
type Wallet struct {
	ID     int
	Points int
}

// OrderPaid says that an order has been paid.
type OrderPaid struct {
	OrderID string
	Cents   int
}

// EventType is the durable name.
func (OrderPaid) EventType() string { return "order.paid" }

// Aggregate is the order.
func (e OrderPaid) Aggregate() (kind, id string) { return "ORDER", e.OrderID }

// The order and its event are saved in one transaction of gorm, and a handler writes by gorm in the transaction of its delivery.
func Example() {
	ctx := context.Background()
	pool, end := openPool()
	defer end()

	gdb, err := gorm.Open(sqlite.New(sqlite.Config{Conn: pool}), &gorm.Config{}) // yours
	must(err)
	must(gdb.AutoMigrate(&Order{}, &Wallet{}))
	must(gdb.Create(&Wallet{ID: 1}).Error)

	db, err := outbox.Open(ctx, pool) // the same pool, for the library
	must(err)
	must(migrations.Up(ctx, db))
	ob, err := outbox.New(db, outbox.Config{})
	must(err)

	b := bus.New(db, bus.Config{})
	points := b.Consumer("Points", bus.ConsumerConfig{})
	gormtx.On(points, gdb, func(_ context.Context, tx *gorm.DB, m bus.Message[OrderPaid]) error {
		more := gorm.Expr("points + ?", m.Payload.Cents/100)
		return tx.Model(&Wallet{ID: 1}).Update("points", more).Error
	})

	err = gdb.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		if err := tx.Create(&Order{ID: "7", Cents: 4200}).Error; err != nil {
			return err
		}
		return gormtx.Save(ctx, ob, tx, OrderPaid{OrderID: "7", Cents: 4200})
	})
	must(err)

	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx) // in your program: bus.Run(ctx, pub), until ctx ends
	must(err)
	var wallet Wallet
	must(gdb.First(&wallet, 1).Error)
	fmt.Println(wallet.Points, "points")
	// Output: 42 points
}

// A batch handler gets many events in one call, and one transaction of gorm.
func ExampleOnBatch() {
	ctx := context.Background()
	pool, end := openPool()
	defer end()
	gdb, err := gorm.Open(sqlite.New(sqlite.Config{Conn: pool}), &gorm.Config{})
	must(err)
	must(gdb.AutoMigrate(&Order{}))
	db, err := outbox.Open(ctx, pool)
	must(err)
	must(migrations.Up(ctx, db))
	ob, err := outbox.New(db, outbox.Config{})
	must(err)

	b := bus.New(db, bus.Config{})
	reports := b.Consumer("Reports", bus.ConsumerConfig{})
	gormtx.OnBatch(reports, gdb, func(_ context.Context, tx *gorm.DB, ms []bus.Message[OrderPaid]) error {
		var orders []Order
		for _, m := range ms {
			orders = append(orders, Order{ID: m.Payload.OrderID, Cents: m.Payload.Cents})
		}
		return tx.Create(&orders).Error // one INSERT
	})

	must(gdb.Transaction(func(tx *gorm.DB) error {
		return gormtx.Save(ctx, ob, tx, OrderPaid{OrderID: "7", Cents: 4200}, OrderPaid{OrderID: "8", Cents: 900})
	}))
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx)
	must(err)
	var n int64
	must(gdb.Model(&Order{}).Count(&n).Error)
	fmt.Println(n, "orders")
	// Output: 2 orders
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
