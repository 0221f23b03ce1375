package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/eventrow"
)

// Here are the statements of every event, in the order in which they are sent: it is inserted and leased, its delivery is marked,
// asks about the order and takes a last look before COMMIT, and its lease ends.

// insert inserts events by one statement, if the transaction takes as many values.
func (s Saving) insert(ctx context.Context, tx Tx, events []NewEvent, ignore string) error {
	for chunk := range slices.Chunk(events, tx.mostEvents(len(events))) {
		query, args := insertEvents(s.d, chunk)
		query, args = tx.notify(query+ignore, args)
		isSame := len(chunk) == 1 // the text of more is a different one for each number
		if _, err := tx.exec(ctx, isSame, query, args...); err != nil {
			return err
		}
	}
	return nil
}

// insertColumns are those that an INSERT of events names. What is as the columns' defaults say is left to them: half the statement,
// which is what saving costs.
type insertColumns struct {
	names                 string
	others, traced, keyed bool
}

func insertColumnsOf(events []NewEvent) (c insertColumns) {
	for i := range events {
		c.others = c.others || !events[i].isPlain()
		c.traced = c.traced || events[i].TraceID != ""
		c.keyed = c.keyed || events[i].IsKeyed
	}
	c.names = plainColumns
	if c.others {
		c.names += otherColumns
	}
	if c.traced {
		c.names += ", trace_id"
	}
	if c.keyed {
		c.names += ", event_key"
	}
	return c
}

// row is one event as the list of its values.
func (c insertColumns) row(d dialect.Dialect, e *NewEvent) (values string, args []any) {
	status, due := "NEW", d.Now
	args = append(make([]any, 0, 18), e.AggregateType, e.AggregateID, e.Type, e.ID, e.Payload, e.Metadata)
	if !e.DeliverAt.IsZero() {
		status, due = "SCHEDULED", d.At
		args = append(args, e.DeliverAt.UnixMicro())
	}
	values = "?, ?, ?, ?, ?, ?, " + due
	if c.others {
		values += ", ?, ?, ?, ?, ?"
		args = append(args, orNull(e.TenantID), orNull(e.StoreID), e.SchemaVersion, status, e.MaxAttempts)
	}
	if c.traced {
		values += ", ?"
		args = append(args, orNull(e.TraceID))
	}
	if c.keyed {
		values += ", ?"
		args = append(args, orNull(e.Key))
	}
	return values, args
}

// insertEvents builds one INSERT of all events.
func insertEvents(d dialect.Dialect, events []NewEvent) (string, []any) {
	c := insertColumnsOf(events)
	var b strings.Builder
	b.WriteString("INSERT INTO " + eventTable + " (" + c.names + ") VALUES ")
	args := make([]any, 0, len(events)*14)
	for i := range events {
		if i > 0 {
			b.WriteString(", ")
		}
		values, of := c.row(d, &events[i])
		b.WriteString("(" + values + ")")
		args = append(args, of...)
	}
	return b.String(), args
}

// isFresh is the condition on events e that nobody has ever leased. The status is hidden in a CASE: PostgreSQL would go
// along the index of due events, which holds all that are open.
const isFresh = " AND CASE WHEN e.status = 'NEW' THEN 1 END = 1 AND e.lock_version = 0"

// LeaseFresh leases those of the events, by their event_ids, that nobody has leased or locked, by uk_event_id, and returns their
// rows, by the primary key, with the first event in the way of each in Extra. It looks after they are leased: a claim of
// an event that was delayed does the same, so one of two sees the other. It does not wait for locks.
func (c Claims) LeaseFresh(ctx context.Context, idb bun.IDB, l Lease, eventIDs []string) ([]eventrow.Row, error) {
	ids, err := c.leaseFresh(ctx, idb, l, eventIDs)
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	return readEvents(c.stmts.On(idb).QueryContext(ctx, "SELECT "+eventrow.Columns(c.d)+", "+c.order.FirstPredecessor()+
		" FROM "+c.d.Keyed(eventTable)+
		" WHERE e.id IN (?) AND CASE WHEN e.status = 'DISPATCHING' THEN 1 END = 1 AND e.locked_by = ? AND e.lock_version = 1", ids, l.Owner,
		ids, l.Owner))
}

// leaseFresh leases the events and returns their ids. It does not wait for an open transaction of a producer, which may
// hold any key.
func (c Claims) leaseFresh(ctx context.Context, idb bun.IDB, l Lease, eventIDs []string) ([]int64, error) {
	lease := "UPDATE " + c.d.Keyed(eventTable) + " SET status = 'DISPATCHING', locked_by = ?, lock_version = 1, " +
		"next_retry_at = " + c.d.After + ", updated_at = " + c.d.Now
	free := "SELECT e.id FROM " + c.d.ByEventID(eventTable) + " WHERE e.event_id IN (?)" + isFresh + c.d.SkipLocked
	db, args := c.stmts.On(idb), []any{l.Owner, dialect.Micro(l.For)}
	if c.d.Name == "postgres" {
		return readIDs(db.QueryContext(ctx, lease+" WHERE e.id IN (SELECT f.id FROM ("+free+") AS f) RETURNING e.id", append(args, eventIDs)...))
	}
	found, err := readIDs(db.QueryContext(ctx, free, eventIDs))
	if err != nil || len(found) == 0 {
		return nil, err
	}
	res, err := db.ExecContext(ctx, lease+" WHERE e.id IN (?)"+isFresh, append(args, found)...)
	if err != nil {
		return nil, err
	}
	if n, err := res.RowsAffected(); err == nil && n == int64(len(found)) {
		return found, nil
	}
	return readIDs(db.QueryContext(ctx, "SELECT e.id FROM "+c.d.Keyed(eventTable)+" WHERE e.id IN (?) AND e.locked_by = ? "+
		"AND e.lock_version = 1", found, l.Owner))
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
	Past    int64 // first event that an open backfill still has to give to the consumer
}

// Before reports whether anything is ahead of the event, or a delivery of its aggregate runs elsewhere.
func (a Ahead) Before(id int64) bool {
	for _, first := range []int64{a.Waiting, a.Dead, a.InHand, a.Past} {
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

// question is the statement and its arguments. The parts that are not needed are left out: of a question about one event, to parse and
// plan a part takes longer than to answer it.
func (o Order) question(g Gate, ids, heads []int64) (string, []any) {
	const standing = "SELECT e.id, e.status, e.lock_version, COALESCE(e.locked_by, ''), "
	var parts []string
	var args []any
	if len(heads) > 0 {
		from, e, ofHeads := o.d.Heads(eventTable, heads)
		ahead, ofAhead := o.ahead(g, e, slices.Max(ids))
		parts, args = append(parts, standing+ahead+" FROM "+from), append(ofAhead, ofHeads...)
	}
	rest := slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { _, is := slices.BinarySearch(heads, id); return is })
	if len(rest) > 0 {
		from, _, ofRest := o.d.Heads(eventTable, rest)
		parts, args = append(parts, standing+"0, 0, 0 FROM "+from), append(args, ofRest...)
	}
	return strings.Join(parts, " UNION ALL "), args
}

// ahead are three columns, and their arguments: what is ahead of an event in its aggregate, of events up to the last.
func (o Order) ahead(g Gate, e string, last int64) (string, []any) {
	waiting, args := o.firstWaiting(g, e)
	dead, hand := "0", "0"
	if !g.PassDead {
		dead, args = o.firstDead(e), append(args, g.Consumer)
	}
	if !g.Replay {
		hand, args = o.firstInHand(g, e), append(args, last, g.Types, g.Consumer, g.Consumer)
	}
	return waiting + ", " + dead + ", " + hand, args
}

// firstWaiting is a column: the first delivery of an event's aggregate that is neither done nor DEAD, below 0 if another
// instance has leased it, and its arguments.
func (o Order) firstWaiting(g Gate, e string) (string, []any) {
	running := "l.status = 'PROCESSING' AND l.next_retry_at > " + o.d.Now
	mine, args := "", []any{g.Owner, g.Consumer}
	if g.TrustsOwner {
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

// countSuccess stands outside the WHERE: inside, PostgreSQL without statistics would choose the index over states.
const countSuccess = "COUNT(CASE WHEN status = 'SUCCESS' THEN 1 END)"

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

// heldBy hides the status in an expression: PostgreSQL would go along the index of open events, which holds
// few when it plans a prepared statement, and very many in a backlog.
const heldBy = "e.locked_by = ? AND CASE WHEN e.status = 'DISPATCHING' THEN 1 END = 1"

// lastError is an error of an event's open deliveries, by uk_event_consumer. Like [heldBy] it hides their status.
const lastError = "SELECT MAX(CASE WHEN l.status IN ('FAILED', 'DEAD') THEN l.error_message END)" +
	" FROM " + deliveryTable + " l WHERE l.event_id = e.event_id"

// Ending is how the lease of an event ends.
type Ending struct {
	Status string
	Delay  time.Duration // until it is due again, if it is to be claimed again
	Failed bool          // a delivery has failed, and the event keeps what it said
}

// End ends leases of the owner that all have one lock version, by primary key, and tells how many events the owner did
// not hold: they stay as they are.
func (s Settling) End(ctx context.Context, idb bun.IDB, owner string, ids []int64, version int64, e Ending) (missing int, err error) {
	set, args := "status = ?, locked_by = NULL, lock_version = lock_version + 1, updated_at = "+s.d.Now, []any{e.Status}
	switch {
	case e.Status == "SENT":
		set += ", next_retry_at = NULL, last_error = NULL, sent_at = " + s.d.Now
	case e.Status == "SCHEDULED" || e.Status == "NEW":
		set += ", next_retry_at = " + s.d.After
		args = append(args, dialect.Micro(e.Delay))
	case e.Failed:
		set += ", next_retry_at = NULL, last_error = (" + lastError + ")"
	default:
		set += ", next_retry_at = NULL, last_error = NULL"
	}
	query := "UPDATE " + s.d.Keyed(eventTable) + " SET " + set + " WHERE " + dialect.Under + " AND " + heldBy
	return missed(len(ids))(s.stmts.On(idb).ExecContext(ctx, query, append(args, ids, version, owner)...))
}
