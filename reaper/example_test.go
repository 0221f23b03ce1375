package reaper_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	_ "modernc.org/sqlite"

	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
	"github.com/bluecone-go/bluecone/reaper"
)

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

// A seat that was held an hour ago for an order which was never paid is given back. Age alone does not release it: the owner's guard looks
// at the order, and the reaper asks the outbox whether an event of the order is still on its way to the consumer.
func Example() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	_, err := db.ExecContext(ctx, "CREATE TABLE orders (id TEXT, status TEXT)")
	must(err)
	_, err = db.ExecContext(ctx, "CREATE TABLE seats (id TEXT, order_id TEXT, status TEXT, held_at TEXT)")
	must(err)
	_, err = db.ExecContext(ctx, "INSERT INTO orders VALUES ('1', 'OPEN'), ('2', 'PAID')")
	must(err)
	_, err = db.ExecContext(ctx, "INSERT INTO seats VALUES ('12A', '1', 'HELD', datetime('now', '-1 hour')), ('12B', '2', 'HELD', "+
		"datetime('now', '-1 hour'))")
	must(err)
	ob, err := outbox.New(db, outbox.Config{})
	must(err)

	orders := &reaper.Owner{Guard: func(ctx context.Context, tx bun.Tx, a reaper.Aggregate) (bool, error) {
		var status string // with FOR UPDATE on other databases
		err := tx.NewRaw("SELECT status FROM orders WHERE id = ?", a.ID).Scan(ctx, &status)
		return status == "OPEN", err
	}}
	seats := reaper.Task{
		Name: "seat.hold", Owner: orders, Consumer: "Seats", TTL: 30 * time.Minute,
		Find: func(ctx context.Context, db bun.IDB, q reaper.Query) (locks []reaper.Lock, err error) {
			rows, err := db.QueryContext(ctx, "SELECT s.id, s.order_id, ? FROM seats s WHERE s.status = 'HELD' AND ?",
				reaper.Age("s.held_at"), q.Page("s.held_at", "s.id"))
			if err != nil {
				return nil, err
			}
			defer rows.Close()
			for rows.Next() {
				var micros int64
				lock := reaper.Lock{AggregateType: "ORDER"}
				if err := rows.Scan(&lock.ID, &lock.AggregateID, &micros); err != nil {
					return nil, err
				}
				lock.Age = time.Duration(micros) * time.Microsecond
				locks = append(locks, lock)
			}
			return locks, rows.Err()
		},
		Release: func(ctx context.Context, tx bun.Tx, lock reaper.Lock) (bool, error) {
			res, err := tx.ExecContext(ctx, "UPDATE seats SET status = 'FREE' WHERE id = ? AND status = 'HELD'", lock.ID)
			if err != nil {
				return false, err
			}
			n, err := res.RowsAffected()
			return n == 1, err
		},
	}
	r, err := reaper.New(db, ob, reaper.Config{}, seats) // in a program: bus.Run(ctx, pub, r)
	must(err)
	report, err := r.RunOnce(ctx)
	must(err)
	fmt.Println(report.Expired, "expired,", report.Released, "released,", report.Kept, "kept by the order")
	// Output:
	// 2 expired, 1 released, 1 kept by the order
}
