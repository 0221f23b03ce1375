package consistency_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	_ "modernc.org/sqlite"

	"github.com/bluecone-go/bluecone/consistency"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

// parcelShipped has an idempotency key: a repair that races with the late original saves nothing twice.
type parcelShipped struct{ Parcel string }

func (parcelShipped) EventType() string              { return "parcel.shipped" }
func (e parcelShipped) Aggregate() (kind, id string) { return "PARCEL", e.Parcel }
func (e parcelShipped) IdempotencyKey() string       { return "parcel:" + e.Parcel + ":shipped" }

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

// A parcel that has left implies its event. The check finds a parcel whose event somebody forgot to save, and saves it.
func Example() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	_, err := db.ExecContext(ctx, "CREATE TABLE parcels (id TEXT, status TEXT, shipped_at TEXT)")
	must(err)
	_, err = db.ExecContext(ctx, "INSERT INTO parcels VALUES ('7', 'SHIPPED', datetime('now', '-1 hour'))")
	must(err)
	ob, err := outbox.New(db, outbox.Config{})
	must(err)

	check := consistency.Check[string]{
		Name: "parcel.shipped",
		Key:  func(parcel string) string { return parcel },
		Find: func(ctx context.Context, db bun.IDB, q consistency.Query) (parcels []string, err error) {
			err = db.NewRaw("SELECT p.id FROM parcels p WHERE p.status = 'SHIPPED' AND ?", q.Page("p.shipped_at", "p.id")).Scan(ctx, &parcels)
			return parcels, err
		},
		Missing: func(ctx context.Context, db bun.IDB, parcels []string) (missing []string, err error) {
			for _, parcel := range parcels {
				id := outbox.EventID(0, "parcel.shipped", parcelShipped{parcel}.IdempotencyKey())
				ids, err := ob.Missing(ctx, db, []string{id})
				if err != nil {
					return nil, err
				}
				if len(ids) > 0 {
					missing = append(missing, parcel)
				}
			}
			return missing, nil
		},
		Repair: func(ctx context.Context, tx bun.Tx, parcel string) (bool, error) {
			return true, ob.Save(ctx, tx, parcelShipped{parcel})
		},
	}
	checks, err := consistency.New(db, consistency.Config{Grace: 5 * time.Minute}, check) // in a program: bus.Run(ctx, pub, checks)
	must(err)
	for range 2 {
		report, err := checks.RunOnce(ctx)
		must(err)
		fmt.Println(report["parcel.shipped"].Found, "found,", report["parcel.shipped"].Repaired, "repaired")
	}
	// Output:
	// 1 found, 1 repaired
	// 0 found, 0 repaired
}
