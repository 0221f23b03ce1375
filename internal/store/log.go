package store

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/prepared"
)

// Log is what the engine reads and writes in bc_event_consume_log, one row per delivery, each part of it for one purpose.
// It is safe for concurrent use.
//
// The unique key (event_id, consumer_name) is what makes an effect happen once: the SUCCESS row is inserted in the handler's
// own transaction before the handler runs, so that a concurrent twin waits for it and then finds it.
//
// Rows that wait (PENDING, FAILED) are the retry queue of their consumer. [Leases.LeaseLocked] leases them, and every later write
// to such a row carries the owner and the lock version of that lease: a writer that has lost its lease changes nothing.
//
// All times are UTC by the database's clock.
type Log struct {
	Marks
	Spill
	Attempts
	Leases
	Starts
	Order
	Results
	Left Left

	stmts *prepared.Statements
}

// OpenLog returns the log of a database, with prepared statements of its own. It fails for a dialect that is not supported.
func OpenLog(db *bun.DB) (Log, error) {
	d, err := dialect.Of(db)
	if err != nil {
		return Log{}, err
	}
	stmts := prepared.New(db)
	order, left, attempts := NewOrder(d, stmts), NewLeft(d), Attempts{db, d}
	return Log{
		Marks: Marks{db, d, stmts}, Spill: Spill{db, d, stmts}, Attempts: attempts, Order: order, Left: left, Results: Results{d},
		Leases: Leases{db: db, d: d, stmts: stmts, left: left, attempts: attempts},
		Starts: Starts{db, d, stmts}, stmts: stmts,
	}, nil
}

// Learn lets the log prepare, where that is safe, the statements of each delivery. Call it where no transaction is open; it
// costs something only the first times.
func (l Log) Learn(ctx context.Context) { l.stmts.Learn(ctx) }

// Statements tell how a handler's own statements may be sent.
func (l Log) Statements() *prepared.Statements { return l.stmts }
