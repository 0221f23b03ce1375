package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"

	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

// A program on database/sql saves in its own transaction, and needs to know nothing of bun: Open makes what the packages take.
func ExampleOpen() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "example")
	must(err)
	defer os.RemoveAll(dir)
	pool, err := sql.Open("sqlite", "file:"+dir+"/app.db?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")
	must(err)
	defer pool.Close()
	_, err = pool.ExecContext(ctx, "CREATE TABLE parcel (id TEXT PRIMARY KEY, state TEXT)")
	must(err)

	db, err := outbox.Open(ctx, pool)
	must(err)
	must(migrations.Up(ctx, db))
	ob, err := outbox.New(db, outbox.Config{})
	must(err)

	tx, err := pool.BeginTx(ctx, nil) // yours
	must(err)
	_, err = tx.ExecContext(ctx, "INSERT INTO parcel (id, state) VALUES (?, 'shipped')", "7")
	must(err)
	must(ob.Save(ctx, tx, parcelShipped{Parcel: "7"}))
	must(tx.Commit())
	err = ob.Save(ctx, tx, parcelShipped{Parcel: "8"})
	fmt.Println("too late:", errors.Is(err, sql.ErrTxDone))

	counts, err := ob.Counts(ctx)
	must(err)
	fmt.Println(counts[outbox.StatusNew], "event")
	// Output:
	// too late: true
	// 1 event
}
