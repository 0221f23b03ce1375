// Package enttx hands ent's transactions to handlers.
//
// Saving needs no adapter: an *ent.Tx of code that was generated with the feature sql/execquery is an outbox.Tx, so
// outbox.Outbox.Save takes it, in an application and in a handler.
package enttx

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"

	"github.com/bluecone-go/bluecone/bus"
)

// Client is a generated *ent.Client, whose transactions are T, the *ent.Tx beside it.
type Client[T any] interface {
	Tx(ctx context.Context) (T, error)
}

// On is bus.OnSQL for a handler that uses ent: tx is the delivery's transaction. Its Commit and Rollback are errors, and the delivery
// fails: the bus ends the transaction. So hooks by OnCommit and OnRollback are not called, and no other transaction begins inside of tx;
// for savepoints send SAVEPOINT by tx.ExecContext. After the handler tx refuses everything.
//
// open makes the client of that transaction, of the driver that it is given and of no other, with the hooks and options that it shall
// have. It is called once. An open that is nil, or uses another driver, is a mistake: outbox.NewPublisher returns it.
//
//	enttx.On(c, func(drv dialect.Driver) *ent.Client { return ent.NewClient(ent.Driver(drv)) },
//		func(ctx context.Context, tx *ent.Tx, m bus.Message[OrderPaid]) error { … })
//
// The session variables of ent (sql.WithVar) do not work in tx: they need a *sql.Tx.
func On[E bus.Event, T any, C Client[T]](
	c *bus.Consumer, open func(drv dialect.Driver) C, fn func(ctx context.Context, tx T, m bus.Message[E]) error,
) {
	bus.OnSQL(c, handler(c, "On", open, fn))
}

// OnBatch is bus.OnSQLBatch for a handler that uses ent, as [On] is bus.OnSQL.
func OnBatch[E bus.Event, T any, C Client[T]](
	c *bus.Consumer, open func(drv dialect.Driver) C, fn func(ctx context.Context, tx T, ms []bus.Message[E]) error,
) {
	bus.OnSQLBatch(c, handler(c, "OnBatch", open, fn))
}

// handler is fn for a bus.Tx, or nil, which is refused.
func handler[M, T any, C Client[T]](
	c *bus.Consumer, verb string, open func(dialect.Driver) C, fn func(context.Context, T, M) error,
) func(context.Context, bus.Tx, M) error {
	if c == nil || fn == nil {
		return nil
	}
	client, err := clientOf(c, open)
	if err != nil {
		c.Refuse(fmt.Errorf("enttx.%s of consumer %q: %w", verb, c.Name(), err))
	}
	return func(ctx context.Context, tx bus.Tx, m M) error {
		own, err := client.Tx(context.WithValue(ctx, delivery{}, tx))
		if err != nil {
			return err
		}
		return fn(ctx, own, m)
	}
}

const howToOpen = "give it func(drv dialect.Driver) *ent.Client { return ent.NewClient(ent.Driver(drv)) }"

// clientOf opens a client, and finds out whether it uses the driver that it is given.
func clientOf[T any, C Client[T]](c *bus.Consumer, open func(dialect.Driver) C) (client C, err error) {
	if open == nil {
		return client, errors.New("open is nil: " + howToOpen)
	}
	drv := &driver{dialect: map[string]string{"mysql": dialect.MySQL, "postgres": dialect.Postgres, "sqlite": dialect.SQLite}[c.Database()]}
	client = open(drv)
	if v := reflect.ValueOf(client); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return client, errors.New("open has made no client: " + howToOpen)
	}
	asked := false
	tx, _ := client.Tx(context.WithValue(context.Background(), question{}, &asked)) // fails, if all is well
	if !asked {
		if begun, ok := any(tx).(interface{ Rollback() error }); ok && !reflect.ValueOf(tx).IsNil() {
			_ = begun.Rollback()
		}
		return client, errors.New("open has made a client that does not use the driver that it was given, so its statements would not be in " +
			"the delivery's transaction: " + howToOpen)
	}
	return client, nil
}

type (
	delivery struct{} // key of a context: the bus.Tx of the delivery
	question struct{} // key of a context: told whether the driver was asked for a transaction
)

// driver makes transactions of those of deliveries, and nothing else.
type driver struct{ dialect string }

var errOutside = errors.New("enttx: the client of handlers works in the transaction of a delivery only: use the tx that the handler " +
	"is given")

// Tx is the transaction of the delivery that the context speaks of.
func (d *driver) Tx(ctx context.Context) (dialect.Tx, error) {
	if asked, ok := ctx.Value(question{}).(*bool); ok {
		*asked = true
	}
	tx, ok := ctx.Value(delivery{}).(bus.Tx)
	if !ok {
		return nil, errOutside
	}
	return &entsql.Tx{Conn: entsql.Conn{ExecQuerier: tx}, Tx: tx}, nil
}

// Dialect is what ent calls the database.
func (d *driver) Dialect() string { return d.dialect }

// Exec fails.
func (d *driver) Exec(context.Context, string, any, any) error { return errOutside }

// Query fails.
func (d *driver) Query(context.Context, string, any, any) error { return errOutside }

// Close does nothing: the pool is not the driver's.
func (d *driver) Close() error { return nil }
