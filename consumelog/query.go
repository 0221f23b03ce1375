package consumelog

import (
	"context"
	"time"
)

// Counts tells how many deliveries are in each state, of all consumers and their replays. Every state has a number, 0 if there is
// none. It reads the whole log: ask seldom. An error is that of the database.
func (l *Log) Counts(ctx context.Context) (map[Status]int64, error) {
	found, err := l.results.Counts(ctx, l.db)
	if err != nil {
		return nil, err
	}
	counts := map[Status]int64{Pending: 0, Processing: 0, Failed: 0, Success: 0, Dead: 0, Skipped: 0}
	for status, n := range found {
		counts[Status(status)] = n
	}
	return counts, nil
}

// Lag is what waits in the retry queue of a consumer.
type Lag struct {
	Waiting int64         // PENDING, FAILED and PROCESSING deliveries
	Oldest  time.Duration // age of the oldest of them, since its row was written; 0 if there is none
	Dead    int64         // deliveries that wait for an operator
}

// Lag measures the retry queue of a consumer, by its key; that of its replays has the key [ReplayName]. A consumer that nobody
// knows has a lag of zero. An error is that of the database.
func (l *Log) Lag(ctx context.Context, consumer string) (Lag, error) {
	backlog, err := l.results.Backlog(ctx, l.db, consumer)
	return Lag(backlog), err
}

// Record is one row of the consume log, for people.
type Record struct {
	ID             int64     `json:"id"`                       // of the row
	Consumer       string    `json:"consumer"`                 // its durable key, or that of its replays (see [ReplayName])
	EventID        string    `json:"eventId"`                  // of the event that is delivered
	EventType      string    `json:"eventType"`                // such as order.paid
	Status         Status    `json:"status"`                   // of this delivery
	Attempts       int       `json:"attempts"`                 // runs that count, since the last retry by an operator
	IdempotencyKey string    `json:"idempotencyKey,omitempty"` // what the handler gave to bus.Message.RecordKey
	Result         string    `json:"result,omitempty"`         // what it gave to bus.Message.RecordResult, JSON text
	Error          string    `json:"error,omitempty"`          // of the last run, or the reason of a SKIPPED or DEAD delivery
	CreatedAt      time.Time `json:"createdAt"`                // when the row was written, UTC, by the database's clock
	// ConsumedAt is when a SUCCESS was written. In all other states, PENDING too, it is when the row was written.
	ConsumedAt time.Time `json:"consumedAt"`
	// NextRetryAt is when the delivery is due, or its lease ends. It is zero if it has ended, and for one that waits for an instance
	// that knows its schema version.
	NextRetryAt time.Time `json:"nextRetryAt,omitzero"`
}

// ByEvents lists the deliveries of the events, by the ids of these, oldest first. Events that have no deliveries yet, or do not
// exist, have no records. An error is that of the database.
func (l *Log) ByEvents(ctx context.Context, eventIDs ...string) ([]Record, error) {
	rows, err := l.results.OfEvents(ctx, l.db, eventIDs)
	var out []Record
	for _, r := range rows {
		out = append(out, Record{
			ID: r.ID, Consumer: r.Consumer, EventID: r.EventID, EventType: r.EventType, Status: Status(r.Status), Attempts: r.Attempts,
			IdempotencyKey: r.IdempotencyKey, Result: r.Result, Error: r.Error,
			CreatedAt: r.CreatedAt, ConsumedAt: r.ConsumedAt, NextRetryAt: r.NextRetryAt,
		})
	}
	return out, err
}
