// Package sqlxtx hands sqlx's transactions to handlers.
//
// Saving needs no adapter: a *sqlx.Tx is an outbox.Tx, so outbox.Outbox.Save takes it, in an application and in a handler.
package sqlxtx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/outbox"
)

var _ outbox.Tx = (*sqlx.Tx)(nil)

// On is bus.OnSQL for a handler that uses sqlx: tx is the delivery's transaction, with Get, Select, NamedExec and everything else.
// Its Commit and Rollback are errors, and the delivery fails: the bus ends the transaction.
//
// tx takes the placeholders, the mapping of names and the unsafe mode of db, which is not used otherwise. A db that is nil, or whose
// driver sqlx knows to take other placeholders than the bus's database, is a mistake that outbox.NewPublisher returns.
func On[E bus.Event](c *bus.Consumer, db *sqlx.DB, fn func(ctx context.Context, tx *sqlx.Tx, m bus.Message[E]) error) {
	bus.OnSQL(c, handler(db, fn))
	check(c, db, "On")
}

// OnBatch is bus.OnSQLBatch for a handler that uses sqlx, as [On] is bus.OnSQL.
func OnBatch[E bus.Event](c *bus.Consumer, db *sqlx.DB, fn func(ctx context.Context, tx *sqlx.Tx, ms []bus.Message[E]) error) {
	bus.OnSQLBatch(c, handler(db, fn))
	check(c, db, "OnBatch")
}

// handler is fn for a bus.Tx.
func handler[M any](db *sqlx.DB, fn func(context.Context, *sqlx.Tx, M) error) func(context.Context, bus.Tx, M) error {
	if fn == nil {
		return nil // which is refused
	}
	like := kind(db)
	return func(ctx context.Context, tx bus.Tx, m M) error {
		std, err := bus.SQLTx(ctx, tx)
		if err != nil {
			return err
		}
		own := like
		own.Tx = std
		return fn(ctx, &own, m)
	}
}

// check refuses a db whose placeholders are not those of the bus's database.
func check(c *bus.Consumer, db *sqlx.DB, verb string) {
	if db == nil {
		c.Refuse(fmt.Errorf("sqlxtx.%s of consumer %q: db is nil: give it the *sqlx.DB of your application", verb, c.Name()))
		return
	}
	wanted := map[string]int{"mysql": sqlx.QUESTION, "sqlite": sqlx.QUESTION, "postgres": sqlx.DOLLAR}[c.Database()]
	if is := sqlx.BindType(db.DriverName()); wanted != 0 && is != wanted && is != sqlx.UNKNOWN {
		c.Refuse(fmt.Errorf("sqlxtx.%s of consumer %q: the driver %q of db takes other placeholders than the bus's database, which is %s: "+
			"give it the *sqlx.DB of that database", verb, c.Name(), db.DriverName(), c.Database()))
	}
}

// kind is a transaction like those of db that lacks only the transaction. Only sqlx can say of which driver and mode it is, so one is
// begun, nowhere.
func kind(db *sqlx.DB) sqlx.Tx {
	if db == nil { // which check refuses
		return sqlx.Tx{}
	}
	like := *db
	like.DB = sql.OpenDB(nowhere{})
	defer func() { _ = like.DB.Close() }()
	tx := like.MustBegin() // sends nothing, and cannot fail
	_ = tx.Rollback()
	return *tx
}

// nowhere is a connection without a database, and its transaction.
type nowhere struct{}

// Connect returns the connection.
func (nowhere) Connect(context.Context) (driver.Conn, error) { return nowhere{}, nil }

// Driver is called by sql.DB.Driver alone.
func (nowhere) Driver() driver.Driver { return nil }

// Prepare has nobody to ask.
func (nowhere) Prepare(string) (driver.Stmt, error) {
	return nil, errors.New("sqlxtx: there is no database")
}

// Close does nothing.
func (nowhere) Close() error { return nil }

// Begin sends nothing.
func (nowhere) Begin() (driver.Tx, error) { return nowhere{}, nil }

// Commit sends nothing.
func (nowhere) Commit() error { return nil }

// Rollback sends nothing.
func (nowhere) Rollback() error { return nil }
