package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
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

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// The change and its event are saved in one transaction, and the event is delivered after the commit. In a program bus.Run runs the
// publisher until the context ends.
func Example() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	b := bus.New(db, bus.Config{})
	bus.On(b.Consumer("Track", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[parcelShipped]) error {
		fmt.Println("parcel", m.Payload.Parcel, "has left")
		return nil
	})
	must(db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		return ob.Save(ctx, tx, parcelShipped{Parcel: "7", Grams: 100})
	}))
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx)
	must(err)
	// Output:
	// parcel 7 has left
}

// No commit, no event.
func ExampleOutbox_Save() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	err = db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		if err := ob.Save(ctx, tx, parcelShipped{Parcel: "7"}); err != nil {
			return err
		}
		return errors.New("the courier refused the parcel")
	})
	fmt.Println(err)
	counts, err := ob.Counts(ctx)
	must(err)
	fmt.Println(counts[outbox.StatusNew], "events")
	// Output:
	// the courier refused the parcel
	// 0 events
}

// parcelPaid can be saved only once.
type parcelPaid struct{ Parcel string }

func (parcelPaid) EventType() string              { return "parcel.paid" }
func (e parcelPaid) Aggregate() (kind, id string) { return "PARCEL", e.Parcel }
func (e parcelPaid) IdempotencyKey() string       { return "parcel:" + e.Parcel + ":paid" }

// An event with an idempotency key is saved once, however often it is reported.
func ExampleOutbox_Save_keyed() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	for range 3 {
		must(db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
			return ob.Save(ctx, tx, parcelPaid{Parcel: "7"})
		}))
	}
	counts, err := ob.Counts(ctx)
	must(err)
	fmt.Println(counts[outbox.StatusNew], "event")
	// Output:
	// 1 event
}

// A tenant, a store and metadata belong to this one event. Metadata for everything that a request does: bus.WithMetadata.
func ExampleWith() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	b := bus.New(db, bus.Config{})
	bus.On(b.Consumer("Track", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[parcelShipped]) error {
		fmt.Println(m.TenantID, m.StoreID, m.Metadata["source"])
		return nil
	})
	must(db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		return ob.Save(ctx, tx, outbox.With(parcelShipped{Parcel: "7"}, outbox.Tenant(7, 3), outbox.Meta("source", "web")))
	}))
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx)
	must(err)
	// Output:
	// 7 3 web
}

// An event for tomorrow is SCHEDULED until then.
func ExampleDeliverAt() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	b := bus.New(db, bus.Config{})
	bus.On(b.Consumer("Track", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[parcelShipped]) error {
		fmt.Println("parcel", m.Payload.Parcel, "has left")
		return nil
	})
	must(db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		return ob.Save(ctx, tx, outbox.With(parcelShipped{Parcel: "7"}, outbox.DeliverAt(time.Now().Add(24*time.Hour))))
	}))
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx)
	must(err)
	counts, err := ob.Counts(ctx)
	must(err)
	fmt.Println(counts[outbox.StatusScheduled], "scheduled")
	// Output:
	// 1 scheduled
}

// A dead letter is kept until somebody decides. After its cause is fixed, Retry delivers it again, with a reason for the audit log.
func ExampleOutbox_Retry() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	b := bus.New(db, bus.Config{})
	hasPaper := false
	bus.On(b.Consumer("Labels", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[parcelShipped]) error {
		if !hasPaper {
			return bus.Permanent(errors.New("the printer has no paper"))
		}
		fmt.Println("label for parcel", m.Payload.Parcel)
		return nil
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
	fmt.Println(len(dead), "dead letter")
	hasPaper = true
	must(ob.Retry(ctx, outbox.Operation{Actor: "anna", Reason: "the printer has paper again"}, dead[0].EventID))
	_, err = pub.RunOnce(ctx)
	must(err)
	// Output:
	// 1 dead letter
	// label for parcel 7
}

// Skip closes a delivery without its effect. The next event of the aggregate is delivered then.
func ExampleOutbox_Skip() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	b := bus.New(db, bus.Config{})
	bus.On(b.Consumer("Labels", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[parcelShipped]) error {
		if m.Payload.Grams == 0 {
			return bus.Permanent(errors.New("an empty parcel"))
		}
		fmt.Println("label for", m.Payload.Grams, "grams")
		return nil
	})
	must(db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		return ob.Save(ctx, tx, parcelShipped{Parcel: "7", Grams: 0}, parcelShipped{Parcel: "7", Grams: 420})
	}))
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx)
	must(err)
	dead, err := ob.Events(ctx, outbox.Filter{Status: outbox.StatusDead})
	must(err)
	fmt.Println("decide about", len(dead), "dead letter")
	must(ob.Skip(ctx, outbox.Operation{Actor: "anna", Reason: "it was a test parcel"}, dead[0].EventID, "Labels"))
	_, err = pub.RunOnce(ctx)
	must(err)
	// Output:
	// decide about 1 dead letter
	// label for 420 grams
}

// A paused consumer gets nothing, on any instance. Its deliveries wait until it is resumed.
func ExampleOutbox_Pause() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	b := bus.New(db, bus.Config{})
	bus.On(b.Consumer("Track", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[parcelShipped]) error {
		fmt.Println("parcel", m.Payload.Parcel, "has left")
		return nil
	})
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx)
	must(err)
	op := outbox.Operation{Actor: "anna", Reason: "the courier's service is being replaced"}
	must(ob.Pause(ctx, op, "Track", time.Hour))
	must(db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		return ob.Save(ctx, tx, parcelShipped{Parcel: "7", Grams: 100})
	}))
	_, err = pub.RunOnce(ctx)
	must(err)
	fmt.Println("resume")
	must(ob.Resume(ctx, op, "Track"))
	_, err = pub.RunOnce(ctx)
	must(err)
	// Output:
	// resume
	// parcel 7 has left
}

// A consumer that allows it can get past events again, to rebuild what it has written.
func ExampleOutbox_Replay() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	b := bus.New(db, bus.Config{})
	bus.On(b.Consumer("Track", bus.ConsumerConfig{Replayable: true}), func(_ context.Context, _ bun.Tx, m bus.Message[parcelShipped]) error {
		fmt.Println("replay:", m.Replay)
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
	must(ob.Replay(ctx, outbox.Operation{Actor: "anna", Reason: "the table of tracks was lost"}, sent[0].EventID, "Track"))
	_, err = pub.RunOnce(ctx)
	must(err)
	// Output:
	// replay: false
	// replay: true
}

// How many events there are in each state, and how much there is to do.
func ExampleOutbox_Counts() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	b := bus.New(db, bus.Config{})
	bus.On(b.Consumer("Track", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[parcelShipped]) error {
		fmt.Println("parcel", m.Payload.Parcel, "has left")
		return nil
	})
	must(db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		return ob.Save(ctx, tx, parcelShipped{Parcel: "7", Grams: 100})
	}))
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx)
	must(err)
	must(db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		return ob.Save(ctx, tx, parcelShipped{Parcel: "8", Grams: 100})
	}))
	counts, err := ob.Counts(ctx)
	must(err)
	backlog, err := ob.Backlog(ctx)
	must(err)
	fmt.Println(counts[outbox.StatusNew], "new,", counts[outbox.StatusSent], "sent,", backlog.Pending, "pending,", backlog.Dead, "dead")
	// Output:
	// parcel 7 has left
	// 1 new, 1 sent, 1 pending, 0 dead
}

// A publisher removes what was delivered seven days ago. How long it keeps events is configured there.
func ExamplePublisherConfig() {
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	b := bus.New(db, bus.Config{})
	_, err = outbox.NewPublisher(ob, b, outbox.PublisherConfig{Retention: outbox.RetentionConfig{Keep: time.Second}})
	fmt.Println(err != nil, "a second is too short")
	_, err = outbox.NewPublisher(ob, b, outbox.PublisherConfig{Retention: outbox.RetentionConfig{Keep: 30 * 24 * time.Hour, Archive: true}})
	must(err)
	// Output:
	// true a second is too short
}

// Retention removes what has been delivered and is old enough. What is DEAD stays until somebody decides. A publisher does
// this by itself; a program that makes one runs it, with bus.Run.
func ExampleRetention() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	b := bus.New(db, bus.Config{})
	bus.On(b.Consumer("Track", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[parcelShipped]) error {
		fmt.Println("parcel", m.Payload.Parcel, "has left")
		return nil
	})
	must(db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		return ob.Save(ctx, tx, parcelShipped{Parcel: "7", Grams: 100})
	}))
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx)
	must(err)
	// Eight days later:
	_, err = db.ExecContext(ctx, "UPDATE bc_outbox_event SET created_at = datetime('now', '-8 days'), sent_at = datetime('now', '-8 days')")
	must(err)
	retention, err := outbox.NewRetention(ob, outbox.RetentionConfig{Keep: 7 * 24 * time.Hour})
	must(err)
	removed, err := retention.RunOnce(ctx)
	must(err)
	fmt.Println(removed, "removed")
	// Output:
	// parcel 7 has left
	// 1 removed
}
