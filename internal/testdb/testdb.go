// Package testdb gives every test a fresh database on a real server.
//
//	func TestMain(m *testing.M) { testdb.Main(m) }
//
//	func TestX(t *testing.T) {
//		testdb.Each(t, func(t *testing.T, db *bun.DB) { … }) // mysql, mysql9, postgres, sqlite
//	}
//
// The name mysql is MariaDB (or MySQL, where only that is installed), mysql9 is MySQL 9 or later. The library's code knows
// both as the dialect "mysql"; see [Dialect] and [Server].
//
// MariaDB, MySQL and PostgreSQL are private servers, started from the machine's own binaries when the first test of a process
// asks for one, and stopped by [Main]; they also end when the process is killed. SQLite is a file. BLUECONE_TEST_MYSQL_DSN and
// BLUECONE_TEST_MYSQL9_DSN (mysql://user:password@host:port/) and BLUECONE_TEST_POSTGRES_DSN (postgres://…) name a server
// to use instead: each test gets a database that is created there, and dropped afterwards;
// databases that exist already are never touched.
//
// A server that cannot be started skips its tests and says why, unless BLUECONE_TEST_REQUIRE (a list such as
// mysql,mysql9,postgres,sqlite) names it: then they fail. BLUECONE_TEST_ONLY (such a list, too) runs the tests of every
// database on these alone.
package testdb

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/mysqldialect"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/bluecone-go/bluecone/internal/dbserver"
	"github.com/bluecone-go/bluecone/internal/needs"
	"github.com/bluecone-go/bluecone/internal/process"
)

// Option changes what a fresh database holds. Default: the tables of bluecone.
type Option int

// Bare leaves the database empty.
const Bare Option = 1

const (
	poolSize     = 12
	filePoolSize = 6
	// With NORMAL a killed process loses no commit, only a power cut does; with FULL writers of a busy disk wait too long for each other.
	sqliteSettings = "?_txlock=immediate&_pragma=busy_timeout(30000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)" +
		"&_pragma=foreign_keys(1)"
)

// Dialects lists the names of all databases bluecone runs on, as [Open] and [DSN] take them.
func Dialects() []string { return only("mysql", "mysql9", "postgres", "sqlite") }

// Servers lists those of them that are servers, with many writers at a time.
func Servers() []string { return only("mysql", "mysql9", "postgres") }

// Patience is how long a test waits for what must come: long enough for a slow machine with a busy disk, unless
// BLUECONE_TEST_PATIENCE says otherwise.
func Patience() time.Duration { return needs.Patience() }

// Measures skips a test that measures, unless BLUECONE_TEST_MEASURE is set.
func Measures(t testing.TB) {
	t.Helper()
	MeasuresWith(t, 0)
}

// MeasuresWith does the same, and returns with how many rows or events to measure: as many as usual, or as
// BLUECONE_TEST_MEASURE says if it is more than 1.
func MeasuresWith(t testing.TB, usual int) int {
	t.Helper()
	value := os.Getenv("BLUECONE_TEST_MEASURE")
	if value == "" {
		t.Skip("testdb: it measures, takes minutes and wants a quiet machine: BLUECONE_TEST_MEASURE=1 runs it (docs/testing.md)")
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 {
		t.Fatalf("testdb: BLUECONE_TEST_MEASURE must be 1, or a number of rows or events, not %q", value)
	}
	if n == 1 {
		return usual
	}
	return n
}

// only leaves of names those that BLUECONE_TEST_ONLY asks for.
func only(names ...string) []string {
	list := os.Getenv("BLUECONE_TEST_ONLY")
	if list == "" {
		return names
	}
	return slices.DeleteFunc(names, func(name string) bool { return !needs.Listed(list, name) })
}

func skipIfLeftOut(t testing.TB, name string) {
	t.Helper()
	if len(only(name)) == 0 {
		t.Skip("testdb: BLUECONE_TEST_ONLY leaves out " + name)
	}
}

// Dialect is the dialect of a database's name: mysql, postgres or sqlite.
func Dialect(name string) string {
	if name == "mysql9" {
		return "mysql"
	}
	return name
}

// Server is the name of the database that a pool of this package belongs to, for another database beside it:
//
//	other := testdb.Open(t, testdb.Server(t, db))
func Server(t testing.TB, db *bun.DB) string {
	t.Helper()
	name, ok := pools.Load(db)
	if !ok {
		t.Fatal("testdb: the pool was not opened by Open or OpenDSN")
	}
	return name.(string) //nolint:forcetypeassert // nothing else is stored
}

// pools has the name of the database of each open pool.
var pools sync.Map //nolint:gochecknoglobals // what Server looks up

// Each runs fn as a parallel subtest on a fresh, migrated database of every dialect.
func Each(t *testing.T, fn func(t *testing.T, db *bun.DB)) {
	t.Helper()
	onEach(t, Dialects(), fn)
}

// EachServer does the same on the servers alone, where others write while a transaction is open.
func EachServer(t *testing.T, fn func(t *testing.T, db *bun.DB)) {
	t.Helper()
	onEach(t, Servers(), fn)
}

func onEach(t *testing.T, names []string, fn func(t *testing.T, db *bun.DB)) {
	t.Helper()
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fn(t, Open(t, name))
		})
	}
}

// Open returns a pool on a fresh database, which is dropped when the test ends.
func Open(t testing.TB, dialect string, opts ...Option) *bun.DB {
	t.Helper()
	if slices.Contains(opts, Bare) {
		return OpenDSN(t, DSN(t, dialect))
	}
	if dialect == "sqlite" {
		dsn := DSN(t, dialect)
		copyFile(t, dsn)
		return OpenDSN(t, dsn)
	}
	return copied(t, dialect)
}

// DSN creates a fresh, empty database, which is dropped when the test ends, and returns its URL in
// the form that the demo takes: a process started by the test can be pointed at it.
func DSN(t testing.TB, dialect string) string {
	t.Helper()
	if dialect == "sqlite" {
		skipIfLeftOut(t, dialect)
		return "sqlite://" + filepath.Join(directory(t), "test.db")
	}
	return create(t, dialect, server(t, dialect), "")
}

// swept makes sure that the files of killed processes are looked for once.
var swept sync.Once //nolint:gochecknoglobals // for the process

// directory is one in memory, if there is any, for the file of a test.
func directory(t testing.TB) string {
	t.Helper()
	const prefix = "bluecone-sqlite-"
	swept.Do(func() { process.Sweep(process.Memory(), prefix, func(string) {}) })
	dir, err := process.NewDir(process.Memory(), prefix)
	if err != nil {
		t.Fatalf("testdb: %v", err)
	}
	t.Cleanup(dir.Remove)
	return dir.Path
}

// create makes a database on a server, with a clause of CREATE DATABASE, and drops it when the test ends.
func create(t testing.TB, dialect string, srv *instance, clause string) string {
	t.Helper()
	name := "bc_test_" + random()
	drop := "DROP DATABASE IF EXISTS " + name
	if dialect == "postgres" {
		drop += " WITH (FORCE)" // a child process may still be connected
	}
	admin := openURL(t, srv.admin.String())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		_, _ = admin.ExecContext(ctx, drop) // a test may have ended the server
		_ = admin.Close()
	})
	mustExec(t, admin, "CREATE DATABASE "+name+clause)
	admin.SetMaxIdleConns(0) // no connection while the test runs
	return srv.url(name)
}

// PoolerDSN is the way to the PostgreSQL database of a DSN by a PgBouncer that gives each transaction any
// of a few connections.
func PoolerDSN(t testing.TB, dsn string) string {
	t.Helper()
	database, err := url.Parse(dsn)
	if err != nil {
		t.Fatalf("testdb: %v", err)
	}
	pooler, err := dbserver.StartPooler(database)
	if err != nil {
		unavailable(t, "pgbouncer", err)
	}
	t.Cleanup(pooler.Stop)
	return pooler.URL.String()
}

// OpenDSN opens another pool on the database of a URL, which is closed when the test ends. A pool
// has at most 12 connections, 6 for SQLite.
func OpenDSN(t testing.TB, dsn string) *bun.DB {
	t.Helper()
	db := openURL(t, dsn)
	pools.Store(db, serverOf(dsn))
	t.Cleanup(func() {
		pools.Delete(db)
		_ = db.Close()
	})
	return db
}

func openURL(t testing.TB, dsn string) *bun.DB {
	t.Helper()
	db, err := Connect(dsn)
	if err != nil {
		t.Fatalf("testdb: %v", err)
	}
	return db
}

// Connect opens a pool on the database of a URL, for processes that a test starts.
func Connect(dsn string) (*bun.DB, error) {
	u, err := url.Parse(dsn)
	if err != nil {
		return nil, err
	}
	switch u.Scheme {
	case "sqlite":
		pool, err := sql.Open("sqlite", "file:"+u.EscapedPath()+sqliteSettings)
		if err != nil {
			return nil, err
		}
		pool.SetMaxOpenConns(filePoolSize)
		return bun.NewDB(pool, sqlitedialect.New()), nil
	case "mysql":
		pool, err := sql.Open("mysql", dbserver.MySQLConfig(u).FormatDSN())
		if err != nil {
			return nil, err
		}
		return bun.NewDB(sized(pool), mysqldialect.New()), nil
	default:
		pool, err := sql.Open("pgx", dsn)
		if err != nil {
			return nil, err
		}
		return bun.NewDB(sized(pool), pgdialect.New()), nil
	}
}

func sized(pool *sql.DB) *sql.DB {
	pool.SetMaxOpenConns(poolSize)
	pool.SetMaxIdleConns(poolSize)
	return pool
}

func mustExec(t testing.TB, db *bun.DB, query string) {
	t.Helper()
	if _, err := db.ExecContext(context.Background(), query); err != nil {
		t.Fatalf("testdb: %s: %v", query, err)
	}
}

func random() string {
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
