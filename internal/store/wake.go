package store

import (
	"context"
	"fmt"
	"strings"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// PutOffAggregate is an aggregate whose next delivery after an event is not due yet.
type PutOffAggregate struct {
	Aggregate

	After int64 // the outbox id of the event
}

// PutOffIn finds, of the aggregates of the given events, one event of each, those whose next delivery to the consumer is PENDING
// and not due: events by the primary key, deliveries by idx_open_aggregate, or idx_waiting.
func (o Order) PutOffIn(ctx context.Context, idb bun.IDB, consumer string, heads []int64) ([]PutOffAggregate, error) {
	next := "SELECT CASE WHEN l.status = 'PENDING' AND l.next_retry_at > " + o.d.Now +
		" AND l.next_retry_at < " + o.d.Never + " THEN 1 ELSE 0 END FROM " + o.d.Waiting(deliveryTable, "l", "e") +
		" AND " + o.d.Receiver("l") + " = ? AND l.outbox_id > e.id ORDER BY " + o.d.AlongOpen("l") + " LIMIT 1"
	rows, err := o.stmts.On(idb).QueryContext(ctx, "SELECT e.id, COALESCE(e.tenant_id, 0), e.aggregate_type, e.aggregate_id, "+
		"COALESCE(("+next+"), 0) FROM "+
		o.d.Keyed(eventTable)+" WHERE e.id IN (?)", consumer, heads)
	if err != nil {
		return nil, fmt.Errorf("look behind finished deliveries: %w", err)
	}
	defer rows.Close()
	var found []PutOffAggregate
	for rows.Next() {
		var s PutOffAggregate
		var isPutOff bool
		if err := rows.Scan(&s.After, (*tenant)(&s.Tenant), &s.Type, &s.ID, &isPutOff); err != nil {
			return nil, fmt.Errorf("look behind finished deliveries: %w", err)
		}
		if isPutOff {
			found = append(found, s)
		}
	}
	return found, rows.Err()
}

// Behind lists the waiting deliveries of a consumer, by the ids of their rows, that come next in aggregates: at most so many of
// each, by idx_open_aggregate, or idx_waiting. What was left to others is not among them.
func (o Order) Behind(ctx context.Context, idb bun.IDB, consumer string, in []PutOffAggregate, most int) ([]int64, error) {
	// What is put off is seldom much, and each aggregate needs a limit of its own.
	var parts []string
	var args []any
	for _, s := range in {
		parts = append(parts, "SELECT id FROM (SELECT l.id FROM "+o.d.WaitingOf(deliveryTable, "l")+
			" AND "+o.d.Receiver("l")+" = ? AND l.outbox_id > ? AND l.next_retry_at < "+o.d.Never+" ORDER BY l.outbox_id LIMIT ?) AS a")
		args = append(args, s.Tenant, s.Type, s.ID, consumer, s.After, most)
	}
	ids, err := readIDs(idb.QueryContext(ctx, strings.Join(parts, " UNION ALL "), args...))
	if err != nil {
		return nil, fmt.Errorf("look for deliveries that come next: %w", err)
	}
	return ids, nil
}

// WakeEvents makes the deliveries of events to a consumer due that wait without having been left to others, by uk_event_consumer.
func (o Order) WakeEvents(ctx context.Context, idb bun.IDB, consumer string, eventIDs []string) error {
	_, err := idb.ExecContext(ctx, "UPDATE "+o.d.Delivered(deliveryTable)+" SET next_retry_at = "+o.d.Now+
		" WHERE consumer_name = ? AND event_id IN (?) AND CASE WHEN status IN ('PENDING', 'FAILED') THEN 1 END = 1"+
		" AND next_retry_at > "+o.d.Now+" AND next_retry_at < "+o.d.Never, consumer, bun.List(eventIDs))
	if err != nil {
		return fmt.Errorf("wake deliveries that were put off: %w", err)
	}
	return nil
}

// WakeUp makes deliveries that wait due, by the ids of their rows, at the place of their age: behind all that is due, they would
// wait for a backlog that is younger than they are, and with them whatever waits for them. It finds them by their primary key.
func (o Order) WakeUp(ctx context.Context, idb bun.IDB, ids []int64) error {
	due := "CASE WHEN e.created_at < " + o.d.Now + " THEN e.created_at ELSE " + o.d.Now + " END" // a clock may have been ahead
	_, err := idb.ExecContext(ctx, o.d.UpdateIDs(deliveryTable, dialect.Pairs(ids), "next_retry_at = "+due, "e.status = 'PENDING'"))
	return err
}
