// Package consumelog tells what has become of deliveries: one row per (consumer, event) in bc_event_consume_log.
//
//	lag, err := ob.Log().Lag(ctx, "Billing")
//
// The engine writes the log, and only operators' actions of package outbox change it otherwise. All times are UTC by the
// database's clock.
package consumelog

import (
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
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

// Waiting reports whether the engine still works on the delivery by itself: it is [Pending], [Processing] or [Failed].
func (s Status) Waiting() bool { return store.Status(s).Waiting() }

// Done reports whether the delivery has ended well: it is [Success] or [Skipped]. A [Dead] one is neither done nor waiting.
func (s Status) Done() bool { return store.Status(s).Done() }

// ReplayName is the key under which the log keeps the replays of a consumer: deliveries that
// operators have repeated although the consumer had succeeded with them.
func ReplayName(consumer string) string { return store.ReplayName(consumer) }

// IsReplay reports whether a key is one that [ReplayName] makes.
func IsReplay(key string) bool { return store.IsReplay(key) }

// ReplayOf is the key of the consumer whose replays a key stands for. A key that is not one of replays is returned as it is.
func ReplayOf(key string) string { return store.ReplayOf(key) }

// Log answers questions about the consume log. It is safe for concurrent use.
type Log struct {
	db      *bun.DB
	results store.Results
}

// New returns the log of db. Beside an outbox, outbox.Outbox.Log has it already. It fails for a database dialect that is not
// supported: MySQL (MariaDB too), PostgreSQL and SQLite are.
func New(db *bun.DB) (*Log, error) {
	d, err := dialect.Of(db)
	if err != nil {
		return nil, err
	}
	return &Log{db: db, results: store.NewResults(d)}, nil
}
