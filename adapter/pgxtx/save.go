// Package pgxtx lets programs on pgx (github.com/jackc/pgx/v5) save events in a pgx.Tx, by [Save], and handle them in one, by [On]
// and [OnBatch].
package pgxtx

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/outbox"
)

// Save stores the events in a transaction of pgx, as [outbox.Outbox.Save] does: of a *pgx.Conn or a *pgxpool.Pool that leads to the
// outbox's database, a nested one, or that of a handler of [On]. It neither commits it nor rolls it back. It returns an error that
// says what to do if tx is nil or has ended. An event is delivered within milliseconds after the commit, as with any transaction
// that bun does not see.
func Save(ctx context.Context, ob *outbox.Outbox, tx pgx.Tx, events ...bus.Event) error {
	if v := reflect.ValueOf(tx); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return ob.Save(ctx, nil, events...)
	}
	return ob.Save(ctx, transaction{tx}, events...)
}

// transaction is a pgx.Tx as Save of an outbox takes it.
type transaction struct{ tx pgx.Tx }

// ExecContext runs a statement.
func (t transaction) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	tag, err := t.tx.Exec(ctx, query, args...)
	if err != nil {
		return nil, ended(err)
	}
	return result(tag), nil
}

// QueryContext fails: nobody can make a *sql.Rows of pgx's. Save does without it on PostgreSQL.
func (t transaction) QueryContext(context.Context, string, ...any) (*sql.Rows, error) {
	return nil, errors.New("pgxtx: a transaction of pgx has no *sql.Rows")
}

// Commit fails: the transaction is its owner's.
func (t transaction) Commit() error { return errNotOurs }

// Rollback fails: the transaction is its owner's.
func (t transaction) Rollback() error { return errNotOurs }

var errNotOurs = errors.New("pgxtx: whoever began the transaction ends it")

// ended is an error of pgx, as one of database/sql too if it says that the transaction is over, and the other way around.
func ended(err error) error {
	isPgx, isSQL := errors.Is(err, pgx.ErrTxClosed), errors.Is(err, sql.ErrTxDone)
	switch {
	case isPgx && !isSQL:
		return fmt.Errorf("%w (%w)", err, sql.ErrTxDone)
	case isSQL && !isPgx:
		return fmt.Errorf("%w (%w)", err, pgx.ErrTxClosed)
	}
	return err
}

// result is what pgx says of a statement.
type result pgconn.CommandTag

// LastInsertId fails: PostgreSQL has no such thing.
func (r result) LastInsertId() (int64, error) {
	return 0, errors.New("pgxtx: PostgreSQL has no LastInsertId: use RETURNING")
}

// RowsAffected is how many rows the statement has written.
func (r result) RowsAffected() (int64, error) { return pgconn.CommandTag(r).RowsAffected(), nil }
