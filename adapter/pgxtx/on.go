package pgxtx

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/spi"
)

// On registers a handler that works in the delivery's transaction by way of pgx: its effect happens exactly once, as with
// [bus.OnSQL]. All of pgx.Tx but two methods works, batches ([pgx.Batch]) and COPY included, in pgx's own types.
//
// The pool of the bus has to have pgx's connections: one of sql.Open("pgx", …), stdlib.OpenDB or stdlib.OpenDBFromPool of
// github.com/jackc/pgx/v5/stdlib, or such a one in a wrapper whose connections have a method Raw() driver.Conn, as those of
// github.com/XSAM/otelsql do. Another database or driver is a mistake that outbox.NewPublisher returns; where only the connection can
// tell, the first delivery fails for good, and says what to do.
//
// tx is watched as closely as a [bus.Tx]: after a deadlock or a lost connection it refuses further statements and never commits,
// even if the handler swallowed the error, and after any other error PostgreSQL itself does, up to a savepoint. Begin makes a
// savepoint. Commit and Rollback of tx itself are errors, and the delivery fails; so do COMMIT, ROLLBACK and BEGIN as statements,
// which are not sent.
//
// Conn and LargeObjects of tx panic, and Conn of its rows is nil, because statements sent by them would pass the watch by: register
// types when the pool connects (stdlib.OptionAfterConnect), and call lo_create and its kin by SQL. When the handler returns, its
// rows and batches are closed. tx is not for use after that, nor by several goroutines at a time.
//
// pgx keeps statements prepared as the pool's default_query_exec_mode says. Behind a pooler in transaction mode set that to exec or
// simple_protocol, as pgx always needs it there, and do not call Prepare.
func On[E bus.Event](c *bus.Consumer, fn func(ctx context.Context, tx pgx.Tx, m bus.Message[E]) error) {
	if fn == nil {
		bus.OnSQL[E](c, nil)
		return
	}
	bus.OnSQL(c, func(ctx context.Context, of bus.Tx, m bus.Message[E]) error {
		return in(ctx, of, func(tx pgx.Tx) error { return fn(ctx, tx, m) })
	})
	check(c, "On")
}

// OnBatch is [On] for a handler that gets many events in one call and one transaction, as that of [bus.OnBatch] does.
func OnBatch[E bus.Event](c *bus.Consumer, fn func(ctx context.Context, tx pgx.Tx, ms []bus.Message[E]) error) {
	if fn == nil {
		bus.OnSQLBatch[E](c, nil)
		return
	}
	bus.OnSQLBatch(c, func(ctx context.Context, of bus.Tx, ms []bus.Message[E]) error {
		return in(ctx, of, func(tx pgx.Tx) error { return fn(ctx, tx, ms) })
	})
	check(c, "OnBatch")
}

const howToOpen = `open it by sql.Open("pgx", …) of github.com/jackc/pgx/v5/stdlib, or register the handler with bus.OnSQL`

// others are the packages of other drivers for PostgreSQL. Those that wrap a driver cannot be told before they have a connection.
var others = []string{"github.com/lib/pq", "github.com/uptrace/bun/driver/pgdriver"} //nolint:gochecknoglobals // constants

// check refuses a pool under which there are no connections of pgx.
func check(c *bus.Consumer, verb string) {
	db := spi.DB(c)
	if db == nil {
		return // which is said already
	}
	d := db.Driver()
	if t := reflect.Indirect(reflect.ValueOf(d)).Type(); c.Database() != "postgres" || slices.Contains(others, t.PkgPath()) {
		c.Refuse(fmt.Errorf("pgxtx.%s of consumer %q: the pool of the bus has the driver %T (%s), which is not pgx's: %s", verb, c.Name(), d,
			c.Database(), howToOpen))
	}
}

// in calls a handler with the transaction of a delivery.
func in(ctx context.Context, of bus.Tx, handle func(pgx.Tx) error) (err error) {
	t := &deliveryTx{of: spi.TxOf(of)}
	if err := t.of.Raw(t.connect); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.end(ctx)) }()
	return handle(t)
}
