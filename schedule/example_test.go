package schedule_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	_ "modernc.org/sqlite"

	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/schedule"
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

// Jobs of your own take the turns of the whole deployment. In a program, bus.Run(ctx, pub, jobs) runs them when they are due.
func ExampleSchedule_Add() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	jobs := schedule.New(db).
		Add("coupons.expire", "0 3 * * *", func(ctx context.Context) error {
			schedule.Count(ctx, "expired", 12)
			return nil
		}).
		Add("reports.send", "0 0 8 * * MON", func(context.Context) error { return nil })
	counts, err := jobs.RunNow(ctx, "coupons.expire") // out of turn, such as in a test
	must(err)
	fmt.Println(counts)
	fmt.Println(jobs.Crons())
	// Output:
	// map[expired:12]
	// map[coupons.expire:0 3 * * * reports.send:0 0 8 * * MON]
}

// Mistakes are collected: Run returns all of them and starts nothing.
func ExampleSchedule_Err() {
	db, end := openDB()
	defer end()

	jobs := schedule.New(db).
		Add("alert", "@hourly", func(context.Context) error { return nil }).
		Add("reports.send", "0 8 31 2 *", nil)
	fmt.Println(jobs.Err())
	// Output:
	// schedule: the job "alert" has the name of one of the library's own jobs: choose another one
	// schedule: the job "reports.send" cannot have its schedule: cron expression "0 8 31 2 *" names a date that never comes
	// schedule: the job "reports.send" has no function: give a func(ctx context.Context) error
}
