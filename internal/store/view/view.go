// Package view holds the statements by which operators read the library's tables, one function each. No statement reads more
// of a text than it is asked for: anybody may have written the rows.
package view

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
)

// Table is one of the large tables, or its archive.
type Table string

// The large tables.
const (
	Events            Table = "bc_outbox_event"
	EventsArchive     Table = "bc_outbox_event_archive"
	Deliveries        Table = "bc_event_consume_log"
	DeliveriesArchive Table = "bc_event_consume_log_archive"
)

// Reader runs the statements of this package.
type Reader struct {
	// D is the dialect of the database.
	D dialect.Dialect
	// Names is how many characters of a name, key or id are read where the database keeps any length.
	Names int
	// Documents is how many characters of metadata and the like are read.
	Documents int
	// Rows runs a statement, and calls scan for every row.
	Rows func(ctx context.Context, scan func(rows *sql.Rows) error, query string, args ...any) error
}

// On is the Rows of a [Reader] that runs every statement on a database as it is.
func On(db bun.IDB) func(ctx context.Context, scan func(rows *sql.Rows) error, query string, args ...any) error {
	return func(ctx context.Context, scan func(rows *sql.Rows) error, query string, args ...any) error {
		return store.EachRow(ctx, db, scan, query, args...)
	}
}

// row is Rows for a statement that answers exactly one row.
func (r Reader) row(ctx context.Context, dest []any, query string, args ...any) error {
	n := 0
	err := r.Rows(ctx, func(rows *sql.Rows) error {
		n++
		return rows.Scan(dest...)
	}, query, args...)
	if err == nil && n == 0 {
		err = sql.ErrNoRows
	}
	return err
}

// texts reads one column of text.
func (r Reader) texts(ctx context.Context, query string, args ...any) ([]string, error) {
	return column[string](ctx, r, query, args...)
}

func column[T any](ctx context.Context, r Reader, query string, args ...any) (out []T, err error) {
	err = r.Rows(ctx, func(rows *sql.Rows) error {
		var v T
		err := rows.Scan(&v)
		out = append(out, v)
		return err
	}, query, args...)
	return out, err
}

// name reads a column that no other database than SQLite lets be long.
func (r Reader) name(column string) string {
	if r.D.Name != "sqlite" {
		return column
	}
	return cut(column, r.Names-1)
}

// number reads a column of numbers: 0 for what somebody else may have written there and no other database takes, a text in SQLite, and
// in MySQL what is larger than any number of ours.
func (r Reader) number(column string) string {
	switch r.D.Name {
	case "sqlite":
		return "CAST(" + column + " AS INTEGER)"
	case "mysql":
		return "CASE WHEN " + column + " > 9223372036854775807 THEN 0 ELSE " + column + " END"
	}
	return column
}

// flag is 1 where a column is 1, and 0 for everything else that may stand there.
func flag(column string) string { return "CASE WHEN " + column + " = 1 THEN 1 ELSE 0 END" }

// cut reads so many characters of a text column, and one more, which tells that something was cut.
func cut(column string, most int) string { return fmt.Sprintf("SUBSTR(%s, 1, %d)", column, most+1) }

// orEmpty is an expression that is a text where another is NULL.
func orEmpty(expression string) string { return "COALESCE(" + expression + ", '')" }

// orZero is an expression that is a number where another is NULL.
func orZero(expression string) string { return "COALESCE(" + expression + ", 0)" }

// owned is a condition that a row of the table x belongs to one of some tenants, 0 for none.
func owned(x string, tenants []int64) (condition string, arg any) {
	return "COALESCE(" + x + ".tenant_id, 0) IN (?)", bun.List(tenants)
}

// Instant is a time of the database, which travels as microseconds since the epoch: zero for 0.
func Instant(micros int64) time.Time {
	if micros == 0 {
		return time.Time{}
	}
	return time.UnixMicro(micros).UTC()
}
