package ops_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	_ "modernc.org/sqlite"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

// parcelShipped says that a parcel has left.
type parcelShipped struct{ Parcel string }

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

// What happened to parcel 7? Trace answers with its events, their deliveries and a diagnosis in one sentence.
func ExampleOps_Trace() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	b := bus.New(db, bus.Config{})
	bus.On(b.Consumer("Labels", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[parcelShipped]) error {
		return bus.Permanent(errors.New("the printer has no paper"))
	})
	must(db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		return ob.Save(ctx, tx, parcelShipped{Parcel: "7"})
	}))
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx)
	must(err)
	o, err := ops.New(db, ob, ops.Config{})
	must(err)
	story, err := o.Trace(ctx, "7")
	must(err)
	for _, e := range story.Events {
		for _, d := range e.Deliveries {
			fmt.Println(e.EventType, "to", d.Consumer, "is", d.Status, "because", d.Error)
		}
	}
	fmt.Println("worst finding:", story.Findings[0].Rule)
	// Output:
	// parcel.shipped to Labels is DEAD because the printer has no paper
	// worst finding: dead
}

// Search by what is known: an aggregate, a type, a state, a time. Lists come in pages and without payloads.
func ExampleOps_Events() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	b := bus.New(db, bus.Config{})
	bus.On(b.Consumer("Labels", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[parcelShipped]) error {
		return bus.Permanent(errors.New("the printer has no paper"))
	})
	must(db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		return ob.Save(ctx, tx, parcelShipped{Parcel: "7"}, parcelShipped{Parcel: "8"}, parcelShipped{Parcel: "9"})
	}))
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx)
	must(err)
	o, err := ops.New(db, ob, ops.Config{})
	must(err)
	query := ops.Query{EventType: "parcel.shipped", Since: time.Now().Add(-time.Hour), Limit: 2}
	for {
		page, err := o.Events(ctx, query)
		must(err)
		for _, e := range page.Rows {
			fmt.Println(e.AggregateType, e.AggregateID, e.Status)
		}
		if page.Next == "" {
			break
		}
		query.Cursor = page.Next
	}
	// Output:
	// PARCEL 9 DEAD
	// PARCEL 8 DEAD
	// PARCEL 7 DEAD
}

// Dead letters are grouped by their cause.
func ExampleOps_Dead() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	b := bus.New(db, bus.Config{})
	bus.On(b.Consumer("Labels", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[parcelShipped]) error {
		return bus.Permanent(errors.New("the printer has no paper"))
	})
	must(db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		return ob.Save(ctx, tx, parcelShipped{Parcel: "7"}, parcelShipped{Parcel: "8"}, parcelShipped{Parcel: "9"})
	}))
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx)
	must(err)
	o, err := ops.New(db, ob, ops.Config{})
	must(err)
	groups, err := o.Dead(ctx)
	must(err)
	for _, g := range groups {
		fmt.Println(g.Dead, "dead of", g.Consumer+":", g.Error)
	}
	// Output:
	// 3 dead of Labels: the printer has no paper
}

// A bulk operation runs in the background, at its own pace, on whichever instance is alive. In a program bus.Run(ctx, pub, o) does that.
func ExampleOps_StartBulk() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	b := bus.New(db, bus.Config{})
	bus.On(b.Consumer("Labels", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[parcelShipped]) error {
		return bus.Permanent(errors.New("the printer has no paper"))
	})
	must(db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		return ob.Save(ctx, tx, parcelShipped{Parcel: "7"}, parcelShipped{Parcel: "8"}, parcelShipped{Parcel: "9"})
	}))
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx)
	must(err)
	o, err := ops.New(db, ob, ops.Config{})
	must(err)
	what := ops.NewBulk{Action: ops.ActionRetry, Query: ops.Query{Consumer: "Labels", DeliveryStatus: consumelog.Dead}}
	count, err := o.DryRun(ctx, what)
	must(err)
	fmt.Println(count.Count, "events")
	bulk, err := o.StartBulk(ctx, outbox.Operation{Actor: "anna", Reason: "the printer has paper again"}, what)
	must(err)
	_, err = o.RunBulkOnce(ctx)
	must(err)
	bulk, err = o.Bulk(ctx, bulk.ID)
	must(err)
	fmt.Println(bulk.State, bulk.Done, "done")
	// Output:
	// 3 events
	// DONE 3 done
}

// A consumer that a new release brings gets an event that was delivered before it came. For many events start a bulk operation
// with [ops.ActionBackfill].
func ExampleOps_Backfill() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	run := func(b *bus.Bus) {
		pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
		must(err)
		_, err = pub.RunOnce(ctx)
		must(err)
	}
	before := bus.New(db, bus.Config{})
	bus.On(before.Consumer("Labels", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[parcelShipped]) error { return nil })
	must(db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error { return ob.Save(ctx, tx, parcelShipped{Parcel: "7"}) }))
	run(before)

	now := bus.New(db, bus.Config{})
	bus.On(now.Consumer("Statistics", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[parcelShipped]) error {
		fmt.Println("Statistics has parcel", m.Payload.Parcel)
		return nil
	})
	run(now) // registers it
	o, err := ops.New(db, ob, ops.Config{})
	must(err)
	shipped, err := o.Events(ctx, ops.Query{EventType: parcelShipped{}.EventType()})
	must(err)
	must(o.Backfill(ctx, ops.Operation{Actor: "anna", Reason: "new in 4.2"}, shipped.Rows[0].EventID, "Statistics"))
	run(now)
	// Output:
	// Statistics has parcel 7
}

// Everything that operators do leaves a row in the audit log: who, what and why.
func ExampleOps_Audit() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	b := bus.New(db, bus.Config{})
	bus.On(b.Consumer("Labels", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[parcelShipped]) error {
		return bus.Permanent(errors.New("the printer has no paper"))
	})
	must(db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		return ob.Save(ctx, tx, parcelShipped{Parcel: "7"})
	}))
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	must(err)
	_, err = pub.RunOnce(ctx)
	must(err)
	o, err := ops.New(db, ob, ops.Config{})
	must(err)
	groups, err := o.Dead(ctx)
	must(err)
	must(o.Skip(ctx, outbox.Operation{Actor: "anna", Reason: "it was a test parcel"}, groups[0].SampleEvent, "Labels"))
	page, err := o.Audit(ctx, ops.AuditQuery{})
	must(err)
	for _, row := range page.Rows {
		fmt.Println(row.Actor, row.Action, row.Reason)
	}
	// Output:
	// anna skip it was a test parcel
}

// The probes of an orchestrator: mount them where only it can reach them.
func ExampleHealth() {
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	o, err := ops.New(db, ob, ops.Config{})
	must(err)
	health := ops.Health(o)
	mux := http.NewServeMux()
	mux.Handle("/livez", health)
	mux.Handle("/readyz", health)
	for _, path := range []string{"/livez", "/readyz"} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), http.MethodGet, path, nil))
		var said struct {
			Status string
			Checks []struct {
				Name string
				OK   bool
			}
		}
		must(json.Unmarshal(w.Body.Bytes(), &said))
		fmt.Println(path, w.Code, said.Status, said.Checks)
	}
	// Output:
	// /livez 200 live []
	// /readyz 200 ready [{database true} {tables true} {publisher true}]
}
