package handler

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"reflect"
)

// doorConn is a connection that sends every statement by way of the delivery's transaction, and takes arguments and values as they
// are: the real driver converts them. To the pool of a [SQLTx] it is also where its only connection comes from.
type doorConn struct{ t *SQLTx }

// Connect returns the connection.
func (c doorConn) Connect(context.Context) (driver.Conn, error) { return c, nil }

// Driver is called by sql.DB.Driver alone, and nobody gets that pool.
func (c doorConn) Driver() driver.Driver { return nil }

// Prepare is for callers without a context, of which there are none.
func (c doorConn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

// Close leaves the transaction alone.
func (c doorConn) Close() error { return nil }

// Begin sends nothing: the delivery's transaction is the bus's.
func (c doorConn) Begin() (driver.Tx, error) { return c, nil }

// BeginTx sends nothing.
func (c doorConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return c, nil }

// Commit is the handler's, by a *sql.Tx: it fails, and so does the delivery.
func (c doorConn) Commit() error { return c.t.Commit() }

// Rollback is that of [SQLTx.close], which sends nothing, or the handler's, which fails like [doorConn.Commit].
func (c doorConn) Rollback() error {
	if c.t.closed.Load() {
		return nil
	}
	return c.t.Rollback()
}

// CheckNamedValue takes every value.
func (c doorConn) CheckNamedValue(*driver.NamedValue) error { return nil }

// ExecContext sends a statement.
func (c doorConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return c.t.ExecContext(ctx, query, values(args)...)
}

// QueryContext sends a statement.
func (c doorConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.t.rows(ctx, query, func() (*sql.Rows, error) {
		return c.t.fence.tx.QueryContext(ctx, query, c.t.stmts.Given(values(args))...)
	})
}

// PrepareContext prepares a statement where that is safe.
func (c doorConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	s := &doorStmt{t: c.t, query: query}
	if !c.t.stmts.MayPrepare() {
		return s, nil
	}
	done, err := c.t.begin(ctx, query)
	if err != nil {
		return nil, err
	}
	s.from, err = c.t.fence.tx.PrepareContext(ctx, query)
	if err = done(err); err != nil {
		return nil, err
	}
	return s, nil
}

// doorStmt is a prepared statement, or, without a real one, its text.
type doorStmt struct {
	t     *SQLTx
	query string
	from  *sql.Stmt
}

// Close closes the real one.
func (s *doorStmt) Close() error {
	if s.from == nil {
		return nil
	}
	return s.from.Close()
}

// NumInput lets the real one count.
func (s *doorStmt) NumInput() int { return -1 }

var errNoContext = errors.New("bus: a statement of a delivery needs a context")

// Exec is not called by database/sql.
func (s *doorStmt) Exec([]driver.Value) (driver.Result, error) { return nil, errNoContext }

// Query is not called by database/sql.
func (s *doorStmt) Query([]driver.Value) (driver.Rows, error) { return nil, errNoContext }

// ExecContext runs the statement.
func (s *doorStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	if s.from == nil {
		return s.t.ExecContext(ctx, s.query, values(args)...)
	}
	done, err := s.t.begin(ctx, s.query)
	if err != nil {
		return nil, err
	}
	res, err := s.from.ExecContext(ctx, values(args)...)
	if err = done(err); err != nil {
		return nil, err
	}
	return res, nil
}

// QueryContext runs the statement.
func (s *doorStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if s.from == nil {
		return doorConn{s.t}.QueryContext(ctx, s.query, args)
	}
	return s.t.rows(ctx, s.query, func() (*sql.Rows, error) { return s.from.QueryContext(ctx, values(args)...) })
}

func values(args []driver.NamedValue) []any {
	out := make([]any, len(args))
	for i, a := range args {
		if out[i] = a.Value; a.Name != "" {
			out[i] = sql.Named(a.Name, a.Value)
		}
	}
	return out
}

// rows sends a statement that answers rows.
func (t *SQLTx) rows(ctx context.Context, query string, send func() (*sql.Rows, error)) (driver.Rows, error) {
	done, err := t.begin(ctx, query)
	if err != nil {
		return nil, err
	}
	from, err := send() //nolint:rowserrcheck // doorRows looks
	if err != nil {
		return nil, done(err)
	}
	r := &doorRows{from: from, done: done}
	if err := r.describe(); err != nil {
		_ = from.Close() //nolint:sqlclosecheck // only then
		return nil, done(err)
	}
	return r, nil
}

// doorRows are rows whose errors are looked at.
type doorRows struct {
	from    *sql.Rows
	done    func(error) error // told once, when nothing more comes
	over    bool
	columns []string
	types   []*sql.ColumnType
	row     []any
	into    []any // pointers to the elements of row
	err     error // of the way to the next result
}

// describe learns the columns of the present result.
func (r *doorRows) describe() (err error) {
	if r.columns, err = r.from.Columns(); err != nil {
		return err
	}
	if r.types, err = r.from.ColumnTypes(); err != nil {
		return err
	}
	r.row, r.into = make([]any, len(r.columns)), make([]any, len(r.columns))
	for i := range r.row {
		r.into[i] = &r.row[i]
	}
	return nil
}

// Columns are the names of the columns.
func (r *doorRows) Columns() []string { return r.columns }

// Next reads a row.
func (r *doorRows) Next(dest []driver.Value) error {
	if !r.from.Next() {
		if err := r.from.Err(); err != nil {
			return r.end(err)
		}
		return io.EOF
	}
	if err := r.from.Scan(r.into...); err != nil {
		return err
	}
	for i := range dest {
		dest[i] = r.row[i]
	}
	return nil
}

// HasNextResultSet goes on to the next result, if there is one. An error is that of [doorRows.NextResultSet].
func (r *doorRows) HasNextResultSet() bool {
	more := r.from.NextResultSet()
	if more {
		r.err = r.describe()
	} else if err := r.from.Err(); err != nil {
		r.err = r.end(err)
	}
	return more || r.err != nil
}

// NextResultSet reports how going on went.
func (r *doorRows) NextResultSet() error { return r.err }

// Close closes the real rows. What they meet on the way counts.
func (r *doorRows) Close() error {
	err := r.from.Close()
	if err == nil {
		err = r.from.Err()
	}
	return r.end(err)
}

func (r *doorRows) end(err error) error {
	if r.over {
		return err
	}
	r.over = true
	return r.done(err)
}

// ColumnTypeDatabaseTypeName is what the database calls the type.
func (r *doorRows) ColumnTypeDatabaseTypeName(i int) string { return r.types[i].DatabaseTypeName() }

// ColumnTypeScanType is the Go type that fits.
func (r *doorRows) ColumnTypeScanType(i int) reflect.Type { return r.types[i].ScanType() }

// ColumnTypeLength is the length of a type that has one.
func (r *doorRows) ColumnTypeLength(i int) (int64, bool) { return r.types[i].Length() }

// ColumnTypeNullable reports whether the column may be NULL.
func (r *doorRows) ColumnTypeNullable(i int) (nullable, ok bool) { return r.types[i].Nullable() }

// ColumnTypePrecisionScale is that of a decimal type.
func (r *doorRows) ColumnTypePrecisionScale(i int) (precision, scale int64, ok bool) {
	return r.types[i].DecimalSize()
}
