package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// ActionStart is the action of a backfill that a consumer's StartFrom asks for. Publishers do it.
const ActionStart = "start"

// OpenBackfill is the condition of the rows of bc_bulk_operation that give past events to a consumer and are not over, by idx_state:
// later events of an aggregate wait behind past ones that such an operation still has to give. One that has failed can be resumed.
const OpenBackfill = "state IN ('RUNNING', 'FAILED') AND consumer_name IS NOT NULL"

// Backfilled are the keys of the consumers of which a backfill is open.
func (r Registry) Backfilled(ctx context.Context, idb bun.IDB) (keys []string, err error) {
	err = r.each(ctx, idb, func(rows *sql.Rows) error {
		var key string
		err := rows.Scan(&key)
		keys = append(keys, key)
		return err
	}, "SELECT DISTINCT consumer_name FROM bc_bulk_operation WHERE "+OpenBackfill)
	return keys, err
}

// Enter registers consumers that no instance has registered yet and that want a part of the past, each in one transaction with the
// backfill of it: of several instances one does it. From its COMMIT on nothing is SENT without the consumer.
func (r Registry) Enter(ctx context.Context, db *bun.DB, consumers []Announcement) error {
	wanted := slices.DeleteFunc(slices.Clone(consumers), func(c Announcement) bool { return c.StartFrom.IsZero() })
	if len(wanted) == 0 {
		return nil
	}
	keys := make([]string, len(wanted))
	for i, c := range wanted {
		keys[i] = c.Key
	}
	known, err := readTexts(db.QueryContext(ctx, "SELECT name FROM bc_consumer WHERE name IN (?)", bun.List(keys)))
	if err != nil {
		return err
	}
	for _, c := range wanted {
		if slices.Contains(known, c.Key) {
			continue
		}
		err := db.RunInTx(ctx, r.d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) error { return r.enter(ctx, db, tx, c) })
		if err != nil && dialect.Classify(err) != dialect.Duplicate { // otherwise another instance was faster
			return err
		}
	}
	return nil
}

// startRequest is what stands in bc_bulk_operation.request of a consumer's start, as package ops reads it.
type startRequest struct {
	Query struct {
		Since time.Time `json:"since"`
	} `json:"query"`
	Consumer string `json:"consumer"`
}

// enter writes the rows. Where the past ends is found out later: what is committed while this transaction is open may not be seen.
func (r Registry) enter(ctx context.Context, db *bun.DB, tx bun.Tx, c Announcement) error {
	values, err := r.values(db, c)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, insertConsumers+values); err != nil {
		return err
	}
	asked := startRequest{Consumer: c.Key}
	asked.Query.Since = c.StartFrom
	request, err := json.Marshal(asked)
	if err != nil {
		return err
	}
	const by, reason = "publisher", "ConsumerConfig.StartFrom of a consumer that is registered for the first time"
	id := uuid.Must(uuid.NewV7()).String()
	_, err = tx.ExecContext(ctx, "INSERT INTO bc_bulk_operation (operation_id, action, request, actor, reason, total_more, consumer_name, "+
		"created_at, updated_at) VALUES (?, ?, ?, ?, ?, 1, ?, "+r.d.Now+", "+r.d.Now+")", id, ActionStart, string(request), by, reason, c.Key)
	if err != nil {
		return err
	}
	return WriteAudit(ctx, tx, r.d, AuditEntry{
		Actor: by, Action: "bulk " + ActionStart, Target: id, Reason: reason, Details: string(request),
	})
}

// Backfills are the operations that give new consumers the past that their StartFrom asks for.
type Backfills struct{ d dialect.Dialect }

// NewBackfills returns the statements in the words of a database.
func NewBackfills(d dialect.Dialect) Backfills { return Backfills{d} }

// Backfill is one of them.
type Backfill struct {
	ID            string
	Since         time.Time
	Reached, UpTo int64 // outbox ids: where it has got to, and where it ends
}

// mostCounted is how far the events of a backfill are counted, as those of other operations.
const mostCounted = 10_000

// Lock locks the oldest running backfill of a consumer, by idx_state, unless another instance has locked it; ok is false if there is
// none. At first it finds out where the past ends: the consumer is registered by then, and what is committed later gets there by
// itself.
func (b Backfills) Lock(ctx context.Context, tx bun.Tx, consumer string) (f Backfill, ok bool, err error) {
	var request string
	err = tx.QueryRowContext(ctx, "SELECT operation_id, "+b.d.Text("request")+", reached, up_to FROM bc_bulk_operation "+
		"WHERE state = 'RUNNING' AND action = ? AND consumer_name = ? ORDER BY id LIMIT 1"+b.d.SkipLocked, ActionStart, consumer).
		Scan(&f.ID, &request, &f.Reached, &f.UpTo)
	if errors.Is(err, sql.ErrNoRows) {
		return f, false, nil
	}
	if err != nil {
		return f, false, fmt.Errorf("lock the backfill of %s: %w", consumer, err)
	}
	var asked startRequest
	if err := json.Unmarshal([]byte(request), &asked); err != nil {
		return f, false, fmt.Errorf("the backfill %s of %s cannot be read: cancel it, bluecone bulk cancel: %w", f.ID, consumer, err)
	}
	if f.Since = asked.Query.Since; f.UpTo != 0 {
		return f, true, nil
	}
	if f.UpTo, err = b.last(ctx, tx); err == nil {
		_, err = tx.ExecContext(ctx, "UPDATE bc_bulk_operation SET up_to = ?, total_more = 0, total = (SELECT COUNT(*) FROM (SELECT 1 FROM "+
			eventTable+" WHERE id <= ? LIMIT ?) AS e) WHERE operation_id = ?", f.UpTo, f.UpTo, mostCounted, f.ID)
	}
	if err == nil {
		_, err = tx.ExecContext(ctx, "UPDATE bc_bulk_operation SET total_more = 1 WHERE operation_id = ? AND total = ?", f.ID, mostCounted)
	}
	return f, true, err
}

// last is the id of the newest event, by the primary key. Without any it is one that none has had: 0 means unknown.
func (b Backfills) last(ctx context.Context, tx bun.Tx) (id int64, err error) {
	err = tx.QueryRowContext(ctx, "SELECT COALESCE((SELECT id FROM "+eventTable+" ORDER BY id DESC LIMIT 1), 1)").Scan(&id)
	return id, err
}

// PastEvent is an event that was saved before a backfill began.
type PastEvent struct {
	Delivery

	SavedAt time.Time
}

// Past lists the next events of a backfill, of any type, by the primary key. Consumer is left out.
func (b Backfills) Past(ctx context.Context, tx bun.Tx, f Backfill, most int) (events []PastEvent, err error) {
	err = EachRow(ctx, tx, func(rows *sql.Rows) error {
		var e PastEvent
		var saved int64
		err := rows.Scan(&e.OutboxID, &e.EventID, &e.EventType, &e.AggregateType, &e.AggregateID, (*tenant)(&e.TenantID), &saved)
		e.SavedAt = time.UnixMicro(saved)
		events = append(events, e)
		return err
	}, "SELECT id, event_id, event_type, aggregate_type, aggregate_id, COALESCE(tenant_id, 0), "+b.d.Micros("created_at")+" FROM "+
		eventTable+" WHERE id > ? AND id <= ? ORDER BY id LIMIT ?", f.Reached, f.UpTo, most)
	if err != nil {
		return nil, fmt.Errorf("read past events: %w", err)
	}
	return events, nil
}

// BackfillStep is what a backfill has done since the last time.
type BackfillStep struct {
	Reached      int64
	Given, Other int // events that were given to the consumer, and others
	IsOver       bool
}

// Save writes a step down. The transaction has locked the operation.
func (b Backfills) Save(ctx context.Context, tx bun.Tx, id string, s BackfillStep) error {
	set := ""
	if s.IsOver {
		set = ", state = 'DONE', finished_at = " + b.d.Now
	}
	_, err := tx.ExecContext(ctx, "UPDATE bc_bulk_operation SET reached = ?, seen = seen + ?, done = done + ?, passed = passed + ?, "+
		"updated_at = "+b.d.Now+set+" WHERE operation_id = ?", s.Reached, s.Given+s.Other, s.Given, s.Other, id)
	return err
}

// Waiting counts the deliveries that a consumer's backfill has made and that are due, up to so many, along idx_consumer_due.
func (b Backfills) Waiting(ctx context.Context, idb bun.IDB, consumer string, most int) (n int, err error) {
	err = idb.QueryRowContext(ctx, "SELECT COUNT(*) FROM (SELECT outbox_id FROM "+b.d.DueDeliveries(deliveryTable)+
		" WHERE consumer_name = ? AND status = 'PENDING'"+inDueIndex+" AND next_retry_at <= "+b.d.Now+" ORDER BY next_retry_at, id LIMIT ?)"+
		" AS l WHERE l.outbox_id <= (SELECT MAX(reached) FROM bc_bulk_operation WHERE state = 'RUNNING' AND consumer_name = ?)",
		consumer, most, consumer).Scan(&n)
	return n, err
}

// firstPast is the first event of each aggregate that an open backfill of the consumer still has to give to it, by the outbox id of
// the head of the aggregate; last is the last event of it that is asked about. Aggregates without a past one before that are
// missing. Ask this before the question: what a backfill gives meanwhile is in the log by then. It looks along the past events of the
// aggregate, while a backfill of the consumer is open; past events themselves, which come in their order, cost only a look at it.
func (o Order) firstPast(ctx context.Context, idb bun.IDB, g Gate, last map[int64]int64) (map[int64]int64, error) {
	if !g.Ordered || !g.IsFilled || g.Replay {
		return nil, nil //nolint:nilnil // no event is before any
	}
	from, to, err := toGive(ctx, idb, g.Consumer)
	if err != nil || to == 0 {
		return nil, err
	}
	heads := slices.DeleteFunc(slices.Sorted(maps.Keys(last)), func(head int64) bool { return last[head] <= from })
	if len(heads) == 0 {
		return nil, nil //nolint:nilnil // all that comes before them was given
	}
	first := make(map[int64]int64)
	err = EachRow(ctx, idb, func(rows *sql.Rows) error {
		var head, past int64
		err := rows.Scan(&head, &past)
		if past != 0 {
			first[head] = past
		}
		return err
	}, "SELECT e.id, COALESCE((SELECT p.id FROM "+o.d.SameAggregate(eventTable, "p", "e")+
		" AND p.id > ? AND p.id <= ? AND p.status <> 'SCHEDULED'"+
		" AND (p.event_type IN (?) OR "+pastIsTaken+") AND "+pastIsNew+
		" ORDER BY "+o.d.AlongAggregate("p")+" LIMIT 1), 0) FROM "+o.d.Keyed(eventTable)+" WHERE e.id IN (?)",
		from, to, bun.List(g.Types), g.Consumer, g.Consumer, bun.List(heads))
	return first, err
}

// toGive is where the events are that open backfills of a consumer still have to give to it: behind the id from, and up to the id
// to, which is 0 without a backfill.
func toGive(ctx context.Context, idb bun.IDB, consumer string) (from, to int64, err error) {
	err = idb.QueryRowContext(ctx, "SELECT COALESCE(MIN(reached), 0), COALESCE(MAX(CASE WHEN up_to = 0 THEN 9223372036854775807 "+
		"ELSE up_to END), 0) FROM bc_bulk_operation WHERE "+OpenBackfill+" AND consumer_name = ?", consumer).Scan(&from, &to)
	return from, to, err
}

// The conditions of past events p, each with the consumer as its argument: the consumer takes their type, and has had none of them.
const (
	pastIsTaken = "EXISTS (SELECT 1 FROM bc_consumer_type t WHERE t.consumer_name = ? AND t.event_type = p.event_type)"
	pastIsNew   = "0 = (SELECT COUNT(*) FROM " + deliveryTable + " l WHERE l.event_id = p.event_id AND l.consumer_name = ?)"
)

// openPast counts the events of an aggregate that open backfills still have to give to a consumer and that are not in hand, along
// idx_aggregate: it reads the past of the aggregate, while a backfill of the consumer is open. Ask this before
// the question about deliveries: what a backfill gives meanwhile is in the log by then.
func openPast(ctx context.Context, idb bun.IDB, d dialect.Dialect, a Aggregate, consumer string) (n int, err error) {
	from, to, err := toGive(ctx, idb, consumer)
	if err != nil || to == 0 {
		return 0, err
	}
	err = idb.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+d.OfAggregate(eventTable, "p", "?", "?", "?")+" AND p.id > ? AND p.id <= ?"+
		" AND p.status IN ('SENT', 'FAILED', 'DEAD') AND "+pastIsTaken+" AND "+pastIsNew,
		a.Type, a.ID, a.Tenant, from, to, consumer, consumer).Scan(&n)
	return n, err
}
