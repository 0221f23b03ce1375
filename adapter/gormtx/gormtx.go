// Package gormtx saves events in transactions of gorm, and hands transactions of gorm to handlers.
package gormtx

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"gorm.io/gorm"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/outbox"
)

const howToBegin = "call gormtx.Save inside of db.Transaction(func(tx *gorm.DB) error { … }) with that tx, " +
	"or in a handler with the handler's tx"

// Save is outbox.Outbox.Save in a transaction of gorm: the one of db.Transaction or db.Begin, or that of a handler of [On]. It refuses,
// and says what to do, a tx that is nil or outside of a transaction, that has an error, that has ended, or that is for another kind of
// database than the outbox's. It neither commits nor rolls back. No event is nothing to do, and in DryRun (and so in ToSQL) nothing is
// saved, as nothing else is written.
func Save(ctx context.Context, ob *outbox.Outbox, tx *gorm.DB, events ...bus.Event) error {
	switch {
	case len(events) == 0, isDryRun(tx):
		return nil
	case ob == nil:
		return errors.New("gormtx.Save: the *outbox.Outbox is nil: make one by outbox.New, and give it to what saves")
	}
	open, err := transaction(tx, ob.Database())
	if err != nil {
		return fmt.Errorf("gormtx.Save: %w", err)
	}
	return ob.Save(ctx, open, events...)
}

// transaction is that of a *gorm.DB.
func transaction(tx *gorm.DB, database string) (outbox.Tx, error) {
	switch {
	case tx == nil, tx != nil && (tx.Config == nil || tx.Statement == nil):
		return nil, errors.New("it needs an open transaction, got a *gorm.DB that is nil or that gorm.Open has not made: " + howToBegin)
	case tx.Error != nil:
		return nil, fmt.Errorf("the *gorm.DB has an error already: %w", tx.Error)
	}
	if is := tx.Name(); is != database {
		return nil, fmt.Errorf("the *gorm.DB is for another database (its dialect is %s; the outbox is in %s), in which the event would not "+
			"be where its publisher looks: save in a transaction of the database that the outbox was made for by outbox.New", is, database)
	}
	pool := tx.Statement.ConnPool
	if prepared, ok := pool.(*gorm.PreparedStmtTX); ok {
		pool = prepared.Tx // or gorm would keep a prepared statement for each number of events
	}
	open, ok := pool.(outbox.Tx)
	if !ok {
		return nil, errors.New("it needs an open transaction, got a *gorm.DB outside of one: " + howToBegin)
	}
	return open, nil
}

func isDryRun(db *gorm.DB) bool { return db != nil && db.Config != nil && db.DryRun }

// On is bus.OnSQL for a handler that uses gorm: tx is the delivery's transaction. Transaction works in it, by a savepoint. Commit,
// Rollback and Begin are errors, and the first two fail the delivery: the bus ends the transaction.
//
// tx has the settings of db (its logger, names, hooks, plugins), which is not used otherwise. gorm's own transactions around single
// writes are off. So are its prepared statements, PrepareStmt: the bus has the driver prepare. A session that turns them on inside of a
// handler is answered with an error, because gorm keeps them for all transactions.
//
// A db that is nil, in DryRun, or for another kind of database than the bus's, is a mistake that outbox.NewPublisher returns.
func On[E bus.Event](c *bus.Consumer, db *gorm.DB, fn func(ctx context.Context, tx *gorm.DB, m bus.Message[E]) error) {
	bus.OnSQL(c, handler(db, fn))
	check(c, db, "On")
}

// OnBatch is bus.OnSQLBatch for a handler that uses gorm, as [On] is bus.OnSQL.
func OnBatch[E bus.Event](c *bus.Consumer, db *gorm.DB, fn func(ctx context.Context, tx *gorm.DB, ms []bus.Message[E]) error) {
	bus.OnSQLBatch(c, handler(db, fn))
	check(c, db, "OnBatch")
}

// check refuses a db that cannot be used in the bus's database.
func check(c *bus.Consumer, db *gorm.DB, verb string) {
	switch database := c.Database(); {
	case db == nil || db.Config == nil:
		c.Refuse(fmt.Errorf("gormtx.%s of consumer %q: db is nil, or gorm.Open has not made it: give it the *gorm.DB of your application",
			verb, c.Name()))
	case isDryRun(db):
		c.Refuse(fmt.Errorf("gormtx.%s of consumer %q: the *gorm.DB is in DryRun, in which a handler would write nothing and succeed: give it "+
			"one without", verb, c.Name()))
	case database != "" && db.Name() != database:
		c.Refuse(fmt.Errorf("gormtx.%s of consumer %q: the *gorm.DB is for another database (its dialect is %s; the bus works in %s): give it "+
			"the *gorm.DB of that database", verb, c.Name(), db.Name(), database))
	}
}

// handler is fn for a bus.Tx.
func handler[M any](db *gorm.DB, fn func(context.Context, *gorm.DB, M) error) func(context.Context, bus.Tx, M) error {
	if fn == nil {
		return nil // which is refused
	}
	return func(ctx context.Context, tx bus.Tx, m M) error {
		std, err := bus.SQLTx(ctx, tx)
		if err != nil {
			return err
		}
		own := db.Session(&gorm.Session{NewDB: true, Context: ctx, SkipDefaultTransaction: true})
		own.Config.ConnPool = &pool{std}
		own.Statement.ConnPool = own.Config.ConnPool
		return fn(ctx, own, m)
	}
}

// pool is a delivery's transaction as gorm has it.
type pool struct{ *sql.Tx }

// PrepareContext is called for what gorm would keep prepared for other transactions than this one.
func (pool) PrepareContext(context.Context, string) (*sql.Stmt, error) {
	return nil, errors.New("gormtx: the transaction of a handler takes no prepared statement: leave PrepareStmt out of the session; the bus " +
		"has the driver prepare statements where that is safe")
}

// BeginTx is called by gorm's Begin.
func (pool) BeginTx(context.Context, *sql.TxOptions) (gorm.ConnPool, error) {
	return nil, errors.New("gormtx: the delivery's transaction is open already, and the bus ends it: " +
		"use tx.Transaction for a part that may fail")
}
