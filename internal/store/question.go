package store

import (
	"context"
	"fmt"

	"github.com/uptrace/bun"
)

// Question is what a consumer asks before it runs events: is an earlier event of their aggregate unfinished for it?
//
// The answer has two halves, each one look at an index, however much is open: the first delivery of the aggregate in
// the consumer's part of the log that is not done, and the first event in hand that has no row there yet. Together they
// say the same as "any earlier event", which internal/model shows.
type Question struct {
	// Consumer is the name under which the deliveries stand in the log.
	Consumer string
	// Types are the event types that this release of the consumer takes; those of others are in the registry.
	Types []string
	// PassDead says that DEAD deliveries are in nobody's way.
	PassDead bool
	// LogOnly says that events without a row in the log are in nobody's way: for replays.
	LogOnly bool
	// Owner is the instance that asks.
	Owner string
	// TrustOwner says that the owner's own leases in the log are in nobody's way, because it runs them first.
	TrustOwner bool
}

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

// standings tells how events stand, by outbox id, and for those in heads, one of each aggregate, what is ahead in it: of none,
// where heads is empty. Events whose rows are gone are missing from the answer. Both halves are one statement: what settles in between is not missed.
func (o Order) standings(ctx context.Context, idb bun.IDB, q Question, ids, heads []int64) (map[int64]Standing, error) {
	if len(heads) > 0 {
		if err := o.plainPlans(ctx, idb); err != nil {
			return nil, err
		}
	}
	query, args := o.question(q, heads)
	rows, err := o.stmts.On(idb).QueryContext(ctx, query, append(args, ids)...)
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

// plainPlans keeps PostgreSQL from compiling the question: that takes far longer than answering it.
func (o Order) plainPlans(ctx context.Context, idb bun.IDB) error {
	tx, ok := idb.(bun.Tx)
	if o.d.PlainPlans == "" || !ok {
		return nil
	}
	if _, err := tx.ExecContext(ctx, o.d.PlainPlans); err != nil {
		return fmt.Errorf("check order: %w", err)
	}
	return nil
}

// question is the statement, and its arguments but for the last: the ids.
func (o Order) question(q Question, heads []int64) (string, []any) {
	var args []any
	// only asks for one event of each aggregate.
	only := func(first string, more ...any) string {
		if len(heads) == 0 {
			return "0"
		}
		args = append(append(args, heads), more...)
		return "CASE WHEN e.id IN (?) THEN COALESCE((" + first + "), 0) ELSE 0 END"
	}
	running := "l.status = 'PROCESSING' AND l.next_retry_at > " + o.d.Now
	mine, names := "", []any{q.Owner, q.Consumer}
	if q.TrustOwner {
		mine = " AND NOT (" + running + " AND l.locked_by = ?)"
		names = append(names, q.Owner)
	}
	// The event is looked at in a subquery of its own: PostgreSQL without statistics would join whole tables otherwise.
	const exists = " AND 1 = (SELECT COUNT(CASE WHEN p.status <> 'SENT' THEN 1 END) FROM " + eventTable + " p WHERE p.id = l.outbox_id)"
	first := " AND " + o.d.Receiver("l") + " = ?%s" + exists + " ORDER BY " + o.d.AlongOpen("l") + " LIMIT 1"
	columns := "e.id, e.status, e.lock_version, COALESCE(e.locked_by, ''), " +
		only("SELECT CASE WHEN "+running+" AND l.locked_by <> ? THEN -l.outbox_id ELSE l.outbox_id END FROM "+o.d.Waiting(deliveryTable, "l", "e")+fmt.Sprintf(first, mine), names...)
	if q.PassDead {
		columns += ", 0"
	} else {
		columns += ", " + only("SELECT l.outbox_id FROM "+o.d.Dead(deliveryTable, "l", "e")+fmt.Sprintf(first, ""), q.Consumer)
	}
	if q.LogOnly {
		columns += ", 0"
	} else {
		columns += ", " + only("SELECT p.id FROM "+o.d.InHand(eventTable, "p", "e")+" AND (p.event_type IN (?) OR EXISTS (SELECT 1 FROM bc_consumer_type t WHERE t.consumer_name = ? AND t.event_type = p.event_type)) AND 0 = (SELECT COUNT(*) FROM "+
			deliveryTable+" l WHERE l.event_id = p.event_id AND l.consumer_name = ?) ORDER BY "+o.d.AlongHand("p")+" LIMIT 1", q.Types, q.Consumer, q.Consumer)
	}
	return "SELECT " + columns + " FROM " + o.d.Keyed(eventTable) + " WHERE e.id IN (?)", args
}
