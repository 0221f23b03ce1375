package consumelog_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	_ "modernc.org/sqlite"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

// parcelShipped says that a parcel has left.
type parcelShipped struct {
	Parcel string
	Grams  int
}

func (parcelShipped) EventType() string              { return "parcel.shipped" }
func (e parcelShipped) Aggregate() (kind, id string) { return "PARCEL", e.Parcel }

// openDB makes a SQLite database in a temporary folder, with the tables of bluecone. The function it returns removes it.
func openDB() (*bun.DB, func()) {
	dir, err := os.MkdirTemp("", "example")
	must(err)
	pool, err := sql.Open("sqlite", "file:"+dir+"/app.db?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")
	must(err)
	db := bun.NewDB(pool, sqlitedialect.New())
	must(migrations.Up(context.Background(), db))
	return db, func() {
		must(db.Close())
		must(os.RemoveAll(dir))
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// What waits in the retry queue of a consumer.
func ExampleLog_Lag() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	b := bus.New(db, bus.Config{})
	bus.On(b.Consumer("Labels", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, _ bus.Message[parcelShipped]) error {
		return errors.New("the printer has no paper")
	})
	must(db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		return ob.Save(ctx, tx, parcelShipped{Parcel: "7", Grams: 100}, parcelShipped{Parcel: "8", Grams: 100})
	}))
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx)
	must(err)
	lag, err := ob.Log().Lag(ctx, "Labels")
	must(err)
	fmt.Println(lag.Waiting, "waiting,", lag.Dead, "dead")
	// Output:
	// 2 waiting, 0 dead
}

// What became of an event: one record for each consumer.
func ExampleLog_ByEvents() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	b := bus.New(db, bus.Config{})
	bus.On(b.Consumer("Labels", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, _ bus.Message[parcelShipped]) error {
		return errors.New("the printer has no paper")
	})
	bus.On(b.Consumer("Track", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, _ bus.Message[parcelShipped]) error {
		return nil
	})
	must(db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		return ob.Save(ctx, tx, parcelShipped{Parcel: "7", Grams: 100})
	}))
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx)
	must(err)
	events, err := ob.Events(ctx, outbox.Filter{AggregateType: "PARCEL", AggregateID: "7"})
	must(err)
	deliveries, err := ob.Log().ByEvents(ctx, events[0].EventID)
	must(err)
	for _, d := range deliveries {
		fmt.Println(d.Consumer, d.Status, "after attempt", d.Attempts)
	}
	// Unordered output:
	// Labels FAILED after attempt 1
	// Track SUCCESS after attempt 1
}

// How many deliveries there are in each state.
func ExampleLog_Counts() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	b := bus.New(db, bus.Config{})
	bus.On(b.Consumer("Labels", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, _ bus.Message[parcelShipped]) error {
		return errors.New("the printer has no paper")
	})
	bus.On(b.Consumer("Track", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, _ bus.Message[parcelShipped]) error {
		return nil
	})
	must(db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		return ob.Save(ctx, tx, parcelShipped{Parcel: "7", Grams: 100}, parcelShipped{Parcel: "8", Grams: 100})
	}))
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx)
	must(err)
	counts, err := ob.Log().Counts(ctx)
	must(err)
	fmt.Println(counts[consumelog.Success], "done,", counts[consumelog.Failed], "to be tried again")
	// Output:
	// 2 done, 2 to be tried again
}
