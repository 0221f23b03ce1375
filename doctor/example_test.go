package doctor_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	_ "modernc.org/sqlite"

	"github.com/bluecone-go/bluecone/doctor"
	"github.com/bluecone-go/bluecone/migrations"
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

// Before a program starts to work: is the database fit for the bus? Every finding that is not OK says what to do.
func Example() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	report, err := doctor.Examine(ctx, db, doctor.Config{})
	must(err)
	for _, finding := range report {
		if finding.Level != doctor.OK {
			fmt.Println(finding.Says, finding.Remedy)
		}
	}
	fmt.Println(report.Worst())
	// Output:
	// OK
}

// Start logs each warning and ends the start of a program whose database would lose events.
func ExampleStart() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	must(doctor.Start(ctx, db, doctor.Config{}, slog.Default()))

	_, err := db.ExecContext(ctx, "DROP INDEX bc_outbox_event_idx_aggregate")
	must(err)
	err = doctor.Start(ctx, db, doctor.Config{}, slog.Default())
	fmt.Println(errors.Is(err, doctor.ErrUnfit))
	// Output:
	// true
}
