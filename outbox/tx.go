package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/mysqldialect"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	"github.com/uptrace/bun/schema"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
)

// Tx is an open transaction, in which [Outbox.Save] saves events: bun.Tx, *sql.Tx, and what wraps one of them and has these
// methods, such as *sqlx.Tx. A *sql.DB or a *bun.DB has no Commit, so saving outside a transaction does not compile.
//
// Statements come with the placeholders of the database ($1 on PostgreSQL, ? elsewhere) and values of the types string, int,
// int64 and nil. A transaction with the methods of a bun.IDB, which writes values into the text itself, is recognised and gets
// them as bun wants them. The library never calls Commit or Rollback, and on PostgreSQL it calls QueryContext for bun's
// transactions only. What ExecContext answers must know RowsAffected.
type Tx interface {
	// ExecContext runs a statement that answers no rows.
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	// QueryContext runs a statement that answers rows.
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	// Commit is the caller's to call: it is what tells a transaction from a pool.
	Commit() error
	// Rollback is the caller's to call, too.
	Rollback() error
}

// transaction is a Tx as Save uses it.
type transaction struct {
	store.Tx

	formats bun.IDB // the same, if it writes values into the text
}

const howToBegin = "begin one (db.BeginTx, or db.RunInTx of bun), save in it, and commit it"

// transaction recognises a transaction, and refuses one that cannot be used.
func (o *Outbox) transaction(tx Tx) (transaction, error) {
	switch {
	case tx == nil:
		return transaction{}, errors.New("outbox: Save needs an open transaction, got nil: " + howToBegin)
	case isUnopened(reflect.ValueOf(tx)):
		return transaction{}, fmt.Errorf("outbox: Save needs an open transaction, got a %T that was never begun: %s", tx, howToBegin)
	}
	idb, ok := tx.(bun.IDB)
	if !ok {
		return transaction{Tx: store.NativeTx(tx, o.d)}, nil
	}
	if name := idb.Dialect().Name(); name != o.db.Dialect().Name() {
		return transaction{}, fmt.Errorf("outbox: Save got a transaction of another database (%s; the outbox is in %s), in which the event "+
			"would not be where its publisher looks: save in the transaction of the database that the outbox was made for by outbox.New",
			name, o.db.Dialect().Name())
	}
	return transaction{Tx: store.BunTx(idb, o.stmts), formats: idb}, nil
}

// isUnopened reports whether a transaction is nil or the zero value of its type: all that it points at is nil. It looks at
// nothing that changes while a transaction is in use.
func isUnopened(v reflect.Value) bool {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return true
		}
		v = v.Elem()
	}
	isNil, isSet := pointersOf(v)
	return isNil && !isSet
}

// pointersOf tells whether any pointer or interface of a struct, and of the structs inside of it, is nil, and whether any is not.
func pointersOf(v reflect.Value) (isNil, isSet bool) {
	if v.Kind() != reflect.Struct {
		return false, false
	}
	for _, f := range v.Fields() {
		switch f.Kind() {
		case reflect.Pointer, reflect.Interface:
			isNil, isSet = isNil || f.IsNil(), isSet || !f.IsNil()
		default:
			innerNil, innerSet := pointersOf(f)
			isNil, isSet = isNil || innerNil, isSet || innerSet
		}
	}
	return isNil, isSet
}

// refusal says why events of a type were not saved, and what to do about it if that is known.
func refusal(d schema.Dialect, eventType string, err error) error {
	switch {
	case errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("outbox: save %s: the transaction has ended: save before its Commit or Rollback, or %s: %w", eventType, howToBegin, err)
	case dialect.Classify(err) == dialect.Schema:
		return fmt.Errorf("outbox: save %s: either the tables are not those of this release (run migrations.Up), or the transaction is not one "+
			"of the outbox's database (%s): %w", eventType, d.Name(), err)
	}
	return fmt.Errorf("outbox: save %s: %w", eventType, err)
}

// Open finds out which database a pool of database/sql leads to, and returns it as [New], bus.New, migrations.Up and the other
// packages take it: for programs that do not use bun. The pool stays the program's, which goes on using and in the end closes it.
// The driver does not matter: it asks the database itself. Open returns an error if that does not answer, or is none of MySQL,
// MariaDB, PostgreSQL and SQLite. Give all parts of bluecone the one *bun.DB that it returns.
func Open(ctx context.Context, db *sql.DB) (*bun.DB, error) {
	if db == nil {
		return nil, errors.New("outbox.Open: db is nil: open a pool by sql.Open first")
	}
	if err := db.PingContext(ctx); err != nil {
		return nil, fmt.Errorf("outbox.Open: the database does not answer: %w", err)
	}
	d, err := dialectOf(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("outbox.Open: %w", err)
	}
	return bun.NewDB(db, d), nil
}

// dialectOf asks the database for its version, which each kind says in its own words.
func dialectOf(ctx context.Context, db *sql.DB) (schema.Dialect, error) {
	ask := func(query string) (answer string, err error) {
		err = db.QueryRowContext(ctx, query).Scan(&answer)
		return answer, err
	}
	version, err := ask("SELECT version()")
	if err != nil {
		if _, liteErr := ask("SELECT sqlite_version()"); liteErr != nil {
			return nil, fmt.Errorf("the database, by its driver %T, is none of MySQL, MariaDB, PostgreSQL and SQLite, or does not say so: %w",
				db.Driver(), errors.Join(err, liteErr))
		}
		return sqlitedialect.New(), nil
	}
	if strings.HasPrefix(version, "PostgreSQL ") {
		return pgdialect.New(), nil
	}
	if _, err := ask("SELECT @@version_comment"); err != nil {
		return nil, fmt.Errorf("the database (version %.60q, by its driver %T) is none of MySQL, MariaDB, PostgreSQL and SQLite: "+
			"use one of these: %w", version, db.Driver(), err)
	}
	return mysqldialect.New(), nil
}
