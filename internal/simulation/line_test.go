package simulation

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"
)

// line is what lies between one instance and the store: a driver that does to statements what a
// network and a server in trouble do to them.
type line struct {
	name     string
	store    *store
	patience time.Duration // how long to wait for the writer
	writer   chan struct{} // who has it writes: SQLite has one writer, and here the others wait in fake time
	note     func(format string, args ...any)

	mu     sync.Mutex
	rand   *rand.Rand
	rates  rates
	calm   bool
	cut    bool
	frozen time.Time // nothing goes through before
	slow   string    // what a statement holds that takes slowly
	asked  int       // statements so far
}

// rates are how many of a thousand statements meet each fault.
type rates struct {
	lost  int // the connection breaks before the statement arrives
	mute  int // it arrives, and the connection breaks before the answer
	busy  int // the database is locked
	slow  int // it takes up to so long …
	delay time.Duration
	// Of a thousand COMMITs:
	unknown int // end in an error although they have happened
	broken  int // end in the same error, and have not
}

const (
	busyTimeout = 5 * time.Second
	slowly      = time.Second
)

// probe is what the engine sends inside a transaction to find out whether SQLite has ended it.
const probe = "BEGIN"

var errLost = errors.New("invalid connection")

// busyError is what SQLite answers when it is locked.
type busyError struct{}

func (busyError) Error() string { return "database is locked (5) (SQLITE_BUSY)" }
func (busyError) Code() int     { return 5 }

// open is a pool of the instance.
func (l *line) open() *bun.DB {
	pool := sql.OpenDB(l)
	pool.SetMaxOpenConns(6)
	pool.SetMaxIdleConns(6)
	return bun.NewDB(pool, sqlitedialect.New())
}

// Connect takes a connection to the store.
func (l *line) Connect(ctx context.Context) (driver.Conn, error) {
	c := &conn{line: l}
	if err := c.pass(ctx, "CONNECT"); err != nil {
		return nil, err
	}
	r, err := l.store.take()
	c.raw = r
	return c, err
}

// Driver is only there for database/sql.
func (l *line) Driver() driver.Driver { return nil }

// quiet ends all faults, or those of one kind.
func (l *line) set(change func(*line)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l)
}

// fault is what befalls one statement.
type fault struct {
	before, after error
	wait          time.Duration
	commit        bool // whether a COMMIT happens
}

// Of so many statements one takes a millisecond: a loop that ends when the clock has moved must end.
const perMillisecond = 30

// draw decides about one statement.
func (l *line) draw(query string) fault {
	kind, _, _ := strings.Cut(query, " ")
	l.mu.Lock()
	defer l.mu.Unlock()
	f := fault{commit: true}
	if l.cut {
		return fault{before: errLost}
	}
	if l.asked++; l.asked%perMillisecond == 0 {
		f.wait = time.Millisecond
	}
	f.wait = max(time.Until(l.frozen), f.wait)
	if l.slow != "" && strings.Contains(query, l.slow) {
		f.wait = max(f.wait, slowly)
	}
	if l.calm {
		return f
	}
	n := l.rand.IntN(1000)
	hit := func(rate int) bool {
		n -= rate
		return n < 0
	}
	switch {
	case kind == "COMMIT" && hit(l.rates.unknown):
		f.after = errLost
	case kind == "COMMIT" && hit(l.rates.broken):
		f.after, f.commit = errLost, false
	case hit(l.rates.slow):
		f.wait += time.Duration(l.rand.Int64N(int64(l.rates.delay)))
	case kind == "COMMIT" || kind == "ROLLBACK":
	case hit(l.rates.lost):
		f.before = errLost
	case hit(l.rates.mute):
		f.after = errLost
	case hit(l.rates.busy):
		f.before = busyError{}
	}
	return f
}

// conn is a connection of an instance.
type conn struct {
	line   *line
	raw    raw
	inTx   bool
	broken bool
}

// pass lets a statement meet its fate before it arrives.
func (c *conn) pass(ctx context.Context, query string) error {
	_, err := c.meet(ctx, query)
	return err
}

func (c *conn) meet(ctx context.Context, query string) (fault, error) {
	if c.broken {
		return fault{}, driver.ErrBadConn
	}
	if query == probe { // SQLite answers it at once; a wait that no context ends would hold database/sql's mutex of the transaction
		return fault{commit: true}, nil
	}
	f := c.line.draw(query)
	if f != (fault{commit: true}) && f != (fault{commit: true, wait: time.Millisecond}) {
		c.line.note("%s: %v, %v, after %v: %.110s", c.line.name, f.before, f.after, f.wait, query)
	}
	if f.wait > 0 {
		timer := time.NewTimer(f.wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			c.lose()
			return f, ctx.Err()
		}
	}
	if errors.Is(f.before, errLost) {
		c.lose()
	}
	return f, f.before
}

// lose breaks the connection: the server rolls back what it was at.
func (c *conn) lose() {
	if !c.broken {
		c.rollback()
		c.broken = true
	}
}

func (c *conn) rollback() {
	if c.inTx {
		_, _ = c.line.store.exec(c.raw, "ROLLBACK", nil)
		c.inTx = false
		<-c.line.writer
	}
}

// lock waits to be the one writer.
func (c *conn) lock(ctx context.Context) error {
	timer := time.NewTimer(c.line.patience)
	defer timer.Stop()
	select {
	case c.line.writer <- struct{}{}:
		return nil
	case <-timer.C:
		return busyError{}
	case <-ctx.Done():
		return ctx.Err()
	}
}

// BeginTx begins like a file that is opened with _txlock=immediate.
func (c *conn) BeginTx(ctx context.Context, _ driver.TxOptions) (driver.Tx, error) {
	f, err := c.meet(ctx, "BEGIN IMMEDIATE")
	if err != nil {
		return nil, err
	}
	if err := c.lock(ctx); err != nil {
		return nil, err
	}
	if _, err := c.line.store.exec(c.raw, "BEGIN IMMEDIATE", nil); err != nil {
		<-c.line.writer
		return nil, err
	}
	c.inTx = true
	if f.after != nil {
		c.lose()
		return nil, f.after
	}
	return tx{c}, nil
}

// ExecContext runs a statement.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	f, err := c.meet(ctx, query)
	if err != nil {
		return nil, err
	}
	if !c.inTx {
		if err := c.lock(ctx); err != nil {
			return nil, err
		}
		defer func() { <-c.line.writer }()
	}
	res, err := c.line.store.exec(c.raw, query, args)
	if f.after != nil {
		c.lose()
		return nil, f.after
	}
	return res, err
}

// QueryContext runs a query.
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	f, err := c.meet(ctx, query)
	if err != nil {
		return nil, err
	}
	if f.after != nil {
		c.lose()
		return nil, f.after
	}
	return c.line.store.query(c.raw, query, args)
}

// tx is the transaction of a connection.
type tx struct{ c *conn }

// Commit may happen or not, whatever it answers.
func (t tx) Commit() error {
	f, err := t.c.meet(context.Background(), "COMMIT")
	if err != nil {
		return err
	}
	if !t.c.inTx {
		return fmt.Errorf("COMMIT without a transaction")
	}
	if !f.commit {
		t.c.lose()
		return f.after
	}
	_, err = t.c.line.store.exec(t.c.raw, "COMMIT", nil)
	if err == nil {
		t.c.inTx = false
		<-t.c.line.writer
	}
	if f.after != nil {
		t.c.lose()
		return f.after
	}
	return err
}

// Rollback always succeeds: what a connection did not bring to an end, the server ends.
func (t tx) Rollback() error {
	t.c.rollback()
	return nil
}

// IsValid keeps a broken connection out of the pool.
func (c *conn) IsValid() bool { return !c.broken }

// Close gives the real connection back.
func (c *conn) Close() error {
	if c.raw.Conn != nil {
		c.rollback()
		c.line.store.giveBack(c.raw)
		c.raw = raw{}
	}
	return nil
}

// Prepare and Begin are for drivers of long ago.
func (c *conn) Prepare(string) (driver.Stmt, error) { return nil, errors.New("not prepared for this") }

// Begin is BeginTx without a context.
func (c *conn) Begin() (driver.Tx, error) { return c.BeginTx(context.Background(), driver.TxOptions{}) }
