package pgxtx

import (
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// rows are those of pgx. They use the connection alone, and what they meet on the way is told to the watch.
type rows struct {
	pgx.Rows

	t      *deliveryTx
	done   func(error) error // told once, when nothing more comes
	isOver bool
	err    error // once it is over
}

// use calls fn with the connection to itself, if it can be had.
func (r *rows) use(fn func()) error {
	err := r.t.use(func() error { return r.t.raw(fn) })
	if err != nil && r.err == nil {
		r.err = err
	}
	return err
}

// Next goes on to the next row.
func (r *rows) Next() (more bool) {
	if r.isOver || r.use(func() { more = r.Rows.Next() }) != nil {
		return false
	}
	if !more {
		r.end()
	}
	return more
}

// Scan reads the values of a row.
func (r *rows) Scan(dest ...any) (err error) {
	if lost := r.use(func() { err = r.Rows.Scan(dest...) }); lost != nil {
		return lost
	}
	if err != nil {
		r.end() // pgx has closed them
	}
	return err
}

// Values are the decoded values of a row.
func (r *rows) Values() (values []any, err error) {
	if lost := r.use(func() { values, err = r.Rows.Values() }); lost != nil {
		return nil, lost
	}
	if err != nil {
		r.end()
	}
	return values, err
}

// Close ends the rows.
func (r *rows) Close() {
	if !r.isOver && r.use(r.Rows.Close) == nil {
		r.end()
	}
}

func (r *rows) close() { r.Close() }

// end tells the watch once how the rows ended.
func (r *rows) end() {
	if r.isOver {
		return
	}
	r.isOver = true
	if err := r.Rows.Err(); err != nil {
		r.err = err
	}
	r.err = r.done(r.err)
}

// Err is what went wrong.
func (r *rows) Err() error {
	if r.isOver || r.err != nil {
		return r.err
	}
	return r.Rows.Err()
}

// Conn is nil, as it may be: see [On].
func (r *rows) Conn() *pgx.Conn { return nil }

// row is the first of some rows.
type row struct{ rows pgx.Rows }

// Scan reads the row, as that of pgx does.
func (r row) Scan(dest ...any) error {
	defer r.rows.Close()
	for _, d := range dest {
		if _, ok := d.(*pgtype.DriverBytes); ok {
			return errors.New("cannot scan into *pgtype.DriverBytes from QueryRow")
		}
	}
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	_ = r.rows.Scan(dest...) // Err has it too
	r.rows.Close()
	return r.rows.Err()
}

// failedRows are those of a statement that failed.
type failedRows struct{ err error }

// Close does nothing.
func (f failedRows) Close() {}

// Err is why there are none.
func (f failedRows) Err() error { return f.err }

// CommandTag is empty.
func (f failedRows) CommandTag() pgconn.CommandTag { return pgconn.CommandTag{} }

// FieldDescriptions are none.
func (f failedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }

// Next is false.
func (f failedRows) Next() bool { return false }

// Scan fails.
func (f failedRows) Scan(...any) error { return f.err }

// Values fails.
func (f failedRows) Values() ([]any, error) { return nil, f.err }

// RawValues are none.
func (f failedRows) RawValues() [][]byte { return nil }

// Conn is nil.
func (f failedRows) Conn() *pgx.Conn { return nil }

// TypeMap is nil.
func (f failedRows) TypeMap() *pgtype.Map { return nil }
