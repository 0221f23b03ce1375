package spi

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/handler"
)

// Tx is a delivery's transaction for an adapter whose statements do not go by way of database/sql.
type Tx interface {
	bus.Tx
	// Watch lets a statement pass that the adapter sends itself, by Raw, or refuses it. The adapter tells done, once and outside of
	// Raw, what the database has answered, and gives its caller the error that done returns.
	Watch(ctx context.Context, query string) (done func(error) error, err error)
	// Raw calls use with the driver's connection, which nobody else uses meanwhile. The transaction may be over, and the connection
	// back in auto-commit, if the context has ended: use has to look before it sends something.
	Raw(use func(driverConn any) error) error
}

// TxOf is the transaction that a handler of bus.OnSQL gets.
func TxOf(tx bus.Tx) Tx { return tx.(*handler.SQLTx) } //nolint:forcetypeassert // there is no other

// DB is the database in which a consumer works, nil if its bus was made without one.
func DB(c *bus.Consumer) *bun.DB { return handler.Of(c).DB }
