package bus

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/handler"
)

// Tx is a delivery's transaction for code that brings its own SQL: that of sqlc (it is a DBTX), squirrel, gorm, ent, or written by hand.
// Statements go to the driver as they are, with the database's own placeholders ($1 on PostgreSQL, ? elsewhere), and it may prepare
// them. A Tx is an outbox.Tx too, so a handler saves follow-up events with it.
//
// It is watched as closely as the bun.Tx of [On], rows and prepared statements included: after a deadlock, a lock wait timeout or a
// lost connection it refuses further statements and never commits, even if the handler swallowed the error. Savepoints are allowed.
// COMMIT, ROLLBACK and BEGIN as statements are refused before they are sent, and the delivery fails. So is what only then turns
// out to have ended the transaction, a procedure that commits say; but what it has committed stays: do not call such a procedure.
//
// When the handler returns, its rows and statements are closed. A Tx is not for use after that.
//
// With pgx on PostgreSQL the statements of a Tx are kept prepared, whatever default_query_exec_mode says, unless a pooler stands
// between; then, and with other drivers there, [Tx.PrepareContext] sends its statement as text each time.
type Tx interface {
	// ExecContext runs a statement that answers no rows.
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	// QueryContext runs a statement that answers rows. Close them before the next statement: most drivers refuse it otherwise.
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	// QueryRowContext runs a statement that answers at most one row.
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	// PrepareContext returns a statement for several uses within this transaction.
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
	// Commit always returns an error, and the delivery fails: the bus commits when the handler returns nil.
	Commit() error
	// Rollback always returns an error, and the delivery fails: the bus rolls back when the handler returns an error.
	Rollback() error
}

// OnSQL is [On] for a handler that brings its own SQL. It is the fast way on PostgreSQL, where the statements of a bun.Tx are
// texts with the values in them, which the server parses and plans each time.
func OnSQL[E Event](c *Consumer, fn func(ctx context.Context, tx Tx, m Message[E]) error) {
	register[E](c, "OnSQL", fn == nil, &handler.Handler{Run: func(ctx context.Context, tx handler.Transaction, ms []*handler.Message) error {
		return fn(ctx, tx.SQL, messageOf[E](c.c, ms[0]))
	}})
}

// OnSQLBatch is [OnBatch] for a handler that brings its own SQL.
func OnSQLBatch[E Event](c *Consumer, fn func(ctx context.Context, tx Tx, ms []Message[E]) error) {
	register[E](c, "OnSQLBatch", fn == nil,
		&handler.Handler{Batch: true, Run: func(ctx context.Context, tx handler.Transaction, ms []*handler.Message) error {
			return fn(ctx, tx.SQL, messagesOf[E](c.c, ms))
		}})
}

// SQLTx returns the transaction of a handler as a *sql.Tx, for code that takes no other type, such as sqlx. It is watched like tx: its
// Commit and Rollback are errors, and the delivery fails. It is not for use after the handler. SQLTx returns an error if tx is not what
// [OnSQL] or [OnSQLBatch] has handed to a handler.
func SQLTx(ctx context.Context, tx Tx) (*sql.Tx, error) {
	own, ok := tx.(*handler.SQLTx)
	if !ok {
		return nil, fmt.Errorf("bus.SQLTx: tx is a %T: give it the bus.Tx that OnSQL has handed to the handler", tx)
	}
	return own.Std(ctx), nil
}

// Database is what the bus works in: mysql (MariaDB, too), postgres or sqlite, for packages that bring handlers another type of
// transaction. It is empty if [New] was given none of these, which outbox.NewPublisher says.
func (c *Consumer) Database() string {
	if c.bus.all.DB == nil {
		return ""
	}
	d, err := dialect.Of(c.bus.all.DB)
	if err != nil {
		return ""
	}
	return d.Name
}

// Refuse adds a mistake to those that outbox.NewPublisher returns, for packages that register handlers on somebody's behalf. The text
// of err should name the package and what is wrong: it is returned as it is.
func (c *Consumer) Refuse(err error) {
	c.bus.all.Lock()
	defer c.bus.all.Unlock()
	if !c.bus.isLate(fmt.Sprintf("a handler of consumer %q", c.Name())) {
		c.refused = true
		c.bus.refuse(err)
	}
}
