package migrations_test

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"os"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	_ "modernc.org/sqlite"

	"github.com/bluecone-go/bluecone/migrations"
)

// openDB opens an empty SQLite database in a temporary folder. The function it returns removes it.
func openDB() (*bun.DB, func()) {
	dir, err := os.MkdirTemp("", "example")
	must(err)
	pool, err := sql.Open("sqlite", "file:"+dir+"/app.db?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")
	must(err)
	return bun.NewDB(pool, sqlitedialect.New()), func() {
		must(pool.Close())
		must(os.RemoveAll(dir))
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// Up may run in every instance at its start: one of them works at a time, and what is applied stays.
func ExampleUp() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	must(migrations.Up(ctx, db))
	must(migrations.Up(ctx, db))
	var events int
	must(db.NewRaw("SELECT COUNT(*) FROM bc_outbox_event").Scan(ctx, &events))
	fmt.Println(events, "events")
	// Output:
	// 0 events
}

// What is pending? Status writes nothing.
func ExampleStatus() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	pending := func() (n int) {
		all, err := migrations.Status(ctx, db)
		must(err)
		for _, m := range all {
			if m.AppliedAt.IsZero() {
				n++
			}
		}
		return n
	}
	fmt.Println("pending before:", pending() > 0)
	must(migrations.Up(ctx, db))
	fmt.Println("pending after:", pending() > 0)
	// Output:
	// pending before: true
	// pending after: false
}

// To apply the SQL with a tool of your own, take the files from FS.
func ExampleFS() {
	files, err := migrations.FS("postgres")
	must(err)
	names, err := fs.Glob(files, "*.sql")
	must(err)
	fmt.Println(names[0])
	// Output: 0001_bluecone.sql
}
