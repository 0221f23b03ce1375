// Package faultdb puts a hook around every statement that a test's program sends to its database.
//
// # Contract
//
// The hook sees each BEGIN, statement, COMMIT and ROLLBACK, in the goroutine that sends it, before it is
// sent and after it was answered. An error of the hook is answered in place of the database's: before,
// nothing is sent; after, it was done and nobody hears of it. [ErrCut] also closes the connection, as a
// broken network would.
package faultdb

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
)

// Step is one thing that a program asks of its database.
type Step struct {
	Op    Op
	Query string // of Exec and Query
}

// Op is the kind of a step.
type Op string

// The kinds of steps.
const (
	Begin    Op = "BEGIN"
	Exec     Op = "EXEC"
	Query    Op = "QUERY"
	Commit   Op = "COMMIT"
	Rollback Op = "ROLLBACK"
)

// Hook is called around every step. A nil function does nothing.
type Hook struct {
	Before func(ctx context.Context, s Step) error
	After  func(ctx context.Context, s Step) error // only if the step succeeded
}

// ErrCut breaks the connection when a hook answers it.
var ErrCut = errors.New("the connection is cut")

// Wrap returns a connector whose connections call the hook.
func Wrap(c driver.Connector, h Hook) driver.Connector { return connector{c, h} }

type connector struct {
	driver.Connector
	hook Hook
}

// Connect implements [driver.Connector].
func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	inner, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: inner, hook: c.hook, prepared: make(map[*stmt]struct{})}, nil
}

// conn is a connection that calls the hook. database/sql uses it from one goroutine at a time.
type conn struct {
	driver.Conn
	hook     Hook
	cut      bool
	prepared map[*stmt]struct{}
}

// Raw is the connection below, for those who want the driver's own.
func (c *conn) Raw() driver.Conn { return c.Conn }

// around does one step between the two calls of the hook.
func around[T any](ctx context.Context, c *conn, s Step, do func() (T, error)) (T, error) {
	var none T
	if c.cut {
		return none, driver.ErrBadConn
	}
	if c.hook.Before != nil {
		if err := c.hook.Before(ctx, s); err != nil {
			return none, c.answer(err, driver.ErrBadConn)
		}
	}
	v, err := do()
	if err != nil || c.hook.After == nil {
		return v, err
	}
	if err := c.hook.After(ctx, s); err != nil {
		if rows, ok := any(v).(driver.Rows); ok { // nobody else closes them, and pgx sends nothing before
			_ = rows.Close()
		}
		return none, c.answer(err, io.ErrUnexpectedEOF)
	}
	return v, nil
}

// answer is what the program hears: of a cut, what its driver would say.
func (c *conn) answer(err, lost error) error {
	if !errors.Is(err, ErrCut) {
		return err
	}
	c.cut = true
	for s := range c.prepared { // SQLite keeps a connection, and its locks, that has any
		_ = s.Stmt.Close()
	}
	_ = c.Close() // as the network does: nobody says goodbye
	return lost
}

// BeginTx implements [driver.ConnBeginTx].
func (c *conn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	return around(ctx, c, Step{Op: Begin}, func() (driver.Tx, error) {
		inner, err := c.Conn.(driver.ConnBeginTx).BeginTx(ctx, opts)
		return tx{inner, c}, err
	})
}

// ExecContext implements [driver.ExecerContext].
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return around(ctx, c, Step{Exec, query}, func() (driver.Result, error) {
		return c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
	})
}

// QueryContext implements [driver.QueryerContext].
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return around(ctx, c, Step{Query, query}, func() (driver.Rows, error) {
		return c.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
	})
}

// PrepareContext implements [driver.ConnPrepareContext]. It is no step: the hook sees each use of what is prepared.
func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if c.cut {
		return nil, driver.ErrBadConn
	}
	inner, err := c.Conn.(driver.ConnPrepareContext).PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	s := &stmt{Stmt: inner, conn: c, query: query}
	c.prepared[s] = struct{}{}
	return s, nil
}

// stmt is a prepared statement of a connection that calls the hook.
type stmt struct {
	driver.Stmt
	conn  *conn
	query string
}

// ExecContext implements [driver.StmtExecContext].
func (s *stmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return around(ctx, s.conn, Step{Exec, s.query}, func() (driver.Result, error) {
		return s.Stmt.(driver.StmtExecContext).ExecContext(ctx, args)
	})
}

// QueryContext implements [driver.StmtQueryContext].
func (s *stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return around(ctx, s.conn, Step{Query, s.query}, func() (driver.Rows, error) {
		return s.Stmt.(driver.StmtQueryContext).QueryContext(ctx, args)
	})
}

// CheckNamedValue implements [driver.NamedValueChecker].
func (s *stmt) CheckNamedValue(v *driver.NamedValue) error {
	if checker, ok := s.Stmt.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(v)
	}
	return s.conn.CheckNamedValue(v)
}

// Close implements [driver.Stmt].
func (s *stmt) Close() error {
	if s.conn.cut {
		return nil // it has ended with its connection
	}
	delete(s.conn.prepared, s)
	return s.Stmt.Close()
}

// CheckNamedValue implements [driver.NamedValueChecker].
func (c *conn) CheckNamedValue(v *driver.NamedValue) error {
	if checker, ok := c.Conn.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

// Ping implements [driver.Pinger].
func (c *conn) Ping(ctx context.Context) error {
	if p, ok := c.Conn.(driver.Pinger); ok && !c.cut {
		return p.Ping(ctx)
	}
	return nil
}

// ResetSession implements [driver.SessionResetter].
func (c *conn) ResetSession(ctx context.Context) error {
	if c.cut {
		return driver.ErrBadConn
	}
	if r, ok := c.Conn.(driver.SessionResetter); ok {
		return r.ResetSession(ctx)
	}
	return nil
}

// IsValid implements [driver.Validator].
func (c *conn) IsValid() bool {
	if v, ok := c.Conn.(driver.Validator); ok && !v.IsValid() {
		return false
	}
	return !c.cut
}

type tx struct {
	driver.Tx
	conn *conn
}

// Commit implements [driver.Tx].
func (t tx) Commit() error {
	_, err := around(context.Background(), t.conn, Step{Op: Commit}, func() (struct{}, error) { return struct{}{}, t.Tx.Commit() })
	return err
}

// Rollback implements [driver.Tx].
func (t tx) Rollback() error {
	_, err := around(context.Background(), t.conn, Step{Op: Rollback}, func() (struct{}, error) { return struct{}{}, t.Tx.Rollback() })
	return err
}
