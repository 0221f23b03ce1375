package store

import (
	"context"
	"fmt"

	"github.com/uptrace/bun"
)

// InWay is what a claim must know of an aggregate beside the events that it has locked.
type InWay struct {
	// First is the first event, by outbox id, that another instance has leased or may take, 0 for none.
	First int64
	// Leased says that an event of the aggregate that was not locked is leased, by whomever, and may run.
	Leased bool
	// Shared says that a delivery of the aggregate is open in the log, or an event that the claim has not locked is in
	// hand: consumers have to ask before they run what was claimed.
	Shared bool
}

// LookAround tells, for one event of each aggregate in heads, what is in the way of those that this transaction has
// locked. Leases of owner are in nobody's way. Parked events are not either: consumers that take them ask.
func (o Order) LookAround(ctx context.Context, idb bun.IDB, owner string, heads, locked []int64) (map[int64]InWay, error) {
	rows, err := o.stmts.On(idb).QueryContext(ctx, "SELECT e.id, "+o.Around()+" FROM "+o.d.Keyed(eventTable)+" WHERE e.id IN (?)", locked, owner, locked, locked, heads)
	if err != nil {
		return nil, fmt.Errorf("look around events: %w", err)
	}
	defer rows.Close()
	found := make(map[int64]InWay, len(heads))
	for rows.Next() {
		var id, first, shared int64
		if err := rows.Scan(&id, &first, &shared); err != nil {
			return nil, fmt.Errorf("look around events: %w", err)
		}
		found[id] = InWayOf(first, shared)
	}
	return found, rows.Err()
}

// Around are two columns of an event e of an aggregate, for the ids of those that whoever asks has locked or leased, the
// owner's name, and the ids twice more: the id of the first in the way; and 1 if consumers have to ask, 2 if another event
// is leased besides. [InWayOf] reads them.
func (o Order) Around() string {
	// In a CASE: PostgreSQL would see that such an event is not SENT, and take an index that holds all that is open.
	leased := "CASE WHEN p.status = 'DISPATCHING' AND p.next_retry_at > " + o.d.Now + " THEN 1 ELSE 0 END = 1"
	first := "SELECT p.id FROM " + o.d.InHand(eventTable, "p", "e") +
		" AND NOT (p.id IN (?)) AND p.status <> 'SCHEDULED' AND NOT (" + leased + " AND p.locked_by = ?)" +
		" ORDER BY " + o.d.AlongHand("p") + " LIMIT 1"
	others := "EXISTS (SELECT 1 FROM " + o.d.InHand(eventTable, "p", "e") + " AND NOT (p.id IN (?))"
	return "COALESCE((" + first + "), 0), CASE WHEN " + others + " AND " + leased + ") THEN 2 WHEN " + others + ") OR EXISTS (SELECT 1 FROM " + o.d.Waiting(deliveryTable, "l", "e") +
		") OR EXISTS (SELECT 1 FROM " + o.d.Dead(deliveryTable, "l", "e") + ") THEN 1 ELSE 0 END"
}

// InWayOf is what the columns of [Order.Around] say.
func InWayOf(first, shared int64) InWay {
	return InWay{First: first, Leased: shared == 2, Shared: shared != 0}
}

// Probe locks an event, and reports whether it could: otherwise somebody is claiming it.
func (o Order) Probe(ctx context.Context, tx bun.Tx, id int64) (bool, error) {
	var n int
	rows, err := tx.QueryContext(ctx, "SELECT e.id FROM "+o.d.Keyed(eventTable)+" WHERE e.id = ?"+o.d.SkipLocked, id)
	if err != nil {
		return false, fmt.Errorf("probe event %d: %w", id, err)
	}
	defer rows.Close()
	for rows.Next() {
		n++
	}
	return n == 1, rows.Err()
}
