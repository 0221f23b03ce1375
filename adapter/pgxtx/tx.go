package pgxtx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/spi"
)

// deliveryTx is the transaction of a delivery. The connection is pgx's own, below the *sql.Tx that the bus began, and every
// statement passes the watch of the bus on its way.
type deliveryTx struct {
	of         spi.Tx
	conn       *pgx.Conn
	isBusy     atomic.Bool // something uses the connection now
	savepoints int
	left       interface{ close() } // rows or a batch that may be open
}

// connect finds the connection of pgx.
func (t *deliveryTx) connect(driverConn any) error {
	for {
		switch c := driverConn.(type) {
		case interface{ Conn() *pgx.Conn }:
			t.conn = c.Conn()
			return nil
		case interface{ Raw() driver.Conn }:
			driverConn = c.Raw()
		default:
			return bus.Permanent(fmt.Errorf("pgxtx: the pool of the bus has connections of type %T, which are not pgx's: %s", c, howToOpen))
		}
	}
}

// busyError is what pgx says of a connection that is in use.
type busyError struct{}

func (busyError) Error() string {
	return "pgxtx: conn busy: close the rows, or end the call, before the next statement"
}

// use calls fn with the connection, unless fn would run inside of another call, in a callback say, and wait for that.
func (t *deliveryTx) use(fn func() error) (err error) {
	if !t.isBusy.CompareAndSwap(false, true) {
		return busyError{}
	}
	defer t.isBusy.Store(false)
	return fn()
}

// raw calls fn with the connection to itself.
func (t *deliveryTx) raw(fn func()) error {
	return t.of.Raw(func(any) error {
		fn()
		return nil
	})
}

// send watches statements while fn sends them, or refuses them. What it returns is told how that ended.
func (t *deliveryTx) send(ctx context.Context, fn func(), queries ...string) (done func(error) error, err error) {
	done = func(err error) error { return ended(err) }
	for _, query := range queries {
		outer := done
		inner, err := t.of.Watch(ctx, query)
		if err != nil {
			return nil, done(ended(err))
		}
		done = func(err error) error { return outer(inner(err)) }
	}
	isOver := false
	err = t.raw(func() {
		// After the end of the context the transaction is rolled back, and the connection would commit each statement by itself.
		if isOver = t.conn.PgConn().TxStatus() == 'I'; !isOver {
			fn()
		}
	})
	if isOver {
		err = fmt.Errorf("pgxtx: %w", sql.ErrTxDone)
	}
	if err != nil {
		return nil, done(err)
	}
	return done, nil
}

// call sends a statement and waits for its end.
func (t *deliveryTx) call(ctx context.Context, query string, fn func() error) error {
	return t.use(func() error {
		var answer error
		done, err := t.send(ctx, func() { answer = fn() }, query)
		if err != nil {
			return err
		}
		return done(answer)
	})
}

// end closes what the handler has left open, and finds out whether the transaction is still there.
func (t *deliveryTx) end(ctx context.Context) error {
	if t.left != nil {
		t.left.close()
	}
	isOver := false
	if err := t.raw(func() { isOver = t.conn.PgConn().TxStatus() == 'I' }); err != nil {
		return err
	}
	if isOver && ctx.Err() == nil {
		return errors.New("pgxtx: the transaction was over before its handler")
	}
	return nil
}

// Begin makes a savepoint.
func (t *deliveryTx) Begin(ctx context.Context) (pgx.Tx, error) {
	t.savepoints++
	s := &savepoint{deliveryTx: t, name: "pgxtx_" + strconv.Itoa(t.savepoints)}
	if _, err := t.Exec(ctx, "SAVEPOINT "+s.name); err != nil {
		return nil, err
	}
	return s, nil
}

// Commit fails, and so does the delivery.
func (t *deliveryTx) Commit(context.Context) error { return ended(t.of.Commit()) }

// Rollback fails, and so does the delivery.
func (t *deliveryTx) Rollback(context.Context) error { return ended(t.of.Rollback()) }

// Exec runs a statement.
func (t *deliveryTx) Exec(ctx context.Context, query string, args ...any) (tag pgconn.CommandTag, err error) {
	err = t.call(ctx, query, func() (err error) {
		tag, err = t.conn.Exec(ctx, query, args...)
		return err
	})
	return tag, err
}

// Query runs a statement that answers rows.
func (t *deliveryTx) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	r := &rows{t: t}
	err := t.use(func() (err error) {
		var answer error
		r.done, err = t.send(ctx, func() { r.Rows, answer = t.conn.Query(ctx, query, args...) }, query)
		if err == nil && answer != nil {
			err = r.done(answer)
		}
		return err
	})
	if err != nil {
		return failedRows{err}, err
	}
	t.left = r
	return r, nil
}

// QueryRow runs a statement that answers a row.
func (t *deliveryTx) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	r, _ := t.Query(ctx, query, args...) // the row has the error
	return row{r}
}

// CopyFrom writes rows by COPY.
func (t *deliveryTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (n int64, err error) {
	err = t.call(ctx, "COPY", func() (err error) {
		n, err = t.conn.CopyFrom(ctx, table, columns, src)
		return err
	})
	return n, err
}

// Prepare prepares a statement under a name, for this connection.
func (t *deliveryTx) Prepare(ctx context.Context, name, query string) (sd *pgconn.StatementDescription, err error) {
	err = t.call(ctx, query, func() (err error) {
		sd, err = t.conn.Prepare(ctx, name, query)
		return err
	})
	return sd, err
}

// SendBatch sends several statements at once.
func (t *deliveryTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	queries := make([]string, len(b.QueuedQueries))
	for i, q := range b.QueuedQueries {
		queries[i] = q.SQL
	}
	r := &batchResults{t: t}
	err := t.use(func() (err error) {
		r.done, err = t.send(ctx, func() { r.BatchResults = t.conn.SendBatch(ctx, b) }, queries...)
		return err
	})
	if err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	t.left = r
	return r
}

// Conn panics.
func (t *deliveryTx) Conn() *pgx.Conn {
	panic("pgxtx: the transaction of a delivery does not hand out its connection, whose statements would pass the bus by: send them by the " +
		"transaction itself")
}

// LargeObjects panics.
func (t *deliveryTx) LargeObjects() pgx.LargeObjects {
	panic("pgxtx: the transaction of a delivery has no LargeObjects: call lo_create, lo_put and lo_get by SQL")
}
