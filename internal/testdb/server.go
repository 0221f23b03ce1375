package testdb

import (
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/bluecone-go/bluecone/internal/dbserver"
	"github.com/bluecone-go/bluecone/internal/needs"
)

// instance is a server that this test process uses.
type instance struct {
	admin   *url.URL         // a database that exists, for CREATE and DROP DATABASE
	private *dbserver.Server // nil for a server that is not ours
	err     error
	once    sync.Once

	template template
}

var servers = map[string]*instance{"mysql": {}, "mysql9": {}, "postgres": {}} //nolint:gochecknoglobals // one of each per process

// url names another database of the same server.
func (s *instance) url(database string) string {
	u := *s.admin
	u.Path = "/" + database
	return u.String()
}

// Main runs the tests of a package, stops the servers they started, and fails the package if
// a goroutine is still there. It ends the process: let TestMain do nothing else after it.
func Main(m *testing.M) {
	needs.Main(m, func() {
		for _, s := range servers {
			s.template.remove(s)
			if s.private != nil {
				s.private.Stop()
			}
		}
	})
}

// server starts the server of a dialect when the first test asks for it.
func server(t testing.TB, dialect string) *instance {
	t.Helper()
	skipIfLeftOut(t, dialect)
	if testing.Short() {
		t.Skip("testdb: -short runs on SQLite only")
	}
	s, ok := servers[dialect]
	if !ok {
		t.Fatalf("testdb: dialect %q is unknown: it must be one of %v", dialect, Dialects())
	}
	s.once.Do(func() {
		if dsn := os.Getenv("BLUECONE_TEST_" + strings.ToUpper(dialect) + "_DSN"); dsn != "" {
			s.admin, s.err = adminURL(dialect, dsn)
		} else if s.private, s.err = dbserver.Start(dialect, dbserver.Durable, dbserver.InMemory()); s.err == nil {
			s.admin = s.private.URL
		}
		if s.err == nil {
			s.known(dialect)
		}
	})
	if s.err != nil {
		unavailable(t, dialect, s.err)
	}
	return s
}

// serverOf is the name of the server that a DSN leads to, by its address: mysql and mysql9 have the same scheme. A DSN that
// leads there by a proxy belongs to the first server of its scheme.
func serverOf(dsn string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		return ""
	}
	hosts.Lock()
	defer hosts.Unlock()
	if name, ok := hosts.names[u.Scheme+u.Host]; ok {
		return name
	}
	return u.Scheme
}

// hosts has the name of each server in use.
var hosts = struct { //nolint:gochecknoglobals // as above
	sync.Mutex
	names map[string]string
}{names: map[string]string{}}

func (s *instance) known(name string) {
	hosts.Lock()
	defer hosts.Unlock()
	hosts.names[s.admin.Scheme+s.admin.Host] = name
}

// adminURL checks the DSN of a server that somebody lends us. Its errors do not show the password.
func adminURL(dialect, dsn string) (*url.URL, error) {
	u, err := url.Parse(dsn)
	if err != nil || u.Scheme != Dialect(dialect) || u.Host == "" {
		return nil, fmt.Errorf("BLUECONE_TEST_%s_DSN must read %s://user:password@host:port/", strings.ToUpper(dialect), Dialect(dialect))
	}
	if dialect == "postgres" && strings.Trim(u.Path, "/") == "" {
		u.Path = "/postgres"
	}
	return u, nil
}

// Unavailable skips the test, or fails it if BLUECONE_TEST_REQUIRE names what is missing: one of [Dialects], pgbouncer, libfaketime, or
// history (git's).
func Unavailable(t testing.TB, what string, err error) {
	t.Helper()
	unavailable(t, what, err)
}

func unavailable(t testing.TB, what string, err error) {
	t.Helper()
	install := map[string]string{
		"mysql": "apt-get install mariadb-server", "mysql9": "scripts/newer-databases mysql",
		"postgres": "apt-get install postgresql", "pgbouncer": "apt-get install pgbouncer", "history": "git fetch --unshallow",
		"libfaketime": "apt-get install libfaketime",
	}[what]
	lend := ""
	if _, ok := servers[what]; ok {
		lend = "; or set BLUECONE_TEST_" + strings.ToUpper(what) + "_DSN"
	}
	needs.Unavailable(t, what, "on Debian: "+install+lend, err)
}
