package prepared

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
)

// Conn sends statements by way of a database or a transaction.
type Conn struct {
	s   *Statements
	idb bun.IDB
}

// ExecContext runs a statement.
func (c Conn) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	stmt, values := c.find(ctx, query, args)
	if stmt == nil {
		return c.idb.ExecContext(ctx, query, values...)
	}
	given, err := c.s.given(args)
	if err != nil {
		return nil, err
	}
	res, err := c.idb.NewRaw(query, values...).Conn(&call{stmt: stmt, args: given}).Exec(ctx)
	if isOfAnotherPool(err) {
		return c.idb.ExecContext(ctx, query, values...)
	}
	return res, c.s.notice(err)
}

// QueryContext runs a statement that answers rows.
func (c Conn) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	stmt, values := c.find(ctx, query, args)
	if stmt == nil {
		return c.idb.QueryContext(ctx, query, values...)
	}
	given, err := c.s.given(args)
	if err != nil {
		return nil, err
	}
	call := &call{stmt: stmt, args: given, asks: true}
	_, err = c.idb.NewRaw(query, values...).Conn(call).Exec(ctx)
	switch {
	case isOfAnotherPool(err):
		return c.idb.QueryContext(ctx, query, values...)
	case err != nil:
		return nil, c.s.notice(err)
	}
	return call.rows, nil
}

// isOfAnotherPool reports whether database/sql refused a prepared statement, before it sent anything, because the
// transaction is one of another pool. It says so only when the statement is used, and only as text.
func isOfAnotherPool(err error) bool {
	return err != nil && err.Error() == "sql: Tx.Stmt: statement from different database used"
}

// find returns the prepared statement, if there is one, and the values as bun takes them.
func (c Conn) find(ctx context.Context, query string, args []any) (*sql.Stmt, []any) {
	values := make([]any, len(args))
	for i, a := range args {
		switch list := a.(type) {
		case []int64:
			values[i] = bun.List(list)
		case []string:
			values[i] = bun.List(list)
		default:
			values[i] = a
		}
	}
	stmt := c.s.find(query, args)
	switch idb := c.idb.(type) {
	case *bun.DB:
		c.s.Learn(ctx) // for the next time
	case bun.Tx:
		if stmt != nil {
			stmt = idb.Tx.StmtContext(ctx, stmt)
		}
	default:
		return nil, values
	}
	return stmt, values
}

// call is what bun takes for the connection of one statement. It ignores the text that bun has made
// for its hooks.
type call struct {
	bun.IConn
	stmt *sql.Stmt
	args []any
	asks bool
	rows *sql.Rows
}

// ExecContext runs the prepared statement.
func (c *call) ExecContext(ctx context.Context, _ string, _ ...any) (res sql.Result, err error) {
	if !c.asks {
		return c.stmt.ExecContext(ctx, c.args...)
	}
	c.rows, err = c.stmt.QueryContext(ctx, c.args...) //nolint:rowserrcheck // the caller's
	return driver.ResultNoRows, err
}

// bind writes a query as the database takes it: $1 for the first ?, and an array for a list, or ?, and
// the text of an array.
func (s *Statements) bind(query string, args []any) string {
	var b strings.Builder
	for i, part := range strings.Split(query, "?") {
		if i == 0 {
			b.WriteString(part)
			continue
		}
		mark, list := "?", "IN (SELECT value FROM json_each("
		if s.d == dialect.PG {
			mark, list = "$"+strconv.Itoa(i), "= ANY("
		}
		if isList(args[i-1]) {
			before := strings.TrimSuffix(b.String(), "IN (")
			b.Reset()
			b.WriteString(before + list)
			if s.d != dialect.PG {
				mark += ")"
			}
		}
		b.WriteString(mark + part)
	}
	return b.String()
}

func isList(arg any) bool {
	switch arg.(type) {
	case []int64, []string:
		return true
	}
	return false
}

// given are the values as the driver takes them.
func (s *Statements) given(args []any) ([]any, error) {
	given := slices.Clone(args)
	for i, a := range args {
		var err error
		switch list := a.(type) {
		case []int64:
			given[i], err = givenList(s.d, list)
		case []string:
			given[i], err = givenList(s.d, list)
		}
		if err != nil {
			return nil, err
		}
	}
	return given, nil
}

func givenList[T any](d dialect.Name, list []T) (any, error) {
	if d == dialect.PG {
		return padded(list), nil
	}
	text, err := json.Marshal(list)
	return string(text), err
}

// reckoned is how many elements PostgreSQL reckons with for an array that it does not see. A plan for fewer that
// it does see is cheaper, so that it would plan anew each time.
const reckoned = 10

// padded is a list with its last element repeated until there are as many.
func padded[T any](list []T) []T {
	if len(list) == 0 || len(list) >= reckoned {
		return list
	}
	return append(slices.Clone(list), slices.Repeat(list[len(list)-1:], reckoned-len(list))...)
}
