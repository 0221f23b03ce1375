package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/text"
)

// Marks are the SUCCESS rows of direct deliveries: of those that run for the first time, under the lease of their event.
type Marks struct {
	db    *bun.DB
	d     dialect.Dialect
	stmts *prepared.Statements
}

// Existing tells which of the events already have a row for the consumer, and in which state. It reads uk_event_consumer.
func (m Marks) Existing(ctx context.Context, idb bun.IDB, consumer string, eventIDs []string) (map[string]Status, error) {
	rows, err := idb.QueryContext(ctx, "SELECT event_id, status FROM "+deliveryTable+" WHERE consumer_name = ? AND event_id IN (?)",
		consumer, bun.List(eventIDs))
	if err != nil {
		return nil, fmt.Errorf("consume log: look up deliveries: %w", err)
	}
	defer rows.Close()
	found := make(map[string]Status)
	for rows.Next() {
		var id, status string
		if err := rows.Scan(&id, &status); err != nil {
			return nil, fmt.Errorf("consume log: look up deliveries: %w", err)
		}
		found[id] = Status(status)
	}
	return found, rows.Err()
}

// MarkSuccess inserts, in order, the SUCCESS rows of a consumer's deliveries that were never tried before, all at the same
// attempt, whose events are leased. It must run before their handlers, in the same transaction. [ErrLeaseLost] means that the
// transaction must be rolled back, because some are not leased any more. It finds the events by their primary key.
func (m Marks) MarkSuccess(ctx context.Context, tx bun.Tx, ds []Delivery, leases []dialect.Pair) error {
	if !m.d.SelectsFreely {
		return m.markByValue(ctx, tx, ds)
	}
	// Several versions are a different text each time, which is not worth preparing.
	exec, where, args := tx.ExecContext, dialect.IDs(leases), []any{ds[0].Consumer, ds[0].Attempts}
	if ids, version := sameVersion(leases); ids != nil {
		exec, where, args = m.stmts.On(tx).ExecContext, dialect.Under, append(args, ids, version)
	}
	res, err := exec(ctx, insertInto+") "+fromEvents+" FROM "+eventTable+" AS e WHERE "+where+m.d.PlainPlans+inOrder, args...)
	if err != nil {
		return fmt.Errorf("consume log: mark deliveries: %w", err)
	}
	return heldAll(res, len(leases))
}

// markByValue does not look at the events: what a database need not read it need not lock.
func (m Marks) markByValue(ctx context.Context, tx bun.Tx, ds []Delivery) error {
	if _, err := tx.ExecContext(ctx, insertInto+") "+valuesOf(m.db.Dialect(), ds, "")); err != nil {
		return fmt.Errorf("consume log: mark deliveries: %w", err)
	}
	return nil
}

// Note is what a handler recorded about its delivery.
type Note struct {
	EventID        string
	IdempotencyKey string // business key, at most 255 bytes; empty for none
	Result         any    // stored as JSON; nil for none
}

// values are what the row of the delivery takes of the note.
func (n Note) values() (key, result any, err error) {
	if n.Result != nil {
		b, err := json.Marshal(n.Result)
		if err != nil {
			return nil, nil, fmt.Errorf("consume log: result of event %s cannot be encoded: %w", n.EventID, err)
		}
		if _, replaced := text.Inspect(b); replaced {
			return nil, nil, fmt.Errorf("consume log: result of event %s has a string that is not valid UTF-8: it would not be stored as it is",
				n.EventID)
		}
		result = string(b)
	}
	if n.IdempotencyKey != "" {
		if err := text.Key("idempotency key", n.IdempotencyKey, 255); err != nil {
			return nil, nil, fmt.Errorf("consume log: event %s: %w", n.EventID, err)
		}
	}
	return nullText(n.IdempotencyKey), result, nil
}

// Annotate stores the notes of deliveries that are marked SUCCESS in tx. It finds each row by uk_event_consumer.
func (m Marks) Annotate(ctx context.Context, tx bun.Tx, consumer string, notes []Note) error {
	for _, n := range notes {
		key, result, err := n.values()
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "UPDATE "+deliveryTable+" SET idempotency_key = ?, consume_result = ? "+
			"WHERE consumer_name = ? AND event_id = ?", key, result, consumer, n.EventID)
		if err != nil {
			return fmt.Errorf("consume log: record result of event %s: %w", n.EventID, err)
		}
	}
	return nil
}

// countSuccess stands outside the WHERE: inside, PostgreSQL without statistics would choose the index over states.
const countSuccess = "COUNT(CASE WHEN status = 'SUCCESS' THEN 1 END)"

// Marked reports whether the deliveries of all the events have SUCCESS rows. It reads uk_event_consumer.
func (m Marks) Marked(ctx context.Context, idb bun.IDB, consumer string, eventIDs []string) (bool, error) {
	var n int
	err := idb.QueryRowContext(ctx, "SELECT "+countSuccess+" FROM "+deliveryTable+" WHERE consumer_name = ? AND event_id IN (?)",
		consumer, bun.List(eventIDs)).Scan(&n)
	if err != nil {
		return false, fmt.Errorf("consume log: verify deliveries: %w", err)
	}
	return n == len(eventIDs), nil
}

// Held is what the last look before COMMIT saw.
type Held struct {
	Marked bool  // tx still holds the SUCCESS row: a transaction that the server silently ended has lost it
	Leased bool  // the event is still leased by its owner under the given lock version
	Now    int64 // in microseconds since the epoch, by the database's clock: the caller sees which other leases have run out
}

// Holds takes the last look before COMMIT, at one delivery of the transaction, by uk_event_consumer and the primary key of
// the event.
func (m Marks) Holds(ctx context.Context, tx bun.Tx, consumer, eventID, owner string, lease dialect.Pair) (h Held, err error) {
	rows, err := m.stmts.On(tx).QueryContext(ctx,
		"SELECT (SELECT "+countSuccess+" FROM "+deliveryTable+" WHERE consumer_name = ? AND event_id = ?), "+
			"(SELECT COUNT(CASE WHEN lock_version = ? AND locked_by = ? AND status = 'DISPATCHING' THEN 1 END) FROM "+eventTable+" WHERE id = ?), "+
			m.d.Micros(m.d.Now), consumer, eventID, lease.Version, owner, lease.ID)
	if err != nil {
		return h, fmt.Errorf("consume log: verify deliveries: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := rows.Scan(&h.Marked, &h.Leased, &h.Now); err != nil {
			return h, fmt.Errorf("consume log: verify deliveries: %w", err)
		}
	}
	return h, rows.Err()
}
