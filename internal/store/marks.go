package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

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

// mostNotes is how many notes one statement stores.
const mostNotes = 100

// Annotate stores the notes of deliveries that are marked SUCCESS in tx, many in one statement. It finds their rows by
// uk_event_consumer.
func (m Marks) Annotate(ctx context.Context, tx bun.Tx, consumer string, notes []Note) error {
	for some := range slices.Chunk(notes, mostNotes) {
		query, args, err := m.annotation(consumer, some)
		if err != nil {
			return err
		}
		exec := tx.ExecContext
		if len(some) == 1 { // of other numbers there are too many texts to prepare
			exec = m.stmts.On(tx).ExecContext
		}
		if _, err := exec(ctx, query, args...); err != nil {
			return fmt.Errorf("consume log: record the results of %d events, the first of them %s: %w", len(some), some[0].EventID, err)
		}
	}
	return nil
}

func (m Marks) annotation(consumer string, notes []Note) (query string, args []any, err error) {
	var keys, results, ids []any
	for _, n := range notes {
		key, result, err := n.values()
		if err != nil {
			return "", nil, err
		}
		keys, results, ids = append(keys, n.EventID, key), append(results, n.EventID, result), append(ids, n.EventID)
	}
	byEvent := "CASE event_id" + strings.Repeat(" WHEN ? THEN ?", len(notes)) + " END"
	return "UPDATE " + m.d.Delivered(deliveryTable) + " SET idempotency_key = " + byEvent + ", consume_result = " + m.d.JSON(byEvent) +
			" WHERE consumer_name = ? AND event_id IN (" + strings.Repeat("?, ", len(ids)-1) + "?)",
		slices.Concat(keys, results, []any{consumer}, ids), nil
}

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
