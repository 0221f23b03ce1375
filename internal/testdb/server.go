package testdb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// instance is a server that this test process uses.
type instance struct {
	admin *url.URL // a database that exists, for CREATE and DROP DATABASE
	stop  func()   // nil for a server that is not ours
	err   error
	once  sync.Once
}

var servers = map[string]*instance{"mysql": {}, "postgres": {}} //nolint:gochecknoglobals // one of each per process

// url names another database of the same server.
func (s *instance) url(database string) string {
	u := *s.admin
	u.Path = "/" + database
	return u.String()
}

// Main runs the tests of a package, stops the servers they started, and fails the package if
// a goroutine is still there. It ends the process: let TestMain do nothing else after it.
func Main(m *testing.M) {
	code := m.Run()
	for _, s := range servers {
		if s.stop != nil {
			s.stop()
		}
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "testdb: goroutines are left behind:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// server starts the server of a dialect when the first test asks for it.
func server(t testing.TB, dialect string) *instance {
	t.Helper()
	s, ok := servers[dialect]
	if !ok {
		t.Fatalf("testdb: dialect %q is unknown: it must be one of %v", dialect, Dialects())
	}
	s.once.Do(func() {
		if dsn := os.Getenv("BLUECONE_TEST_" + strings.ToUpper(dialect) + "_DSN"); dsn != "" {
			s.admin, s.err = adminURL(dialect, dsn)
			return
		}
		s.admin, s.stop, s.err = map[string]func() (*url.URL, func(), error){"mysql": startMySQL, "postgres": startPostgres}[dialect]()
	})
	if s.err != nil {
		unavailable(t, dialect, s.err)
	}
	return s
}

// adminURL checks the DSN of a server that somebody lends us. Its errors do not show the password.
func adminURL(dialect, dsn string) (*url.URL, error) {
	u, err := url.Parse(dsn)
	if err != nil || u.Scheme != dialect || u.Host == "" {
		return nil, fmt.Errorf("BLUECONE_TEST_%s_DSN must read %s://user:password@host:port/", strings.ToUpper(dialect), dialect)
	}
	if dialect == "postgres" && strings.Trim(u.Path, "/") == "" {
		u.Path = "/postgres"
	}
	return u, nil
}

// unavailable skips the test, or fails it if the dialect is required.
func unavailable(t testing.TB, dialect string, err error) {
	t.Helper()
	debian := map[string]string{"mysql": "mariadb-server", "postgres": "postgresql"}[dialect]
	msg := fmt.Sprintf("testdb: no %s here: %v (on Debian: apt-get install %s; or set BLUECONE_TEST_%s_DSN)", dialect, err, debian, strings.ToUpper(dialect))
	if required(os.Getenv("BLUECONE_TEST_REQUIRE"), dialect) {
		t.Fatal(msg)
	}
	t.Skip(msg)
}

// required reports whether a comma-separated list names the dialect.
func required(list, dialect string) bool {
	return slices.ContainsFunc(strings.Split(list, ","), func(s string) bool { return strings.TrimSpace(s) == dialect })
}

// onFreePort calls start with a free port, and again with another if somebody else was faster to take it.
func onFreePort(start func(port string) (*url.URL, func(), error)) (*url.URL, func(), error) {
	var failed error
	for range 3 {
		port, err := freePort()
		if err != nil {
			return nil, nil, err
		}
		u, stop, err := start(port)
		if err == nil {
			return u, stop, nil
		}
		failed = err
	}
	return nil, nil, failed
}

func freePort() (string, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
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
