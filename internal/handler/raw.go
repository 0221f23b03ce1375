package handler

import (
	"context"
	"database/sql"
)

// Watch lets a statement pass that the caller sends itself, by [SQLTx.Raw], or refuses it. The caller tells done, once and outside
// of Raw, what the database has answered, and goes on with the error that done returns.
func (t *SQLTx) Watch(ctx context.Context, query string) (done func(error) error, err error) {
	if t.closed.Load() {
		return nil, sql.ErrTxDone
	}
	return t.begin(ctx, query)
}

// Raw calls use with the driver's connection. Nobody else uses it meanwhile, not even for the rollback after the end of the context.
func (t *SQLTx) Raw(use func(driverConn any) error) error { return t.fence.conn.Raw(use) }
