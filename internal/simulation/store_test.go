package simulation

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	"modernc.org/sqlite"

	"github.com/bluecone-go/bluecone/migrations"
)

// clock is a function of SQLite that answers the time of the goroutine that asks: in a bubble, the
// bubble's. A store's clock may be ahead of it. What SQLite calls 'now' is the time of the machine.
const clock = "simulated_now"

// stores are all that there are, by their numbers.
var stores sync.Map

// withClock registers the function, once for all connections. It is asked for the clock of a store.
var withClock = sync.OnceFunc(func() {
	sqlite.MustRegisterScalarFunction(clock, 1, func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
		s, ok := stores.Load(args[0])
		if !ok {
			return nil, fmt.Errorf("there is no store %v", args[0])
		}
		return time.Now().Add(time.Duration(s.(*store).ahead.Load())).UTC().Format("2006-01-02 15:04:05.000"), nil
	})
})

// timed makes a statement read the simulated clock.
func (s *store) timed(query string) string {
	return strings.ReplaceAll(query, "'now'", fmt.Sprintf("%s(%d)", clock, s.number))
}

// raw is a connection of the real driver that keeps the statements it sees again prepared: polls are
// always the same, and most of what they cost is being parsed.
type raw struct {
	driver.Conn
	seen     map[string]bool
	prepared map[string]driver.Stmt
}

const mostPrepared = 200

// prepare returns the statement, and what to do with it afterwards.
func (r raw) prepare(query string) (stmt driver.Stmt, done func(), err error) {
	if stmt, ok := r.prepared[query]; ok {
		return stmt, func() {}, nil
	}
	if stmt, err = r.Prepare(query); err != nil {
		return nil, nil, err
	}
	if !r.seen[query] || len(r.prepared) == mostPrepared {
		if len(r.seen) > 20*mostPrepared {
			clear(r.seen)
		}
		r.seen[query] = true
		return stmt, func() { _ = stmt.Close() }, nil
	}
	r.prepared[query] = stmt
	return stmt, func() {}, nil
}

// store is a database in memory that outlives the lives on it. Its connections are kept, because
// opening one is dear.
type store struct {
	number int64
	driver driver.Driver
	dsn    string
	tables []string
	ahead  atomic.Int64 // its clock, in nanoseconds

	mu   sync.Mutex // SQLite in memory answers "locked" where a file would let one wait
	idle []raw
}

// lastStore is the number of the newest.
var lastStore atomic.Int64

// newStore makes a store with bluecone's tables and those of the tests.
func newStore(t *testing.T) *store {
	t.Helper()
	withClock()
	s := &store{
		number: lastStore.Add(1), dsn: "file:" + filepath.Join(t.TempDir(), "store.db") +
			"?_pragma=busy_timeout(0)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)",
	}
	stores.Store(s.number, s)
	t.Cleanup(func() { stores.Delete(s.number) })
	pool, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "template.db"))
	require.NoError(t, err)
	template := bun.NewDB(pool, sqlitedialect.New())
	defer template.Close()
	s.driver = pool.Driver() // the one with the clock
	require.NoError(t, migrations.Up(t.Context(), template))
	var ddl []string
	require.NoError(t, template.NewRaw("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' "+
		"ORDER BY rowid").Scan(t.Context(), &ddl))
	require.NoError(t, template.NewRaw("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'").Scan(t.Context(),
		&s.tables))
	for _, query := range append(ddl, ownTables...) {
		s.must(t, query)
	}
	s.tables = append(s.tables, "business", "effect", "seat", "sqlite_sequence")
	t.Cleanup(func() {
		for _, c := range s.idle {
			for _, stmt := range c.prepared {
				_ = stmt.Close()
			}
			_ = c.Close()
		}
	})
	return s
}

func (s *store) must(t *testing.T, query string) {
	t.Helper()
	c, err := s.take()
	require.NoError(t, err)
	defer s.giveBack(c)
	_, err = s.exec(c, query, nil)
	require.NoError(t, err, query)
}

// clear empties all tables, and sets the clock.
func (s *store) clear(t *testing.T) {
	t.Helper()
	s.ahead.Store(0)
	for _, table := range s.tables {
		s.must(t, "DELETE FROM "+table)
	}
}

func (s *store) take() (raw, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.idle); n > 0 {
		c := s.idle[n-1]
		s.idle = s.idle[:n-1]
		return c, nil
	}
	c, err := s.driver.Open(s.dsn)
	if err != nil {
		return raw{}, err
	}
	return raw{c, make(map[string]bool), make(map[string]driver.Stmt)}, nil
}

func (s *store) giveBack(c raw) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = append(s.idle, c)
}

func (s *store) exec(c raw, query string, args []driver.NamedValue) (driver.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stmt, done, err := c.prepare(s.timed(query))
	if err != nil {
		return nil, err
	}
	defer done()
	return stmt.(driver.StmtExecContext).ExecContext(context.Background(), args)
}

// query reads all rows at once: a reader that takes its time would hold up COMMIT.
func (s *store) query(c raw, query string, args []driver.NamedValue) (driver.Rows, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stmt, done, err := c.prepare(s.timed(query))
	if err != nil {
		return nil, err
	}
	defer done()
	from, err := stmt.(driver.StmtQueryContext).QueryContext(context.Background(), args)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	out := &rows{columns: from.Columns()}
	for {
		values := make([]driver.Value, len(out.columns))
		switch err := from.Next(values); {
		case err == nil:
			out.values = append(out.values, values)
		case errors.Is(err, io.EOF):
			return out, nil
		default:
			return nil, err
		}
	}
}

// rows is an answer in memory.
type rows struct {
	columns []string
	values  [][]driver.Value
}

func (r *rows) Columns() []string { return r.columns }
func (r *rows) Close() error      { return nil }

func (r *rows) Next(dest []driver.Value) error {
	if len(r.values) == 0 {
		return io.EOF
	}
	copy(dest, r.values[0])
	r.values = r.values[1:]
	return nil
}
