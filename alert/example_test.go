package alert_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	_ "modernc.org/sqlite"

	"github.com/bluecone-go/bluecone/alert"
	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/migrations"
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

// A webhook gets a message for each fault, once for the whole deployment.
func ExampleWebhook() {
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
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var n alert.Notice
		must(json.NewDecoder(r.Body).Decode(&n))
		fmt.Println(n.Kind, n.Level, n.Rule, n.Consumer)
	}))
	defer receiver.Close()
	sink, err := alert.Webhook(alert.WebhookConfig{URL: receiver.URL, Secret: "from your configuration"})
	must(err)
	alerter, err := alert.New(db, ob, alert.Config{Routes: []alert.Route{{Name: "oncall", Sink: sink}}})
	must(err)
	for range 2 { // in a program: bus.Run(ctx, pub, alerter)
		report, err := alerter.RunOnce(ctx)
		must(err)
		fmt.Println("sent:", report.Sent)
	}
	// Output:
	// FIRING CRITICAL dead Labels
	// sent: 1
	// sent: 0
}

// A sink of your own is one function. Its error means that the message is sent again later.
func ExampleSinkFunc() {
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
	chat := alert.SinkFunc(func(_ context.Context, n alert.Notice) error {
		fmt.Println(n.Says)
		return nil
	})
	alerter, err := alert.New(db, ob, alert.Config{Routes: []alert.Route{{Name: "chat", Sink: chat}}})
	must(err)
	_, err = alerter.RunOnce(ctx)
	must(err)
	// Output:
	// 1 delivery of parcel.shipped to Labels is DEAD and waits for an operator
}
