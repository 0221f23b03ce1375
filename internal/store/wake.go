package store

import (
	"context"
	"fmt"
	"strings"

	"github.com/uptrace/bun"
)

// Sleeping lists waiting deliveries of a consumer, by the ids of their rows, that come next in the aggregates of the given
// events, one event of each, and are not due yet: at most so many of each aggregate.
func (o Order) Sleeping(ctx context.Context, idb bun.IDB, consumer string, heads []int64, most int) ([]int64, error) {
	behind, err := o.sleepers(ctx, idb, consumer, heads)
	if err != nil || len(behind) == 0 {
		return nil, err
	}
	// What sleeps is seldom much, and each aggregate needs a limit of its own.
	var parts []string
	var args []any
	for _, b := range behind {
		parts = append(parts, "SELECT id FROM (SELECT l.id FROM "+o.d.WaitingOf(deliveryTable, "l")+
			" AND "+o.d.Receiver("l")+" = ? AND l.outbox_id > ? AND l.next_retry_at < "+o.d.Never+" ORDER BY l.outbox_id LIMIT ?) AS a")
		args = append(args, b.Tenant, b.Type, b.ID, consumer, b.after, most)
	}
	rows, err := idb.QueryContext(ctx, strings.Join(parts, " UNION ALL "), args...)
	if err != nil {
		return nil, fmt.Errorf("look for deliveries that come next: %w", err)
	}
	defer rows.Close()
	var ids []int64
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, fmt.Errorf("look for deliveries that come next: %w", err)
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

// mostSleepers is how many aggregates one look wakes: the others look again by themselves.
const mostSleepers = 50

// sleeper is an aggregate whose next delivery after an event is not due yet.
type sleeper struct {
	Aggregate
	after int64
}

// sleepers finds the aggregates whose next delivery sleeps.
func (o Order) sleepers(ctx context.Context, idb bun.IDB, consumer string, heads []int64) ([]sleeper, error) {
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
	var found []sleeper
	for rows.Next() {
		var s sleeper
		var sleeps bool
		if err := rows.Scan(&s.after, &s.Tenant, &s.Type, &s.ID, &sleeps); err != nil {
			return nil, fmt.Errorf("look behind finished deliveries: %w", err)
		}
		if sleeps && len(found) < mostSleepers {
			found = append(found, s)
		}
	}
	return found, rows.Err()
}
