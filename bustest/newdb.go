package bustest

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"net/url"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// DBOption says where [NewDB] makes its database.
type DBOption func(*place)

// place is a server on which databases can be made; without one they are files.
type place struct {
	admin *bun.DB
	open  func(database string) (*bun.DB, error)
}

// OnServer makes the database on the server of admin, a MariaDB, MySQL or PostgreSQL whose user may create and drop databases.
// open opens a pool on one of its databases, with the driver and the settings of your program. Give admin and open the
// server of your tests, not one that holds anything dear.
func OnServer(admin *bun.DB, open func(database string) (*bun.DB, error)) DBOption {
	return func(p *place) { p.admin, p.open = admin, open }
}

// sqliteFile are the settings with which SQLite waits for its one writer instead of failing.
const sqliteFile = "?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)" +
	"&_pragma=foreign_keys(1)"

// NewDB returns a pool on a fresh, empty database that is gone when the test ends, so that each test has its own: a SQLite file
// in the test's directory, unless [OnServer] names a server. It needs no set-up but a driver, which your test imports:
//
//	import _ "modernc.org/sqlite"
func NewDB(t testing.TB, opts ...DBOption) *bun.DB {
	t.Helper()
	var p place
	for _, o := range opts {
		o(&p)
	}
	if p.admin != nil {
		return p.make(t)
	}
	const driver = "sqlite"
	if !slices.Contains(sql.Drivers(), driver) {
		t.Fatal(`bustest.NewDB: no driver for SQLite is linked: import _ "modernc.org/sqlite" in your test, or name a server by bustest.OnServer`)
	}
	file := url.URL{Path: filepath.Join(t.TempDir(), "bus.db")}
	pool, err := sql.Open(driver, "file:"+file.EscapedPath()+sqliteFile)
	if err != nil {
		t.Fatalf("bustest.NewDB: open SQLite: %v", err)
	}
	const conns = 6 // handlers wait for the one writer, readers for nobody
	pool.SetMaxOpenConns(conns)
	db := bun.NewDB(pool, sqlitedialect.New())
	t.Cleanup(func() { closeDB(t, db) })
	return db
}

// make makes a database on the server, and drops it when the test ends.
func (p place) make(t testing.TB) *bun.DB {
	t.Helper()
	d, err := dialect.Of(p.admin)
	if err != nil || p.open == nil || d.Name == "sqlite" {
		t.Fatalf("bustest.OnServer needs a pool on a MariaDB, MySQL or PostgreSQL, and a function that opens another (%v)", err)
	}
	suffix := make([]byte, 8)
	_, _ = rand.Read(suffix) // never fails
	name := "bustest_" + hex.EncodeToString(suffix)
	drop := "DROP DATABASE IF EXISTS " + name
	if d.Name == "postgres" {
		drop += " WITH (FORCE)" // a process of the test may still be connected
	}
	if _, err := p.admin.ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatalf("bustest.NewDB: create a database: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := p.admin.ExecContext(ctx, drop); err != nil {
			t.Errorf("bustest.NewDB: the database %s is left behind: %v", name, err)
		}
	})
	db, err := p.open(name)
	if err != nil {
		t.Fatalf("bustest.NewDB: open the database %s: %v", name, err)
	}
	t.Cleanup(func() { closeDB(t, db) })
	return db
}

func closeDB(t testing.TB, db *bun.DB) {
	t.Helper()
	if err := db.Close(); err != nil {
		t.Errorf("bustest.NewDB: close the pool: %v", err)
	}
}
