package handler

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/prepared"
)

// Fence watches the statements of one transaction and ends it for good at the first
// error after which it must not commit.
//
// After a deadlock MariaDB has rolled the transaction back, runs the next statement in
// autocommit and answers COMMIT with success; after a lock wait timeout it commits
// what is left. SQLite ends a transaction when a write is interrupted, and by INSERT OR
// ROLLBACK. A handler that swallows such an error would take effect without its
// SUCCESS row. So the transaction is rolled back on the spot: whatever the handler
// tries next answers sql.ErrTxDone.
//
// It refuses, in the same way, a statement that commits by itself, and ends the
// connection of a handler that may have changed the session: the next one would find it so. What a handler sends to end
// a transaction that it shares with other deliveries is refused too: their SUCCESS rows are in it already.
type Fence struct {
	dialect dialect.Dialect
	conn    bun.Conn
	over    bool // it was ended; only the goroutine that began it looks

	mu       sync.Mutex
	calling  *Handler // the handler that is being called
	isShared bool     // by several deliveries
	tx       *sql.Tx
	err      error
	changed  bool // a statement may have changed the session
	// misplaced says that a statement of bun's has failed that had the database's own placeholders.
	misplaced bool
}

// errPoisoned wraps the error that ended a fenced transaction.
var errPoisoned = errors.New("the transaction was rolled back because it could not be trusted any more")

// ErrEnds says that the handler itself has ended its transaction: that is an attempt.
var ErrEnds = errors.New("the handler ended its transaction")

// ErrNotAlone says that several deliveries were in one transaction, which a handler's SQL might have ended: each has to run alone.
var ErrNotAlone = errors.New("a statement that may end its transaction runs with one delivery alone")

// Unusable is what it means that the last statements of a transaction failed with err, after its handlers.
func Unusable(ctx context.Context, err error) error {
	if errors.Is(err, sql.ErrTxDone) && ctx.Err() == nil {
		return fmt.Errorf("%w, by Commit or Rollback; leave both out: the bus commits when the handler returns nil and rolls back when it "+
			"returns an error (%w)", ErrEnds, err)
	}
	return fmt.Errorf("the transaction cannot be used any more (an error of the database that the handler swallowed does this): %w", err)
}

// Begin starts a transaction whose every statement passes the fence. [Fence.End] ends it.
func Begin(ctx context.Context, db *bun.DB, opts *sql.TxOptions) (bun.Tx, *Fence, error) {
	d, err := dialect.Of(db)
	if err != nil {
		return bun.Tx{}, nil, err
	}
	f := &Fence{dialect: d}
	if f.conn, err = db.WithQueryHook(f).Conn(ctx); err != nil {
		return bun.Tx{}, nil, err
	}
	tx, err := f.conn.BeginTx(ctx, opts)
	if err != nil {
		_ = f.conn.Close() // BEGIN has failed, and says why
		return bun.Tx{}, nil, err
	}
	f.tx = tx.Tx
	return tx, f, nil
}

// Transaction is that of a delivery in the two forms in which handlers get it. That of an external handler is zero.
type Transaction struct {
	Bun bun.Tx
	SQL *SQLTx // for one call of a handler

	fence    *Fence
	stmts    *prepared.Statements
	isShared bool // by several deliveries
}

// Transaction hands tx, which the fence watches, to handlers of both kinds, for so many deliveries.
func (f *Fence) Transaction(tx bun.Tx, stmts *prepared.Statements, deliveries int) Transaction {
	return Transaction{Bun: tx, fence: f, stmts: stmts, isShared: deliveries > 1}
}

// of is the transaction for one call of a handler, and what ends that call.
func (t Transaction) of(h *Handler) (Transaction, func()) {
	if t.fence == nil {
		return t, func() {}
	}
	t.SQL = &SQLTx{fence: t.fence, stmts: t.stmts, isShared: t.isShared, handler: h}
	t.fence.call(h, t.isShared)
	return t, func() {
		t.SQL.close()
		t.fence.call(nil, false)
	}
}

// call notes which handler is being called.
func (f *Fence) call(h *Handler, isShared bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calling, f.isShared = h, isShared
}

// BeforeQuery refuses a statement that commits by itself, and one that ends the transaction of others: it ends the transaction itself,
// so that the statement is not sent.
func (f *Fence) BeforeQuery(ctx context.Context, ev *bun.QueryEvent) context.Context {
	f.beforeEnd(ev)
	f.before(ev.Query)
	return ctx
}

// beforeEnd looks at what a handler sends with its bun.Tx. It may commit what is its own alone: that is its effect. What it writes after
// a ROLLBACK would take effect without its SUCCESS row.
func (f *Fence) beforeEnd(ev *bun.QueryEvent) {
	f.mu.Lock()
	h, isShared := f.calling, f.isShared
	f.mu.Unlock()
	if h == nil {
		return
	}
	ends, may := dialect.Ends(ev.Query), mayEnd(ev)
	switch verb := dialect.Verb(ev.Query); {
	case isShared && (ends || may):
		h.alone.Store(true)
		f.poison(ErrNotAlone)
	case ends && (verb == "ROLLBACK" || verb == "ABORT"):
		f.poison(fmt.Errorf("%w, by %s; the bus rolls back when the handler returns an error", ErrEnds, verb))
	case may:
		f.noteChange()
	}
}

// mayEnd is [dialect.MayEnd] of what the handler has written itself. Where bun has put values into the text already, a semicolon may be
// one of theirs: there only what begins like the end of a transaction counts.
func mayEnd(ev *bun.QueryEvent) bool {
	switch ev.IQuery.(type) {
	case nil:
		return dialect.MayEnd(ev.QueryTemplate)
	case *bun.RawQuery:
		return slices.ContainsFunc(strings.Split(ev.Query, ";"), func(part string) bool { return dialect.Ends(part) || dialect.MayEnd(part) })
	}
	return false // bun has written all of it
}

func (f *Fence) before(query string) {
	switch f.dialect.ReachOf(query) {
	case dialect.CommitsByItself:
		f.poison(fmt.Errorf("%w: %s commits by itself what was written before; run such a statement on a connection of its own, outside of "+
			"handlers", ErrEnds, dialect.Verb(query)))
	case dialect.OfSession:
		f.noteChange()
	case dialect.OfTransaction:
	}
}

// noteChange remembers that the handler may have changed the session.
func (f *Fence) noteChange() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changed = true
}

// AfterQuery poisons the transaction after an error of a class that poisons, and if the error has ended it.
func (f *Fence) AfterQuery(ctx context.Context, ev *bun.QueryEvent) {
	f.notePlaceholder(ev)
	f.after(ctx, ev.Err)
}

// after looks at what a statement has answered.
func (f *Fence) after(ctx context.Context, err error) {
	switch {
	case err == nil || f.tx == nil:
	case dialect.Classify(err).Poisons():
		f.poison(fmt.Errorf("%w: %w", errPoisoned, err))
	case f.dialect.Name == "sqlite" && f.isOver(ctx):
		f.poison(fmt.Errorf("%w, by a statement that failed: %w", ErrEnds, err))
	}
}

// isOver reports whether SQLite has ended the transaction: only then another one can begin.
func (f *Fence) isOver(ctx context.Context) bool {
	_, err := f.tx.ExecContext(context.WithoutCancel(ctx), "BEGIN")
	return err == nil
}

func (f *Fence) poison(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil && f.tx != nil {
		f.err = err
		_ = f.tx.Rollback() // on a lost connection there is nothing left to roll back
	}
}

// Poisoned is the error that ended the transaction, or nil.
func (f *Fence) Poisoned() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// End rolls the transaction back, unless it has committed, and gives its connection back, once. It never waits for a handler
// that is stuck inside.
func (f *Fence) End(tx bun.Tx, undo, isStuck bool) {
	switch {
	case f.over:
		return
	case isStuck:
		go func() { // the handler holds it; its context is over
			_ = tx.Tx.Rollback()
			f.release()
		}()
	case undo:
		_ = tx.Rollback() // it may be over already, which is what we want
		f.release()
	default:
		f.release()
	}
	f.over = true
}

// release gives the connection back when the transaction is over, or ends it if its session may have been changed.
func (f *Fence) release() {
	f.mu.Lock()
	changed := f.changed
	f.mu.Unlock()
	if changed {
		_ = f.conn.Raw(func(any) error { return driver.ErrBadConn }) // which closes it
	}
	_ = f.conn.Close() // again, if it was closed
}
