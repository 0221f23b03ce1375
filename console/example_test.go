package console_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	_ "modernc.org/sqlite"

	"github.com/bluecone-go/bluecone/console"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
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

// The console is one http.Handler. Nobody gets in until Authorize says who they are.
func Example() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	o, err := ops.New(db, ob, ops.Config{})
	must(err)
	check, err := console.Users(console.User{Name: "anna", Password: "from your configuration", May: console.Operator()})
	must(err)
	pages, err := console.New(o, console.Config{Authorize: console.BasicAuth(check), Environment: "staging"})
	must(err)
	mux := http.NewServeMux()
	mux.Handle("/ops/", pages)

	request := httptest.NewRequestWithContext(ctx, http.MethodGet, "/ops/", nil)
	stranger := httptest.NewRecorder()
	mux.ServeHTTP(stranger, request)
	request.SetBasicAuth("anna", "from your configuration")
	anna := httptest.NewRecorder()
	mux.ServeHTTP(anna, request)
	fmt.Println(stranger.Code, anna.Code)
	// Output:
	// 401 200
}

// Programs read the JSON API with a token of their own.
func ExampleBearerToken() {
	ctx := context.Background()
	db, end := openDB()
	defer end()

	ob, err := outbox.New(db, outbox.Config{})
	must(err)
	o, err := ops.New(db, ob, ops.Config{})
	must(err)
	authorize, err := console.BearerToken("a long secret from your configuration",
		console.Principal{Name: "dashboard", May: console.ReadOnly()})
	must(err)
	pages, err := console.New(o, console.Config{Authorize: authorize})
	must(err)

	request := httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/v1/overview", nil)
	request.Header.Set("Authorization", "Bearer a long secret from your configuration")
	answer := httptest.NewRecorder()
	pages.ServeHTTP(answer, request)
	fmt.Println(answer.Code, answer.Header().Get("Content-Type"))
	// Output:
	// 200 application/json
}
