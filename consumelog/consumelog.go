// Package consumelog keeps the state of every delivery: one row per
// (consumer, event) in bc_event_consume_log.
//
// # Contract
//
// The unique key (event_id, consumer_name) is what makes an effect happen once:
// the SUCCESS row is inserted in the handler's own transaction before the
// handler runs, so a concurrent twin waits for it and then finds it.
//
// Rows that wait (PENDING, FAILED) are the retry queue of their consumer. A row
// is leased with [Log.Claim], and every later write to it carries the owner and
// the lock version of that lease: a writer that lost its lease changes nothing.
// [Log.Start] notes that the handlers of leased deliveries are about to run. If
// the process dies then, its successor knows which deliveries it may have
// started, and runs each of them alone.
//
// An instance that does not know the schema version of an event leaves the
// delivery to those that do: it is PENDING and never due. They look for it.
//
// All times are UTC by the database's clock.
package consumelog

import (
	"context"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/store"
)

// Status is the state of one delivery.
type Status string

// The states of a delivery.
const (
	// Pending waits for its consumer without having failed: lane full, consumer
	// paused, or an earlier event of the aggregate unfinished.
	Pending Status = "PENDING"
	// Processing is leased by an instance until next_retry_at.
	Processing Status = "PROCESSING"
	// Failed waits for its next attempt.
	Failed Status = "FAILED"
	// Success is done; the effect and this row committed together.
	Success Status = "SUCCESS"
	// Dead waits for an operator.
	Dead Status = "DEAD"
	// Skipped is closed without an effect, with a reason.
	Skipped Status = "SKIPPED"
)

// Waiting reports whether the engine itself will still work on the delivery.
func (s Status) Waiting() bool { return s == Pending || s == Processing || s == Failed }

// Done reports whether the delivery is over for good.
func (s Status) Done() bool { return s == Success || s == Skipped }

// Delivery names one event on its way to one consumer.
type Delivery struct {
	Consumer      string // its key
	EventID       string
	EventType     string
	OutboxID      int64
	AggregateType string
	AggregateID   string
	TenantID      int64 // 0 if the event has none
	Attempts      int   // runs so far, the present one included
	// Left says that the instance does not know the schema version of the event: the delivery waits for one that does.
	Left bool
	// Suspect says that a process that has died may have started the delivery: it runs alone.
	Suspect bool
}

// Aggregate is the entity within which the delivery keeps its place. A row that names none stands for itself.
func (d Delivery) Aggregate() store.Aggregate {
	if d.AggregateType == "" {
		return store.Aggregate{ID: d.EventID}
	}
	return store.Aggregate{Tenant: d.TenantID, Type: d.AggregateType, ID: d.AggregateID}
}

// replaySuffix cannot be part of a consumer's name.
const replaySuffix = "@replay"

// ReplayName is the key under which the log keeps the replays of a consumer: deliveries that
// operators have repeated although the consumer had succeeded with them.
func ReplayName(consumer string) string { return consumer + replaySuffix }

// IsReplay reports whether a name is one of replays.
func IsReplay(name string) bool { return strings.HasSuffix(name, replaySuffix) }

// ReplayOf is the consumer that a name stands for, whether or not it is one of replays.
func ReplayOf(name string) string { return strings.TrimSuffix(name, replaySuffix) }

// Log reads and writes the consume log. It is safe for concurrent use.
type Log struct {
	db    *bun.DB
	d     dialect.Dialect
	stmts *prepared.Statements
	order store.Order
	left  store.Left
}

// New returns the log of db. It fails for a database dialect that is not supported.
func New(db *bun.DB) (*Log, error) {
	d, err := dialect.Of(db)
	if err != nil {
		return nil, err
	}
	stmts := prepared.New(db)
	return &Log{db: db, d: d, stmts: stmts, order: store.NewOrder(d, stmts), left: store.NewLeft(d)}, nil
}

// Learn lets the log prepare, where that is safe, the statements of each delivery. Call it where no
// transaction is open; it costs something only the first times.
func (l *Log) Learn(ctx context.Context) { l.stmts.Learn(ctx) }

// DB is the database that holds the log.
func (l *Log) DB() *bun.DB { return l.db }

const (
	table       = "bc_event_consume_log"
	eventTable  = "bc_outbox_event"
	uniqueEvent = "consumer_name,event_id"
)

// entry is one row to insert.
type entry struct {
	Delivery
	status Status
	retry  *time.Duration // until next_retry_at; nil for a row that waits for nothing
	err    string
}

// insert builds the INSERT of an entry, which has just run for the first time.
func (l *Log) insert(e entry) (query string, args []any) {
	next, args := "NULL", append(e.values(), string(e.status))
	if e.retry != nil {
		next = l.d.After
		args = append(args, dialect.Micro(*e.retry))
	}
	return insertInto + ", status, next_retry_at, error_message, first_run_at) VALUES " + byValue + ", ?, " + next + ", ?, " + l.d.Now + ")", append(args, nullText(e.err))
}

func nullInt(n int64) any {
	if n == 0 {
		return nil
	}
	return n
}

func nullText(s string) any {
	if s == "" {
		return nil
	}
	return s
}
