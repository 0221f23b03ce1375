package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/mysqldialect"
	"github.com/uptrace/bun/dialect/pgdialect"

	"github.com/bluecone-go/bluecone/internal/chaos"
	"github.com/bluecone-go/bluecone/internal/dbserver"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

func shopUser() *url.Userinfo { return url.UserPassword(shopName, "secret") }

const (
	shopName = "shop"
	nodes    = 3
	serverMB = 1000
	// mostConns leaves each instance its pool, and little beside.
	mostConns = 80
	// lockTimeout keeps the reaper from releasing what was frozen while the clock was two hours behind.
	lockTimeout = "BLUECONE_ASSET_LOCK_TIMEOUT_MINUTES=1440"
)

// world is a deployment that faults happen to: a database server of its own, three instances, each
// with a proxy on its way there, and a direct way to the database for the test.
type world struct {
	t       *testing.T
	name    string // of the database, as in package testdb
	dialect string
	server  *dbserver.Server
	db      *bun.DB // direct, and as an administrator
	direct  *url.URL
	proxies []*chaos.Proxy
	ways    []string     // the DSN of each instance
	ahead   atomic.Int64 // nanoseconds that the database's clock is ahead

	mu    sync.Mutex
	nodes []*server
	names int
}

func newWorld(t *testing.T, name string) *world {
	t.Helper()
	dialect := testdb.Dialect(name)
	opts := []dbserver.Option{dbserver.Connections(mostConns)}
	if dbserver.CanMount() {
		opts = append(opts, dbserver.OwnDisk(serverMB<<20))
	}
	if canFakeTime(name) {
		opts = append(opts, dbserver.OwnClock())
	}
	srv, err := dbserver.Start(name, dbserver.Durable, opts...)
	if err != nil {
		testdb.Unavailable(t, name, err)
	}
	t.Cleanup(srv.Stop)
	w := &world{t: t, name: name, dialect: dialect, server: srv}
	w.makeDatabase()
	for i := range nodes {
		p, err := chaos.Listen(dialect, w.direct.Host)
		require.NoError(t, err)
		t.Cleanup(func() { _ = p.Close() })
		way := *w.direct
		way.User, way.Host = shopUser(), p.Addr()
		w.proxies, w.ways = append(w.proxies, p), append(w.ways, way.String())
		w.nodes = append(w.nodes, nil)
		w.startNode(i)
	}
	return w
}

// canFakeTime leaves MySQL 9 out: under libfaketime each of its statements takes ten times as long.
func canFakeTime(name string) bool { return dbserver.CanFakeTime() && name != "mysql9" }

// makeDatabase makes a database for a user with no rights beyond it, and opens the direct way.
func (w *world) makeDatabase() {
	w.t.Helper()
	statements := []string{"CREATE ROLE shop LOGIN", "CREATE DATABASE shop OWNER shop"}
	if w.dialect == "mysql" {
		statements = []string{
			"CREATE DATABASE shop CHARACTER SET utf8mb4", "CREATE USER shop@'%' IDENTIFIED BY 'secret'",
			"GRANT ALL ON shop.* TO shop@'%'",
		}
	}
	admin := w.connect(w.server.URL)
	defer admin.Close()
	for _, s := range statements {
		_, err := admin.ExecContext(w.t.Context(), s)
		require.NoError(w.t, err)
	}
	u := *w.server.URL
	u.Path = "/" + shopName
	w.direct = &u
	w.db = w.connect(w.direct)
	w.db.SetMaxOpenConns(10)
	w.db.SetMaxIdleConns(4) // an administrator who is connected stays so when nobody else gets in
	w.t.Cleanup(func() { _ = w.db.Close() })
}

func (w *world) connect(u *url.URL) *bun.DB {
	w.t.Helper()
	if w.dialect == "mysql" {
		cfg := dbserver.MySQLConfig(u)
		cfg.Timeout, cfg.ReadTimeout = 5*time.Second, 60*time.Second
		db, err := sql.Open("mysql", cfg.FormatDSN())
		require.NoError(w.t, err)
		return bun.NewDB(db, mysqldialect.New())
	}
	db, err := sql.Open("pgx", u.String())
	require.NoError(w.t, err)
	return bun.NewDB(db, pgdialect.New())
}

func (w *world) startNode(i int) {
	w.t.Helper()
	w.names++
	s := serveOn(w.t, w.ways[i], []string{lockTimeout}, "--node", fmt.Sprintf("node%d-%d", i, w.names))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes[i] = s
}

// node is instance i, or any for a negative i.
func (w *world) node(i int) *server {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i < 0 {
		i = rand.IntN(len(w.nodes))
	}
	return w.nodes[i]
}

// number asks the database a question with one number for an answer.
func (w *world) number(query string, args ...any) (n int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err = w.db.QueryRowContext(ctx, query, args...).Scan(&n)
	return n, err
}

// restart starts the server if it has ended by itself.
func (w *world) restart() error {
	if w.server.Running() {
		return nil
	}
	return w.server.Restart()
}

// answers waits until the database answers, and starts it if it has ended.
func (w *world) answers() error {
	for deadline := time.Now().Add(testdb.Patience()); ; pause(beat) {
		if err := w.restart(); err != nil {
			return err
		}
		_, err := w.number("SELECT 1")
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// strings reads a column.
func (w *world) strings(query string, args ...any) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var out []string
	err := w.db.NewRaw(query, args...).Scan(ctx, &out)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return out, err
}

// endAll ends every instance in order, and answers their exit statuses.
func (w *world) endAll() (codes []int) {
	for i := range w.nodes {
		codes = append(codes, w.node(i).end(syscall.SIGTERM))
	}
	return codes
}
