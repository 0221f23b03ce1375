package main

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/mysqldialect"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	"github.com/uptrace/bun/schema"
	_ "modernc.org/sqlite" // the driver "sqlite"
)

// machine is a database server with durable settings.
type machine struct {
	dialect string
	server  *server // nil for SQLite
	dir     string
	number  atomic.Int64
}

func startMachine(dialect string) (*machine, error) {
	m := &machine{dialect: dialect}
	var err error
	if m.dir, err = os.MkdirTemp("", "bluecone-bench-"); err != nil {
		return nil, err
	}
	if dialect != "sqlite" {
		m.server, err = startServer(dialect)
	}
	return m, err
}

func (m *machine) stop() {
	if m.server != nil {
		m.server.stop()
	}
	_ = os.RemoveAll(m.dir)
}

// database is a fresh database of a machine.
type database struct {
	*sql.DB
	dialect string
	name    string
	url     *url.URL
	plain   *sql.DB // for bun, which writes arguments into its statements: nothing to prepare
	drop    func()
	held    *sql.Tx // a snapshot, to be let go of at the end
}

const poolSize = 32

// fresh makes an empty database.
func (m *machine) fresh(ctx context.Context) (*database, error) {
	name := fmt.Sprintf("bench_%d", m.number.Add(1))
	if m.dialect == "sqlite" {
		path := filepath.Join(m.dir, name+".db")
		pool, err := sql.Open("sqlite",
			"file:"+path+"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
		if err != nil {
			return nil, err
		}
		pool.SetMaxOpenConns(4)
		return &database{DB: pool, plain: pool, dialect: m.dialect, name: name, drop: func() { _ = os.Remove(path) }}, nil
	}
	admin, err := open(m.dialect, m.server.url)
	if err != nil {
		return nil, err
	}
	if _, err := admin.ExecContext(ctx, "CREATE DATABASE "+name); err != nil {
		return nil, err
	}
	u := *m.server.url
	u.Path = "/" + name
	db, err := connect(m.dialect, &u)
	if err != nil {
		return nil, err
	}
	db.name, db.drop = name, func() {
		_, _ = admin.ExecContext(context.WithoutCancel(ctx), "DROP DATABASE "+name)
		_ = admin.Close()
	}
	return db, nil
}

// connect opens the pools of a database on a server.
func connect(dialect string, u *url.URL) (*database, error) {
	pool, err := open(dialect, u)
	if err != nil {
		return nil, err
	}
	plain := pool
	if dialect == "postgres" {
		simple := *u
		query := simple.Query()
		query.Set("default_query_exec_mode", "simple_protocol")
		simple.RawQuery = query.Encode()
		if plain, err = open(dialect, &simple); err != nil {
			return nil, err
		}
	}
	for _, p := range []*sql.DB{pool, plain} {
		p.SetMaxOpenConns(poolSize)
		p.SetMaxIdleConns(poolSize)
	}
	return &database{DB: pool, plain: plain, dialect: dialect, url: u}, nil
}

func open(dialect string, u *url.URL) (*sql.DB, error) {
	if dialect == "mysql" {
		return sql.Open("mysql", mysqlConfig(u).FormatDSN())
	}
	return sql.Open("pgx", u.String())
}

func (d *database) close() {
	if d.held != nil {
		_ = d.held.Rollback()
	}
	_ = d.Close()
	_ = d.plain.Close()
	d.drop()
}

// bun is the pool as bluecone takes it.
func (d *database) bun() *bun.DB {
	dialects := map[string]func() schema.Dialect{
		"mysql":    func() schema.Dialect { return mysqldialect.New() },
		"postgres": func() schema.Dialect { return pgdialect.New() },
		"sqlite":   func() schema.Dialect { return sqlitedialect.New() },
	}
	return bun.NewDB(d.plain, dialects[d.dialect]())
}

func (d *database) exec(ctx context.Context, queries ...string) error {
	for _, q := range queries {
		if _, err := d.ExecContext(ctx, q); err != nil {
			return fmt.Errorf("%w in %s", err, q[:min(len(q), 120)])
		}
	}
	return nil
}

func (d *database) number(ctx context.Context, query string) (n int, err error) {
	err = d.QueryRowContext(ctx, query).Scan(&n)
	return n, err
}

// pick chooses by dialect.
func (d *database) pick(mysql, postgres, sqlite string) string {
	return map[string]string{"mysql": mysql, "postgres": postgres, "sqlite": sqlite}[d.dialect]
}
