// Package dbserver starts private database servers from the machine's own binaries, each in a
// temporary directory on a free port, which end with this process even if it is killed. As root
// MariaDB runs as root, and PostgreSQL, which refuses that, as the user postgres or nobody.
//
// A server can be killed, started again on the same port and files, frozen, given another clock
// ([OwnClock]) and be left without space ([OwnDisk]).
package dbserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/bluecone-go/bluecone/internal/process"
)

// Settings are how large a server is, and whether it is durable.
type Settings int

const (
	// Durable is for tests: every commit is on disk before it is answered, as in production. It is small.
	Durable Settings = iota
	// Large is for benchmarks: the same with 2 GiB of cache.
	Large
	// Careless is for the tests of what warns of such a server: it loses what it has committed when it is killed.
	Careless
)

// Start starts a database server: "mysql" (MariaDB, or MySQL where only that is installed), "mysql9" (MySQL 9 or later) or "postgres".
func Start(dialect string, settings Settings, opts ...Option) (*Server, error) {
	start := map[string]func(Settings, options) (*Server, error){
		"mysql": startMySQL, "mysql9": startMySQL9, "postgres": startPostgres,
	}[dialect]
	if start == nil {
		return nil, fmt.Errorf("dbserver: there is no server for %q", dialect)
	}
	o := options{connections: 500}
	for _, opt := range opts {
		opt(&o)
	}
	return start(settings, o)
}

// MySQLConfig translates the URL of a MySQL database for its driver.
func MySQLConfig(u *url.URL) *mysql.Config {
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr, cfg.DBName = "tcp", u.Host, strings.Trim(u.Path, "/")
	cfg.User = u.User.Username()
	cfg.Passwd, _ = u.User.Password()
	cfg.ParseTime, cfg.InterpolateParams, cfg.Loc = true, true, time.UTC
	return cfg
}

// onFreePort calls start with a free port, and again with another if somebody else was faster to take it.
func onFreePort(start func(port string) (*Server, error)) (*Server, error) {
	var failed error
	for range 3 {
		port, err := process.FreePort()
		if err != nil {
			return nil, err
		}
		s, err := start(port)
		if err == nil {
			return s, nil
		}
		failed = err
	}
	return nil, failed
}

// answers makes sure that the server behind the DSN is up and is the one in the directory data,
// not a stranger who took the port first.
func answers(driver, dsn, askDirectory, data string) error {
	pool, err := sql.Open(driver, dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	var dir string
	if err := pool.QueryRowContext(ctx, askDirectory).Scan(&dir); err != nil {
		return err
	}
	if !sameFile(dir, data) {
		return errors.New("another server has taken the port")
	}
	return nil
}

func sameFile(a, b string) bool {
	one, err1 := os.Stat(a)
	two, err2 := os.Stat(b)
	return err1 == nil && err2 == nil && os.SameFile(one, two)
}

// find looks for a program in PATH and where Debian keeps servers. Of several PostgreSQL
// versions it takes the newest.
func find(names ...string) (string, error) {
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return filepath.EvalSymlinks(path)
		}
		versions, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name) // only a bad pattern fails
		slices.SortFunc(versions, func(a, b string) int { return postgresVersion(b) - postgresVersion(a) })
		for _, path := range append([]string{"/usr/sbin/" + name}, versions...) {
			if st, err := os.Stat(path); err == nil && !st.IsDir() {
				return filepath.EvalSymlinks(path)
			}
		}
	}
	return "", fmt.Errorf("%s is not installed", strings.Join(names, " or "))
}

func postgresVersion(path string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path)))) // 0 sorts last
	return n
}
