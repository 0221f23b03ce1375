// Package testdb gives every test a fresh database on a real server.
//
// MariaDB (or MySQL) and PostgreSQL are private servers, started from the machine's own
// binaries once per test process and stopped with it; SQLite is a file. A DSN in
// BLUECONE_TEST_MYSQL_DSN or BLUECONE_TEST_POSTGRES_DSN (mysql://user:password@host:port/,
// postgres://…) names a server to use instead; only databases that this package creates
// itself are touched there.
//
// A server that cannot be started skips its tests and says why, unless
// BLUECONE_TEST_REQUIRE (mysql,postgres,sqlite) names it.
package testdb

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/mysqldialect"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/bluecone-go/bluecone/migrations"
)

// Option changes what a fresh database holds.
type Option int

const (
	// Bare leaves the database empty. Default: migrated.
	Bare Option = iota + 1
	// Durable asks for a file of SQLite that survives the process being killed mid-write.
	Durable
)

// Dialects lists all databases bluecone runs on.
func Dialects() []string { return []string{"mysql", "postgres", "sqlite"} }

// Each runs fn as a parallel subtest on a fresh, migrated database of every dialect.
func Each(t *testing.T, fn func(t *testing.T, db *bun.DB)) {
	t.Helper()
	for _, d := range Dialects() {
		t.Run(d, func(t *testing.T) {
			t.Parallel()
			fn(t, Open(t, d))
		})
	}
}

// Open returns a pool on a fresh database, which is dropped when the test ends.
func Open(t *testing.T, dialect string, opts ...Option) *bun.DB {
	t.Helper()
	db := OpenDSN(t, DSN(t, dialect))
	if !slices.Contains(opts, Bare) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := migrations.Up(ctx, db); err != nil {
			t.Fatalf("testdb: %v", err)
		}
	}
	return db
}

// DSN creates a fresh, empty database and returns its URL, in the form that the demo takes.
func DSN(t *testing.T, dialect string) string {
	t.Helper()
	if dialect == "sqlite" {
		return "sqlite://" + filepath.Join(t.TempDir(), "test.db")
	}
	srv := server(t, dialect)
	name := "bc_test_" + random()
	admin := openURL(t, srv.url("")).DB
	defer admin.Close() //nolint:errcheck // nothing to lose
	mustExec(t, admin, "CREATE DATABASE "+name)
	t.Cleanup(func() {
		admin := openURL(t, srv.url("")).DB
		defer admin.Close() //nolint:errcheck // nothing to lose
		drop := "DROP DATABASE IF EXISTS " + name
		if dialect == "postgres" {
			drop += " WITH (FORCE)"
		}
		_, _ = admin.ExecContext(context.Background(), drop) // the server may be gone already
	})
	return srv.url(name)
}

// OpenDSN opens another pool on the database of a URL.
func OpenDSN(t *testing.T, dsn string) *bun.DB {
	t.Helper()
	db := openURL(t, dsn)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func openURL(t *testing.T, dsn string) *bun.DB {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatalf("testdb: %v", err)
	}
	switch u.Scheme {
	case "sqlite":
		pool := mustOpen(t, "sqlite", "file:"+u.Path+"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=foreign_keys(1)")
		pool.SetMaxOpenConns(6)
		return bun.NewDB(pool, sqlitedialect.New())
	case "mysql":
		pool := mustOpen(t, "mysql", mysqlConfig(u).FormatDSN())
		pool.SetMaxOpenConns(16)
		pool.SetMaxIdleConns(8)
		return bun.NewDB(pool, mysqldialect.New())
	default:
		pool := mustOpen(t, "pgx", dsn)
		pool.SetMaxOpenConns(16)
		pool.SetMaxIdleConns(8)
		return bun.NewDB(pool, pgdialect.New())
	}
}

func mysqlConfig(u *url.URL) *mysql.Config {
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr, cfg.DBName = "tcp", u.Host, strings.TrimPrefix(u.Path, "/")
	cfg.User = u.User.Username()
	cfg.Passwd, _ = u.User.Password()
	cfg.ParseTime, cfg.InterpolateParams, cfg.Loc = true, true, time.UTC
	return cfg
}

func mustOpen(t *testing.T, driver, dsn string) *sql.DB {
	t.Helper()
	pool, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatalf("testdb: open %s: %v", driver, err)
	}
	return pool
}

func mustExec(t *testing.T, db *sql.DB, query string) {
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

// unavailable skips the test, or fails it if the dialect is required.
func unavailable(t *testing.T, dialect string, err error) {
	t.Helper()
	hint := map[string]string{"mysql": "mariadb-server", "postgres": "postgresql"}[dialect]
	msg := fmt.Sprintf("testdb: no %s here: %v (Debian: apt-get install %s)", dialect, err, hint)
	if slices.Contains(strings.Split(os.Getenv("BLUECONE_TEST_REQUIRE"), ","), dialect) {
		t.Fatal(msg)
	}
	t.Skip(msg)
}
