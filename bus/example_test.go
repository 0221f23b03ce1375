package bus_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	_ "modernc.org/sqlite"

	"github.com/bluecone-go/bluecone/bus"
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

// openWeights is openDB with a table of weights.
func openWeights() (*bun.DB, func()) {
	db, end := openDB()
	_, err := db.ExecContext(context.Background(), "CREATE TABLE weights (parcel TEXT, grams INT)")
	must(err)
	return db, end
}

// deliver saves events, and runs what is due.
func deliver(db *bun.DB, b *bus.Bus, events ...bus.Event) {
	ctx := context.Background()
	ob, err := outbox.New(db, outbox.Config{Logger: slog.New(slog.DiscardHandler)})
	must(err)
	must(db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error { return ob.Save(ctx, tx, events...) }))
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx)
	must(err)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// A handler works in the transaction it is handed. What it writes through tx happens exactly once per event.
func ExampleOn() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	_, err := db.ExecContext(ctx, "CREATE TABLE weights (parcel TEXT, grams INT)")
	must(err)
	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	b := bus.New(db, bus.Config{})
	bus.On(b.Consumer("Weights", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[parcelShipped]) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO weights VALUES (?, ?)", m.Payload.Parcel, m.Payload.Grams)
		return err
	})
	must(db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		return ob.Save(ctx, tx, parcelShipped{Parcel: "7", Grams: 420})
	}))
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx)
	must(err)
	var grams int
	must(db.NewRaw("SELECT grams FROM weights WHERE parcel = '7'").Scan(ctx, &grams))
	fmt.Println(grams, "grams")
	// Output:
	// 420 grams
}

// A batch handler gets many events in one call and one transaction. If it returns an error, each event is handled by itself, and only
// the one at fault is tried again.
func ExampleOnBatch() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	b := bus.New(db, bus.Config{})
	bus.OnBatch(b.Consumer("Totals", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, ms []bus.Message[parcelShipped]) error {
		total := 0
		for _, m := range ms {
			total += m.Payload.Grams
		}
		fmt.Println(len(ms), "parcels,", total, "grams")
		return nil
	})
	must(db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		return ob.Save(ctx, tx, parcelShipped{Parcel: "7", Grams: 420}, parcelShipped{Parcel: "8", Grams: 80},
			parcelShipped{Parcel: "9", Grams: 100})
	}))
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx)
	must(err)
	// Output:
	// 3 parcels, 600 grams
}

// An effect outside the database runs at least once. Message.Key is the same for every attempt: the receiver recognises repetitions by it.
func ExampleOnExternal() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	b := bus.New(db, bus.Config{})
	calls := make(map[string]int)
	bus.OnExternal(b.Consumer("Courier", bus.ConsumerConfig{}), func(_ context.Context, m bus.Message[parcelShipped]) error {
		calls[m.Key()]++ // your call of the courier's service, with the key in a header
		return nil
	})
	must(db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		return ob.Save(ctx, tx, parcelShipped{Parcel: "7", Grams: 100})
	}))
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx)
	must(err)
	for _, n := range calls {
		fmt.Println("delivered", n, "time")
	}
	// Output:
	// delivered 1 time
}

// An error that no further attempt can change makes the delivery DEAD at once. An operator decides about it.
func ExamplePermanent() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	b := bus.New(db, bus.Config{})
	bus.On(b.Consumer("Labels", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[parcelShipped]) error {
		return bus.Permanent(fmt.Errorf("parcel %s has no address", m.Payload.Parcel))
	})
	must(db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		return ob.Save(ctx, tx, parcelShipped{Parcel: "7", Grams: 100})
	}))
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx)
	must(err)
	dead, err := ob.Events(ctx, outbox.Filter{Status: outbox.StatusDead})
	must(err)
	deliveries, err := ob.Log().ByEvents(ctx, dead[0].EventID)
	must(err)
	fmt.Println(deliveries[0].Status, deliveries[0].Attempts, deliveries[0].Error)
	// Output:
	// DEAD 1 parcel 7 has no address
}

// A handler that knows when to come back says so. The attempt is not counted, and the delivery waits for so long.
func ExampleRetryAfter() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	b := bus.New(db, bus.Config{})
	bus.On(b.Consumer("Labels", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, _ bus.Message[parcelShipped]) error {
		return bus.RetryAfter(errors.New("the printer has no paper"), time.Hour)
	})
	must(db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		return ob.Save(ctx, tx, parcelShipped{Parcel: "7", Grams: 100})
	}))
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx)
	must(err)
	lag, err := ob.Log().Lag(ctx, "Labels")
	must(err)
	fmt.Println(lag.Waiting, "waiting,", lag.Dead, "dead")
	// Output:
	// 1 waiting, 0 dead
}

// A handler that has nothing to do for an event closes it with a reason, which the consume log keeps.
func ExampleSkip() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	b := bus.New(db, bus.Config{})
	bus.On(b.Consumer("Labels", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[parcelShipped]) error {
		if m.Payload.Grams == 0 {
			return bus.Skip("an empty parcel needs no label")
		}
		return nil
	})
	must(db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		return ob.Save(ctx, tx, parcelShipped{Parcel: "7", Grams: 0})
	}))
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx)
	must(err)
	sent, err := ob.Events(ctx, outbox.Filter{AggregateType: "PARCEL", AggregateID: "7"})
	must(err)
	deliveries, err := ob.Log().ByEvents(ctx, sent[0].EventID)
	must(err)
	fmt.Println(deliveries[0].Status, "because", deliveries[0].Error)
	// Output:
	// SKIPPED because an empty parcel needs no label
}

// An ordered consumer, the default, sees the events of one aggregate in the order of their commits.
func ExampleConsumerConfig() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	b := bus.New(db, bus.Config{})
	bus.On(b.Consumer("Track", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[parcelShipped]) error {
		fmt.Println("parcel", m.Payload.Parcel, "now weighs", m.Payload.Grams)
		return nil
	})
	for _, grams := range []int{100, 150, 200} {
		must(db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
			return ob.Save(ctx, tx, parcelShipped{Parcel: "7", Grams: grams})
		}))
	}
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx)
	must(err)
	// Output:
	// parcel 7 now weighs 100
	// parcel 7 now weighs 150
	// parcel 7 now weighs 200
}

// Where order does not matter, later events of an aggregate do not wait for one that has failed.
func ExampleConsumerConfig_unordered() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	b := bus.New(db, bus.Config{})
	bus.On(b.Consumer("Statistics", bus.ConsumerConfig{Unordered: true}),
		func(_ context.Context, _ bun.Tx, m bus.Message[parcelShipped]) error {
			if m.Payload.Grams == 0 {
				return errors.New("no weight yet") // tried again later
			}
			fmt.Println(m.Payload.Grams, "grams")
			return nil
		})
	must(db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		return ob.Save(ctx, tx, parcelShipped{Parcel: "7", Grams: 0}, parcelShipped{Parcel: "7", Grams: 420})
	}))
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx)
	must(err)
	// Output:
	// 420 grams
}

// parcelMoved has had its weight in kilograms before; version 2 has it in grams.
type parcelMoved struct {
	Parcel string
	Grams  int
}

func (parcelMoved) EventType() string              { return "parcel.moved" }
func (e parcelMoved) Aggregate() (kind, id string) { return "PARCEL", e.Parcel }
func (parcelMoved) SchemaVersion() int             { return 2 }

// Events that are stored in an old version are brought to the version of the handler. Here Decode shows it; handlers get the
// same in Message.Payload.
func ExampleBus_Upcast() {
	db, end := openDB()
	defer end()

	b := bus.New(db, bus.Config{})
	bus.On(b.Consumer("Track", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[parcelMoved]) error { return nil })
	b.Upcast("parcel.moved", 1, func(payload json.RawMessage) (json.RawMessage, error) {
		var old struct {
			Parcel string
			Kilos  float64
		}
		if err := json.Unmarshal(payload, &old); err != nil {
			return nil, err
		}
		return json.Marshal(parcelMoved{Parcel: old.Parcel, Grams: int(old.Kilos * 1000)})
	})
	stored := &bus.Envelope{Type: "parcel.moved", SchemaVersion: 1, Data: json.RawMessage(`{"Parcel":"7","Kilos":0.42}`)}
	moved, err := bus.Decode[parcelMoved](b, stored)
	fmt.Println(moved, err)
	// Output: {7 420} <nil>
}

// A handler may note under which business key it acted and what came of it. Both are in the consume log, where ops finds them.
func ExampleMessage_RecordResult() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	b := bus.New(db, bus.Config{})
	bus.On(b.Consumer("Labels", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[parcelShipped]) error {
		m.RecordKey("label:" + m.Payload.Parcel)
		m.RecordResult(map[string]int{"labels": 2})
		return nil
	})
	must(db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		return ob.Save(ctx, tx, parcelShipped{Parcel: "7", Grams: 100})
	}))
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx)
	must(err)
	sent, err := ob.Events(ctx, outbox.Filter{Status: outbox.StatusSent})
	must(err)
	deliveries, err := ob.Log().ByEvents(ctx, sent[0].EventID)
	must(err)
	fmt.Println(deliveries[0].IdempotencyKey, deliveries[0].Result)
	// Output:
	// label:7 {"labels":2}
}

// What is in the context when an event is saved travels with it, and on to the events that its handlers save.
func ExampleWithMetadata() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	b := bus.New(db, bus.Config{})
	bus.On(b.Consumer("Track", bus.ConsumerConfig{}), func(ctx context.Context, _ bun.Tx, m bus.Message[parcelShipped]) error {
		fmt.Println(m.Metadata["requestId"], bus.MetadataFrom(ctx)["requestId"])
		return nil
	})
	request := bus.WithMetadata(ctx, bus.Metadata{"requestId": "r-1"})
	must(db.RunInTx(request, nil, func(ctx context.Context, tx bun.Tx) error {
		return ob.Save(ctx, tx, parcelShipped{Parcel: "7", Grams: 100})
	}))
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx)
	must(err)
	// Output:
	// r-1 r-1
}
