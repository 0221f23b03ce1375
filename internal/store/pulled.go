package store

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/uptrace/bun"
)

// pulledSuffix is not in the name of any consumer: see text.ConsumerName.
const pulledSuffix = "@ledger"

// PulledName is the key under which a database has what a consumer has done with deliveries of a ledger. It is not the consumer's own:
// the ledger may work on the same database, where that one says how the ledger's delivery stands.
func PulledName(consumer string) string { return consumer + pulledSuffix }

// MarkPulled inserts the SUCCESS rows of deliveries that have no event in this database. It must run before their handlers, in the
// same transaction.
func (m Marks) MarkPulled(ctx context.Context, tx bun.Tx, ds []Delivery) error {
	return m.markByValue(ctx, tx, ds)
}

// Done tells which of the events have a SUCCESS row for the consumer, and its result, empty for none. It reads uk_event_consumer.
func (m Marks) Done(ctx context.Context, idb bun.IDB, consumer string, eventIDs []string) (map[string]string, error) {
	done := make(map[string]string)
	err := EachRow(ctx, idb, func(rows *sql.Rows) error {
		var id, result string
		err := rows.Scan(&id, &result)
		done[id] = result
		return err
	}, "SELECT event_id, COALESCE("+m.d.Text("consume_result")+", '') FROM "+deliveryTable+
		" WHERE consumer_name = ? AND event_id IN (?) AND status = 'SUCCESS'", consumer, bun.List(eventIDs))
	if err != nil {
		return nil, fmt.Errorf("consume log: look up what is done: %w", err)
	}
	return done, nil
}
