package store

import (
	"context"
	"database/sql"
	"strconv"
	"strings"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/prepared"
)

// mostNativeEvents is how many events one INSERT has whose values are sent beside its text: each has at most 15, and SQLite takes
// 32,766 values.
const mostNativeEvents = 2000

// SQL sends statements as database/sql does.
type SQL interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Tx is the transaction in which events are saved. Its statements have ? for values, and for a list of texts.
type Tx struct {
	bun    bun.IDB // nil if the transaction is not bun's
	stmts  *prepared.Statements
	plain  SQL
	d      dialect.Dialect
	notice *string
}

// NotifyChannel is the channel of PostgreSQL on which instances are told that events were saved.
const NotifyChannel = "bluecone_event"

// Notifying is the transaction with a notification, which PostgreSQL sends with the COMMIT if events were inserted: one with this
// payload, however many they are. It takes no statement of its own.
func (t Tx) Notifying(payload string) Tx {
	t.notice = &payload
	return t
}

// notify is the end of an INSERT that notifies.
func (t Tx) notify(query string, args []any) (string, []any) {
	if t.notice == nil {
		return query, args
	}
	return query + " RETURNING pg_notify('" + NotifyChannel + "', ?)", append(args, *t.notice)
}

// BunTx is a transaction that writes values into the text, as bun does.
func BunTx(tx bun.IDB, stmts *prepared.Statements) Tx { return Tx{bun: tx, stmts: stmts} }

// NativeTx is a transaction that takes the placeholders of its database, and values beside the text.
func NativeTx(tx SQL, d dialect.Dialect) Tx { return Tx{plain: tx, d: d} }

// exec sends a statement. If its text is the same each time it may be a prepared one.
func (t Tx) exec(ctx context.Context, isSame bool, query string, args ...any) (sql.Result, error) {
	switch {
	case t.bun == nil:
		query, args = native(t.d, query, args)
		return t.plain.ExecContext(ctx, query, args...)
	case isSame:
		return t.stmts.On(t.bun).ExecContext(ctx, query, args...)
	default:
		return t.bun.ExecContext(ctx, query, args...)
	}
}

// query asks for rows. A value may be a list.
func (t Tx) query(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if t.bun == nil {
		query, args = native(t.d, query, args)
		return t.plain.QueryContext(ctx, query, args...)
	}
	for i, a := range args {
		if list, ok := a.([]string); ok {
			args[i] = bun.List(list)
		}
	}
	return t.bun.QueryContext(ctx, query, args...)
}

// mostEvents is how many of n events one INSERT takes.
func (t Tx) mostEvents(n int) int {
	if t.bun == nil {
		return mostNativeEvents
	}
	return n
}

// native is a query with the placeholders of the database: $1 for the first ? on PostgreSQL. A list has one for each text.
func native(d dialect.Dialect, query string, args []any) (string, []any) {
	var b strings.Builder
	values := make([]any, 0, len(args))
	mark := func(value any) {
		values = append(values, value)
		if d.Name == "postgres" {
			b.WriteString("$" + strconv.Itoa(len(values)))
		} else {
			b.WriteByte('?')
		}
	}
	for i, part := range strings.Split(query, "?") {
		if i > 0 {
			list, ok := args[i-1].([]string)
			if !ok {
				mark(args[i-1])
			}
			for n, value := range list {
				if n > 0 {
					b.WriteString(", ")
				}
				mark(value)
			}
		}
		b.WriteString(part)
	}
	return b.String(), values
}
