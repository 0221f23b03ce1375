package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/uptrace/bun"
)

// Standing is what the database says of an event.
type Standing struct {
	Status  string
	Owner   string // of its lease
	Version int64  // of its lease
	Ahead   Ahead  // of its aggregate, for one event of each that was asked for
}

// Ahead names, by outbox id, the first event of an aggregate that each half of the question finds; 0 is none.
type Ahead struct {
	Waiting int64 // first delivery of the consumer that is neither done nor DEAD
	Running int64 // the same, if another instance has leased it
	Dead    int64 // first delivery that is DEAD
	InHand  int64 // first event in hand without a delivery
}

// Before reports whether anything is ahead of the event, or a delivery of its aggregate runs elsewhere.
func (a Ahead) Before(id int64) bool {
	for _, first := range []int64{a.Waiting, a.Dead, a.InHand} {
		if first != 0 && first < id {
			return true
		}
	}
	return a.Running != 0 && a.Running != id
}

// standings tells how events stand, by outbox id, and for those in heads, in order, one of each aggregate, what is ahead in it:
// of none, where heads is empty. Events whose rows are gone are missing from the answer. Both halves are one statement: what
// settles in between is not missed.
func (o Order) standings(ctx context.Context, idb bun.IDB, g Gate, ids, heads []int64) (map[int64]Standing, error) {
	query, args := o.question(g, ids, heads)
	rows, err := o.stmts.On(idb).QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("check order: %w", err)
	}
	defer rows.Close()
	found := make(map[int64]Standing, len(ids))
	for rows.Next() {
		var id, first int64
		var s Standing
		if err := rows.Scan(&id, &s.Status, &s.Version, &s.Owner, &first, &s.Ahead.Dead, &s.Ahead.InHand); err != nil {
			return nil, fmt.Errorf("check order: %w", err)
		}
		if s.Ahead.Waiting = first; first < 0 {
			s.Ahead.Waiting, s.Ahead.Running = -first, -first
		}
		found[id] = s
	}
	return found, rows.Err()
}

// question is the statement and its arguments.
func (o Order) question(g Gate, ids, heads []int64) (string, []any) {
	const standing = "SELECT e.id, e.status, e.lock_version, COALESCE(e.locked_by, ''), "
	others := standing + "0, 0, 0 FROM " + o.d.Keyed(eventTable) + " WHERE e.id IN (?)"
	if len(heads) == 0 {
		return others, []any{ids}
	}
	from, e := o.d.Heads(eventTable)
	waiting, args := o.firstWaiting(g, e)
	dead, hand := "0", "0"
	if !g.PassDead {
		dead, args = o.firstDead(e), append(args, g.Consumer)
	}
	if !g.Replay {
		hand, args = o.firstInHand(g, e), append(args, slices.Max(ids), g.Types, g.Consumer, g.Consumer)
	}
	rest := slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { _, is := slices.BinarySearch(heads, id); return is })
	return standing + waiting + ", " + dead + ", " + hand + " FROM " + from + " UNION ALL " + others, append(args, heads, rest)
}

// firstWaiting is a column: the first delivery of an event's aggregate that is neither done nor DEAD, below 0 if another
// instance has leased it, and its arguments.
func (o Order) firstWaiting(g Gate, e string) (string, []any) {
	running := "l.status = 'PROCESSING' AND l.next_retry_at > " + o.d.Now
	mine, args := "", []any{g.Owner, g.Consumer}
	if g.trustMine {
		mine = " AND NOT (" + running + " AND l.locked_by = ?)"
		args = append(args, g.Owner)
	}
	return "COALESCE((SELECT CASE WHEN " + running + " AND l.locked_by <> ? THEN -l.outbox_id ELSE l.outbox_id END FROM " +
		o.d.Waiting(deliveryTable, "l", e) + o.firstOpen(mine) + "), 0)", args
}

// firstDead is the same for deliveries that are DEAD.
func (o Order) firstDead(e string) string {
	return "COALESCE((SELECT l.outbox_id FROM " + o.d.Dead(deliveryTable, "l", e) + o.firstOpen("") + "), 0)"
}

// firstOpen ends a look for the first delivery of a consumer. Its event is looked at in a subquery of its own: PostgreSQL
// without statistics would join whole tables otherwise.
func (o Order) firstOpen(more string) string {
	return " AND " + o.d.Receiver("l") + " = ?" + more + " AND 1 = (SELECT COUNT(CASE WHEN p.status <> 'SENT' THEN 1 END) FROM " + eventTable +
		" p WHERE p.id = l.outbox_id) ORDER BY " + o.d.AlongOpen("l") + " LIMIT 1"
}

// firstInHand is a column: the first event in hand of an event's aggregate that the consumer takes and has no row for, or one
// behind all that are asked about.
func (o Order) firstInHand(g Gate, e string) string {
	open := "(p.event_type IN (?) OR EXISTS (SELECT 1 FROM bc_consumer_type t WHERE t.consumer_name = ? AND t.event_type = p.event_type))" +
		" AND 0 = (SELECT COUNT(*) FROM " + deliveryTable + " l WHERE l.event_id = p.event_id AND l.consumer_name = ?)"
	if g.Marked {
		open = "p.id <> e.id AND " + open
	}
	return "COALESCE((SELECT p.id FROM " + o.d.InHand(eventTable, "p", e) + o.d.UpTo("p", open) +
		" ORDER BY " + o.d.AlongHand("p") + " LIMIT 1), 0)"
}
