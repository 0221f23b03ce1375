package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/uptrace/bun"
)

// Around is what a claim must know of an aggregate beside the events that it has locked.
type Around struct {
	// First is the first event, by outbox id, that another instance has leased or may take, 0 for none.
	First int64
	// LastLeased is the last event, by outbox id, that was not locked and that any instance has leased and may run, 0 for none.
	LastLeased int64
}

// LookAround tells, for one event of each aggregate in heads, what is in the way of those that this transaction has
// locked. Leases of owner are in nobody's way. Parked events are not either: consumers that take them ask. What comes behind
// the last one, and what else is leased, it tells only if it is asked for late events, which must not pass that.
func (o Order) LookAround(ctx context.Context, idb bun.IDB, owner string, heads, locked []int64, late bool) (map[int64]Around, error) {
	if len(locked) == 0 { // others have locked all that was due
		return nil, nil //nolint:nilnil // a nil map is an empty one
	}
	from, e, ofHeads := o.d.Heads(eventTable, heads)
	first, leased, args := o.firstPredecessor(e, o.d.UpTo("p", o.isPredecessor())), "0", []any{slices.Max(locked), locked, owner}
	if late {
		first, args = o.firstPredecessor(e, " AND "+o.isPredecessor()), []any{locked, owner, locked}
		const last = "MAX(p.id + 0)" // PostgreSQL would walk along the primary key for the MAX of an id
		leased = "COALESCE((SELECT " + last + " FROM " + o.d.InHand(eventTable, "p", e) + " AND NOT (p.id IN (?)) AND " + o.leased() + "), 0)"
	}
	rows, err := o.stmts.On(idb).QueryContext(ctx, "SELECT e.id, "+first+", "+leased+" FROM "+from, append(args, ofHeads...)...)
	if err != nil {
		return nil, fmt.Errorf("look around events: %w", err)
	}
	defer rows.Close()
	found := make(map[int64]Around, len(heads))
	for rows.Next() {
		var id int64
		var w Around
		if err := rows.Scan(&id, &w.First, &w.LastLeased); err != nil {
			return nil, fmt.Errorf("look around events: %w", err)
		}
		found[id] = w
	}
	return found, rows.Err()
}

// FirstPredecessor is a column of an event e, for the ids of those that the caller has locked or leased, and the owner's name:
// the id of the first event in the way of its aggregate, 0 for none.
func (o Order) FirstPredecessor() string { return o.firstPredecessor("e", " AND "+o.isPredecessor()) }

func (o Order) firstPredecessor(e, cond string) string {
	return "COALESCE((SELECT p.id FROM " + o.d.InHand(eventTable, "p", e) + cond + " ORDER BY " + o.d.AlongHand("p") + " LIMIT 1), 0)"
}

// isPredecessor is the condition that an event p has to be waited for.
func (o Order) isPredecessor() string {
	return "NOT (p.id IN (?)) AND p.status <> 'SCHEDULED' AND NOT (" + o.leased() + " AND p.locked_by = ?)"
}

// leased is the condition that an event p is leased. In a CASE: PostgreSQL would see that such an event is not SENT, and
// take an index that holds all that is open.
func (o Order) leased() string {
	return "CASE WHEN p.status = 'DISPATCHING' AND p.next_retry_at > " + o.d.Now + " THEN 1 ELSE 0 END = 1"
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
