package store

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/prepared"
)

// Claims are the statements by which a publisher finds, locks and leases events.
// Methods that take a [bun.Tx] lock rows until it ends.
type Claims struct {
	d     dialect.Dialect
	stmts *prepared.Statements
	order Order
}

// NewClaims returns the statements in the words of a database.
func NewClaims(d dialect.Dialect, stmts *prepared.Statements) Claims {
	return Claims{d, stmts, NewOrder(d, stmts)}
}

// DueKind is a kind of due events. Each is of one status, so that a search for them walks along idx_status_next_retry
// and sorts nothing.
type DueKind int

// The kinds of due events.
const (
	DueNew     DueKind = iota // NEW, whatever next_retry_at says: a hand-written NOW() may be hours off
	DueParked                 // SCHEDULED because nobody consumed them, and due again
	DueDelayed                // SCHEDULED by their producers, and due for the first time
	DueExpired                // DISPATCHING, and their leases have run out
)

// isOpen is the condition under which PostgreSQL and SQLite have an event e in idx_status_next_retry:
// SQLite does not see by itself that it holds.
const isOpen = " AND e.status <> 'SENT'"

// alongDue orders events as idx_status_next_retry does.
const alongDue = " ORDER BY e.next_retry_at, e.id LIMIT ?"

// dueOf is the condition on due events e of a kind.
func (c Claims) dueOf(kind DueKind) string {
	switch kind {
	case DueParked:
		return c.scheduled() + " AND e.lock_version > 0"
	case DueDelayed:
		return c.scheduled() + " AND e.lock_version = 0"
	case DueExpired:
		return "e.status = 'DISPATCHING'" + isOpen + " AND e.next_retry_at <= " + c.d.Now
	}
	return "e.status = 'NEW'" + isOpen
}

// scheduled is the condition on parked and delayed events e that are due.
func (c Claims) scheduled() string {
	return "e.status = 'SCHEDULED'" + isOpen + " AND e.next_retry_at <= " + c.d.Now
}

// Cursor is a position in the walk along idx_status_next_retry: behind the event of this id that is due then. Without an
// id it is before all events that are due then. The zero cursor is the start.
type Cursor struct {
	DueAt int64 // microseconds
	ID    int64
}

// NoTime is when an event without a time is due where the database puts those last.
const NoTime = math.MaxInt64

// IsBefore reports whether a cursor comes before another one.
func (p Cursor) IsBefore(q Cursor) bool {
	return p.DueAt < q.DueAt || (p.DueAt == q.DueAt && p.ID < q.ID)
}

// CursorBehind is the cursor behind an event.
func (c Claims) CursorBehind(r eventrow.Row) Cursor {
	p := Cursor{r.DueAt, r.OutboxID}
	switch {
	case p.DueAt == 0 && c.d.NullsLast:
		p.DueAt = NoTime
	case c.d.Name == "sqlite":
		p.DueAt -= p.DueAt % 1000 // it compares milliseconds
	}
	return p
}

// NextPart is the cursor before the events without a time, for a walk that has seen all others. It reports false if
// there is no such part: the walk came there first, or is there already.
func (c Claims) NextPart(p Cursor) (Cursor, bool) {
	if !c.d.NullsLast || p.DueAt == NoTime {
		return p, false
	}
	return Cursor{DueAt: NoTime}, true
}

// dueFrom is the condition, with its arguments, on due events e of a kind from a cursor on.
func (c Claims) dueFrom(kind DueKind, p Cursor) (where string, args []any) {
	where = c.dueOf(kind)
	switch {
	case p == Cursor{}:
		return where, nil
	case p.ID == 0 && p.DueAt != NoTime:
		return where + " AND e.next_retry_at >= " + c.d.At, []any{p.DueAt}
	case p.DueAt == NoTime:
		return where + " AND e.next_retry_at IS NULL AND e.id > ?", []any{p.ID}
	case p.DueAt == 0:
		return where + " AND (e.next_retry_at IS NOT NULL OR e.id > ?)", []any{p.ID}
	}
	return where + " AND e.next_retry_at >= " + c.d.At + " AND (e.next_retry_at > " + c.d.At + " OR e.id > ?)", []any{p.DueAt, p.DueAt, p.ID}
}

// AlongIndexes makes the rest of a transaction walk along indexes, where the database has to be told.
func (c Claims) AlongIndexes(ctx context.Context, tx bun.Tx) error {
	if c.d.ByIndex == "" {
		return nil
	}
	_, err := tx.ExecContext(ctx, c.d.ByIndex)
	return err
}

// LockDue locks up to limit due events of a kind, from a cursor on, along idx_status_next_retry. It passes over those that
// others have locked. It stops before the payloads have more than maxBytes, and reports whether there were more.
func (c Claims) LockDue(ctx context.Context, tx bun.Tx, kind DueKind, from Cursor, limit, maxBytes int,
) (rows []eventrow.Row, more bool, err error) {
	where, args := c.dueFrom(kind, from)
	rows, more, err = readWithin(ctx, tx, c.d, within(maxBytes),
		c.d.Due(eventTable)+" WHERE "+where+alongDue+c.d.SkipLocked, append(args, limit)...)
	if err != nil {
		return nil, false, fmt.Errorf("lock due events: %w", err)
	}
	return rows, more, nil
}

// LockDueByID locks, of the events of these ids, those that are due and of this kind, by the primary key. It passes over
// those that others have locked. The condition is hidden in a CASE: PostgreSQL would go along the index of due events.
func (c Claims) LockDueByID(ctx context.Context, tx bun.Tx, kind DueKind, ids []int64, maxBytes int) ([]eventrow.Row, error) {
	rows, _, err := readWithin(ctx, tx, c.d, within(maxBytes),
		c.d.Keyed(eventTable)+" WHERE "+dialect.IDs(dialect.Pairs(ids))+" AND CASE WHEN "+c.dueOf(kind)+" THEN 1 END = 1"+c.d.SkipLocked)
	if err != nil {
		return nil, fmt.Errorf("lock due events by id: %w", err)
	}
	return rows, nil
}

// OutlineDue reads up to limit due events of a kind, from a cursor on, along idx_status_next_retry, and locks nothing. Of each
// event it reads only the aggregate, and when it is due.
func (c Claims) OutlineDue(ctx context.Context, tx bun.Tx, kind DueKind, from Cursor, limit int) ([]eventrow.Row, error) {
	where, args := c.dueFrom(kind, from)
	return c.outlines(ctx, tx, c.d.Due(eventTable)+" WHERE "+where+alongDue, append(args, limit)...)
}

// LeasedElsewhere tells of which aggregates other instances work on events, and from which event on: of up to limit leases,
// along idx_status_next_retry.
func (c Claims) LeasedElsewhere(ctx context.Context, tx bun.Tx, owner string, limit int) (map[Aggregate]int64, error) {
	rows, err := c.outlines(ctx, tx, c.d.Due(eventTable)+" WHERE e.status = 'DISPATCHING'"+isOpen+" AND e.locked_by <> ? "+
		"AND e.next_retry_at > "+c.d.Now+alongDue, owner, limit)
	if err != nil {
		return nil, err
	}
	first := make(map[Aggregate]int64, len(rows))
	for _, r := range rows {
		key := eventrow.AggregateOf(r)
		if before, ok := first[key]; !ok || r.OutboxID < before {
			first[key] = r.OutboxID
		}
	}
	return first, nil
}

// outlines reads of events e only whose they are, and when they are due.
func (c Claims) outlines(ctx context.Context, tx bun.Tx, from string, args ...any) (out []eventrow.Row, err error) {
	rows, err := tx.QueryContext(ctx,
		"SELECT e.id, COALESCE(e.tenant_id, 0), e.aggregate_type, e.aggregate_id, COALESCE("+c.d.Micros("e.next_retry_at")+", 0) FROM "+from,
		args...)
	if err != nil {
		return nil, fmt.Errorf("look at due events: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var r eventrow.Row
		if err := rows.Scan(&r.OutboxID, (*tenant)(&r.TenantID), &r.AggregateType, &r.AggregateID, &r.DueAt); err != nil {
			return nil, fmt.Errorf("look at due events: %w", err)
		}
		out = append(out, r)
	}
	return out, rows.Err()
}

// NewOfOthers lists the event_ids of up to limit NEW events, those that are due first, that have not been due for longer than
// back and belong to none of the tenants (0 stands for none), along idx_status_next_retry.
func (c Claims) NewOfOthers(ctx context.Context, idb bun.IDB, back time.Duration, tenants []int64, limit int) ([]string, error) {
	ids, err := readTexts(idb.QueryContext(ctx,
		"SELECT e.event_id FROM "+c.d.Due(eventTable)+" WHERE "+c.dueOf(DueNew)+" AND e.next_retry_at > "+c.d.After+
			" AND COALESCE(e.tenant_id, 0) NOT IN (?)"+alongDue, -dialect.Micro(back), bun.List(tenants), limit))
	if err != nil {
		return nil, fmt.Errorf("look for other tenants: %w", err)
	}
	return ids, nil
}
