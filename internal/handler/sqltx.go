package handler

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/prepared"
)

// SQLTx is the transaction of a delivery for handlers that bring their own SQL. Its statements go to the driver as they are,
// and each of them passes the fence.
//
// Rows and prepared statements of database/sql are that package's own types, so a wrapper would not see their errors. They come from
// a pool of one connection ([doorConn]) instead, which sends everything by way of the real transaction and looks at every answer.
type SQLTx struct {
	fence *Fence
	stmts *prepared.Statements

	isShared bool // by several deliveries
	handler  *Handler

	closed atomic.Bool // the handler is over

	mu   sync.Mutex
	pool *sql.DB // opened when rows, a prepared statement or a *sql.Tx are asked for
	door *sql.Tx
}

// ExecContext runs a statement.
func (t *SQLTx) ExecContext(ctx context.Context, query string, args ...any) (res sql.Result, err error) {
	if t.closed.Load() {
		return nil, sql.ErrTxDone
	}
	done, err := t.begin(ctx, query)
	if err != nil {
		return nil, err
	}
	res, err = t.fence.tx.ExecContext(ctx, query, t.stmts.Given(args)...)
	return res, done(err)
}

// QueryContext runs a statement that answers rows.
func (t *SQLTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return t.open(ctx).QueryContext(ctx, query, args...)
}

// QueryRowContext runs a statement that answers a row.
func (t *SQLTx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return t.open(ctx).QueryRowContext(ctx, query, args...)
}

// PrepareContext returns a statement for use in this transaction only. Behind a pooler it is sent as text each time.
func (t *SQLTx) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	return t.open(ctx).PrepareContext(ctx, query)
}

// Commit fails, and so does the delivery.
func (t *SQLTx) Commit() error { return t.refuse("Commit") }

// Rollback fails, and so does the delivery.
func (t *SQLTx) Rollback() error { return t.refuse("Rollback") }

func (t *SQLTx) refuse(method string) error {
	err := fmt.Errorf("%w: it called %s; the bus commits when the handler returns nil and rolls back when it returns an error, "+
		"so leave both out", ErrEnds, method)
	if t.closed.Load() {
		return fmt.Errorf("%w (%w)", err, sql.ErrTxDone)
	}
	t.fence.poison(err)
	return err
}

// guard is a savepoint that is there before a statement that may end the transaction, and after it unless it did.
const guard = "bluecone_guard"

// begin lets a statement pass or refuses it. What it returns looks at the answer.
func (t *SQLTx) begin(ctx context.Context, query string) (done func(error) error, err error) {
	f := t.fence
	mayEnd := dialect.MayEnd(query)
	switch {
	case mayEnd && t.isShared:
		t.handler.alone.Store(true)
		f.poison(ErrNotAlone)
	case dialect.Ends(query):
		f.poison(fmt.Errorf("%w, by %s; the bus commits when the handler returns nil and rolls back when it returns an error", ErrEnds,
			dialect.Verb(query)))
	default:
		f.before(query)
	}
	if p := f.Poisoned(); p != nil {
		return nil, refused(p)
	}
	if mayEnd {
		f.noteChange()
		if _, err := f.tx.ExecContext(ctx, "SAVEPOINT "+guard); err != nil {
			f.after(ctx, err)
			return nil, err
		}
	}
	return func(err error) error {
		f.after(ctx, err)
		t.stmts.Notice(err)
		if mayEnd {
			err = t.checkGuard(ctx, query, err)
		}
		return t.explain(query, err)
	}, nil
}

// refused is the error of a statement after the transaction was ended.
func refused(why error) error {
	if errors.Is(why, sql.ErrTxDone) {
		return why
	}
	return fmt.Errorf("%w (%w)", why, sql.ErrTxDone)
}

// checkGuard finds out whether a statement that may end the transaction did. PostgreSQL cannot tell after an error, and need not:
// it refuses everything then.
func (t *SQLTx) checkGuard(ctx context.Context, query string, err error) error {
	f := t.fence
	if f.Poisoned() != nil || err != nil && f.dialect.Name == "postgres" {
		return err
	}
	if _, gone := f.tx.ExecContext(ctx, "RELEASE SAVEPOINT "+guard); gone != nil && ctx.Err() == nil {
		f.poison(fmt.Errorf("%w, by something inside of %s: what was written before has been committed or rolled back: %w", ErrEnds,
			dialect.Verb(query), gone))
		return errors.Join(err, refused(f.Poisoned()))
	}
	return err
}

// Std is the same transaction as database/sql has it.
func (t *SQLTx) Std(ctx context.Context) *sql.Tx { return t.open(ctx) }

// open returns the transaction whose rows and statements are watched. After the handler it is one that refuses everything.
func (t *SQLTx) open(ctx context.Context) *sql.Tx {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.door == nil {
		t.pool = sql.OpenDB(doorConn{t})
		// Neither can fail: nothing is sent. The transaction of the delivery ends with its own context.
		t.door, _ = t.pool.BeginTx(context.WithoutCancel(ctx), nil)
		if t.closed.Load() {
			t.shut()
		}
	}
	return t.door
}

// close ends what the handler has left open. From now on everything is refused.
func (t *SQLTx) close() {
	if t.closed.Swap(true) {
		return
	}
	t.mu.Lock()
	opened := t.door != nil
	t.mu.Unlock()
	if opened {
		t.shut()
	}
}

func (t *SQLTx) shut() {
	_ = t.door.Rollback() // closes rows and statements
	_ = t.pool.Close()
}
