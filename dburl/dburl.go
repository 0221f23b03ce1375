// Package dburl opens a database from a URL and says what an error of its driver means. It brings the drivers of MySQL
// and MariaDB, PostgreSQL and SQLite with it, so it is a module of its own: who has a pool of connections needs none of it.
package dburl

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/mysqldialect"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	_ "modernc.org/sqlite" // the driver "sqlite"
)

var (
	// ErrDSN means that the DSN itself is wrong, not the server behind it.
	ErrDSN = errors.New("wrong DSN")
	// ErrUnreachable means that the database does not answer.
	ErrUnreachable = errors.New("cannot reach")
)

// Forms says how a DSN is written.
const Forms = "use sqlite:///abs/path/file.db, mysql://user:password@host:port/name or postgres://user:password@host:port/name"

// Open opens the database of a URL and makes sure that it answers. No error shows the password.
// A SQLite file that is not there is made.
func Open(ctx context.Context, dsn string) (*bun.DB, error) { return open(ctx, dsn, "rwc") }

// OpenExisting is [Open] for those who only look after a database: a SQLite file must be there.
func OpenExisting(ctx context.Context, dsn string) (*bun.DB, error) { return open(ctx, dsn, "rw") }

// open takes the mode in which SQLite opens files.
func open(ctx context.Context, dsn, mode string) (*bun.DB, error) {
	db, u, err := parse(dsn, mode)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := ping(ctx, db); err != nil {
		if _, missing := os.Stat(u.Path); u.Scheme == "sqlite" && missing != nil {
			err = missing
		}
		_ = db.Close() // the first error is the one to tell
		return nil, fmt.Errorf("%w %s: %s", ErrUnreachable, address(u), oneLine(err))
	}
	return db, nil
}

// parse makes the pool of a URL, and connects to nothing yet.
func parse(dsn, mode string) (db *bun.DB, u *url.URL, err error) {
	u, err = url.Parse(dsn)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: it is not a URL; %s", ErrDSN, Forms)
	}
	switch {
	case u.Scheme == "sqlite":
		db, err = openSQLite(u, mode)
	case (u.Scheme == "mysql" || u.Scheme == "postgres" || u.Scheme == "postgresql") && atBehindHost(dsn):
		err = fmt.Errorf("%w: there is an @ behind the host; write / ? # and @ in a password as %%2F %%3F %%23 and %%40, and @ in an option "+
			"as %%40", ErrDSN)
	case u.Scheme == "mysql":
		db, err = openMySQL(u)
	case u.Scheme == "postgres", u.Scheme == "postgresql":
		db, err = openPostgres(u)
	case u.Scheme == "":
		err = fmt.Errorf("%w: it names no database; %s", ErrDSN, Forms)
	default:
		err = fmt.Errorf("%w: %q is not supported; %s", ErrDSN, u.Scheme, Forms)
	}
	return db, u, err
}

// atBehindHost says that a part of a URL after its host has an @. It is the end of a password that was not escaped, of
// which a part is taken for a host, a path or an option, and would be shown as such.
func atBehindHost(dsn string) bool {
	_, rest, _ := strings.Cut(dsn, "://")
	end := strings.IndexAny(rest, "/?#")
	return end >= 0 && strings.Contains(rest[end:], "@")
}

// ping waits while another instance is making the same new SQLite file.
func ping(ctx context.Context, db *bun.DB) error {
	for {
		err := db.PingContext(ctx)
		if err == nil || !IsConflict(err) {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// address is what an error shows of a DSN: no password, and no parameters, which may hold one.
func address(u *url.URL) string {
	shown := *u
	shown.RawQuery, shown.Fragment, shown.RawFragment, shown.ForceQuery = "", "", "", false
	return shown.Redacted()
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

func openSQLite(u *url.URL, mode string) (*bun.DB, error) {
	if u.Host != "" || !filepath.IsAbs(u.Path) || strings.HasSuffix(u.Path, "/") {
		return nil, fmt.Errorf("%w: sqlite wants an absolute path, as in sqlite:///tmp/demo.db", ErrDSN)
	}
	if u.RawQuery != "" || u.ForceQuery {
		return nil, fmt.Errorf("%w: sqlite takes no options after ?", ErrDSN)
	}
	pool, err := sql.Open("sqlite", "file:"+(&url.URL{Path: u.Path}).EscapedPath()+
		"?mode="+mode+"&_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)"+
		"&_pragma=foreign_keys(1)")
	if err != nil {
		return nil, fmt.Errorf("open SQLite: %w", err)
	}
	pool.SetMaxOpenConns(maxConnsSQLite)
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
	cfg.Logger = &mysql.NopLogger{} // a lost connection is an error of whoever uses it, or none
	cfg.Timeout, cfg.ReadTimeout, cfg.WriteTimeout = 5*time.Second, 30*time.Second, 30*time.Second
	if err := mysqlOptions(cfg, u); err != nil {
		return nil, err
	}
	cfg.Params = map[string]string{"wait_timeout": strconv.Itoa(int(silence / time.Second))}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", ErrDSN, oneLine(err))
	}
	return bun.NewDB(bounded(sql.OpenDB(connector)), mysqldialect.New()), nil
}

// mysqlOptions takes what the address asks for beside the database. What it does not know, it refuses: to ignore
// tls=true would send a password in the clear.
func mysqlOptions(cfg *mysql.Config, u *url.URL) error {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return fmt.Errorf("%w: the options after ? cannot be read", ErrDSN)
	}
	for name, values := range query {
		value := values[len(values)-1]
		switch name {
		case "tls":
			if !slices.Contains([]string{"true", "false", "skip-verify", "preferred"}, value) {
				return fmt.Errorf("%w: the option tls must be true, false, skip-verify or preferred", ErrDSN)
			}
			cfg.TLSConfig = value
		case "tls-ca":
			if cfg.TLS, err = trusting(value, u.Hostname()); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%w: mysql does not know the option %.60q; it takes tls and tls-ca", ErrDSN, name)
		}
	}
	if cfg.TLS != nil && query.Has("tls") && cfg.TLSConfig != "true" {
		return fmt.Errorf("%w: the option tls-ca goes with tls=true only", ErrDSN)
	}
	return nil
}

// trusting is TLS to a server whose certificate an authority in a file has signed.
func trusting(file, host string) (*tls.Config, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%w: tls-ca: %s", ErrDSN, oneLine(err))
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%w: tls-ca: the file holds no certificate in PEM", ErrDSN)
	}
	return &tls.Config{RootCAs: roots, ServerName: host, MinVersion: tls.VersionTLS12}, nil
}

func openPostgres(u *url.URL) (*bun.DB, error) {
	if u.Host == "" || strings.TrimPrefix(u.Path, "/") == "" || u.User.Username() == "" {
		return nil, fmt.Errorf("%w: postgres wants user, host and database name, as in postgres://user:password@127.0.0.1:5432/name", ErrDSN)
	}
	// bun writes the arguments into its statements: to prepare each of them, as pgx does by
	// itself, costs two round trips more and a plan that is never used again.
	query := u.Query()
	for setting, value := range map[string]string{
		// seconds; database/sql waits for one new connection at a time, so a silent one would be the last
		"connect_timeout":                     "5",
		"default_query_exec_mode":             "simple_protocol",
		"idle_in_transaction_session_timeout": strconv.Itoa(int(silence / time.Millisecond)),
	} {
		if !query.Has(setting) {
			query.Set(setting, value)
		}
	}
	withSettings := *u
	withSettings.RawQuery = query.Encode()
	pool, err := sql.Open("pgx", withSettings.String())
	if err != nil {
		return nil, fmt.Errorf("%w: the PostgreSQL URL cannot be read", ErrDSN)
	}
	return bun.NewDB(bounded(pool), pgdialect.New()), nil
}

func bounded(pool *sql.DB) *sql.DB {
	pool.SetMaxOpenConns(maxConns)
	pool.SetMaxIdleConns(10)
	pool.SetConnMaxIdleTime(silence / 2)
	return pool
}
