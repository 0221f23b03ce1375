// Package database opens the demo's database from a URL and keeps its tables.
package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/mysqldialect"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// ErrDSN means that the DSN itself is wrong, not the server behind it.
var ErrDSN = errors.New("wrong DSN")

const forms = "use sqlite:///abs/path/file.db, mysql://user:password@host:port/name or postgres://user:password@host:port/name"

// Open opens the database of a URL and makes sure that it answers. No error shows the password.
func Open(ctx context.Context, dsn string) (*bun.DB, error) {
	u, err := url.Parse(dsn)
	if err != nil {
		return nil, fmt.Errorf("%w: it is not a URL; %s", ErrDSN, forms)
	}
	var db *bun.DB
	switch u.Scheme {
	case "sqlite":
		db, err = openSQLite(u)
	case "mysql":
		db, err = openMySQL(u)
	case "postgres", "postgresql":
		db, err = openPostgres(u)
	case "":
		return nil, fmt.Errorf("%w: it names no database; %s", ErrDSN, forms)
	default:
		return nil, fmt.Errorf("%w: %q is not supported; %s", ErrDSN, u.Scheme, forms)
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := ping(ctx, db); err != nil {
		_ = db.Close() // the first error is the one to tell
		return nil, fmt.Errorf("cannot reach %s: %s", u.Redacted(), oneLine(err))
	}
	return db, nil
}

// ping waits while another instance is making the same new SQLite file.
func ping(ctx context.Context, db *bun.DB) error {
	for {
		err := db.PingContext(ctx)
		if err == nil || dialect.Classify(err) != dialect.TxRetry {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

func openSQLite(u *url.URL) (*bun.DB, error) {
	if u.Host != "" || !filepath.IsAbs(u.Path) || strings.HasSuffix(u.Path, "/") {
		return nil, fmt.Errorf("%w: sqlite wants an absolute path, as in sqlite:///tmp/demo.db", ErrDSN)
	}
	pool, err := sql.Open("sqlite", "file:"+(&url.URL{Path: u.Path}).EscapedPath()+
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)")
	if err != nil {
		return nil, fmt.Errorf("open SQLite: %w", err)
	}
	pool.SetMaxOpenConns(4)
	return bun.NewDB(pool, sqlitedialect.New()), nil
}

func openMySQL(u *url.URL) (*bun.DB, error) {
	name := strings.TrimPrefix(u.Path, "/")
	if u.Host == "" || name == "" || strings.Contains(name, "/") || u.User.Username() == "" {
		return nil, fmt.Errorf("%w: mysql wants user, host and database name, as in mysql://user:password@127.0.0.1:3306/name", ErrDSN)
	}
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr, cfg.DBName, cfg.User = "tcp", u.Host, name, u.User.Username()
	if u.Port() == "" {
		cfg.Addr = u.Hostname() + ":3306"
	}
	cfg.Passwd, _ = u.User.Password()
	cfg.ParseTime, cfg.InterpolateParams, cfg.Loc = true, true, time.UTC
	cfg.Timeout, cfg.ReadTimeout, cfg.WriteTimeout = 5*time.Second, 30*time.Second, 30*time.Second
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", ErrDSN, oneLine(err))
	}
	return bun.NewDB(bounded(sql.OpenDB(connector)), mysqldialect.New()), nil
}

func openPostgres(u *url.URL) (*bun.DB, error) {
	if u.Host == "" || strings.TrimPrefix(u.Path, "/") == "" || u.User.Username() == "" {
		return nil, fmt.Errorf("%w: postgres wants user, host and database name, as in postgres://user:password@127.0.0.1:5432/name", ErrDSN)
	}
	pool, err := sql.Open("pgx", u.String())
	if err != nil {
		return nil, fmt.Errorf("%w: the PostgreSQL URL cannot be read", ErrDSN)
	}
	return bun.NewDB(bounded(pool), pgdialect.New()), nil
}

func bounded(pool *sql.DB) *sql.DB {
	pool.SetMaxOpenConns(20)
	pool.SetMaxIdleConns(10)
	pool.SetConnMaxIdleTime(5 * time.Minute)
	return pool
}
