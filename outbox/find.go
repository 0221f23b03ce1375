package outbox

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/store"
)

// place is a place in the walk along idx_status_next_retry: behind the event of this id that is due then. Without an
// id it is before all events that are due then. The zero place is the front.
type place struct {
	due int64 // microseconds
	id  int64
}

// noTime is when an event without a time is due where the database puts those last.
const noTime = math.MaxInt64

func (p place) isBefore(q place) bool {
	return p.due < q.due || (p.due == q.due && p.id < q.id)
}

// placeOf is the place behind an event.
func (o *Outbox) placeOf(r eventrow.Row) place {
	p := place{r.DueAt, r.OutboxID}
	switch {
	case p.due == 0 && o.d.NullsLast:
		p.due = noTime
	case o.d.Name == "sqlite":
		p.due -= p.due % 1000 // it compares milliseconds
	}
	return p
}

// dueRows is a condition on rows e, a walk along idx_status_next_retry.
type dueRows struct {
	where string
	args  []any
}

// dueFrom are the due rows of a kind from a place on.
func (o *Outbox) dueFrom(kind string, p place) dueRows {
	switch {
	case p == place{}:
		return dueRows{kind, nil}
	case p.id == 0 && p.due != noTime:
		return dueRows{kind + " AND e.next_retry_at >= " + o.d.At, []any{p.due}}
	case p.due == noTime:
		return dueRows{kind + " AND e.next_retry_at IS NULL AND e.id > ?", []any{p.id}}
	case p.due == 0:
		return dueRows{kind + " AND (e.next_retry_at IS NOT NULL OR e.id > ?)", []any{p.id}}
	}
	return dueRows{kind + " AND e.next_retry_at >= " + o.d.At + " AND (e.next_retry_at > " + o.d.At + " OR e.id > ?)", []any{p.due, p.due, p.id}}
}

const walk = " ORDER BY e.next_retry_at, e.id LIMIT ?"

// find locks due rows, and keeps those that may be worked on here. They are the first that are due. Where
// other instances have most of those in hand, or what is before them, these are left alone: to lock them
// all and then drop them took a third of the database's time beside seven other instances.
func (s *session) find(ctx context.Context, tx bun.Tx, c *claim, kind string, limit int) (err error) {
	began, low, fresh := time.Now(), s.lookout.low, kind == dueNew
	crowded := fresh && s.lookout.crowded
	if !crowded {
		err = s.findFirst(ctx, tx, c, kind, limit)
		crowded = c.full && c.inTheWay()
	}
	if crowded && err == nil {
		err = s.findFree(ctx, tx, c, kind, limit)
	}
	if err != nil || !fresh {
		return err
	}
	s.lookout.crowded = crowded && c.inTheWay()
	s.lookout.saw(*c, time.Since(began))
	if c.from == (place{}) && c.inTheWay() {
		s.lookout.notBefore(low)
	}
	return nil
}

// findFirst takes what is due first.
func (s *session) findFirst(ctx context.Context, tx bun.Tx, c *claim, kind string, limit int) error {
	o := s.p.ob
	due := o.dueFrom(kind, c.from)
	rows, more, err := eventrow.ReadWithin(ctx, tx, o.d, eventrow.Within(s.freeBytes()), o.d.Due(table)+" WHERE "+due.where+walk+o.d.SkipLocked, append(due.args, limit)...)
	if err != nil || len(rows) == 0 {
		return err
	}
	c.last = o.placeOf(rows[len(rows)-1])
	c.full, c.seen = more || len(rows) == limit, len(rows)
	c.rows, err = s.keepClaimable(ctx, tx, rows)
	return err
}

const (
	lookRows   = dialect.MostIDs // rows that one look goes over, without locking them
	lookPages  = 5               // looks, until one finds any that are free
	lookTries  = 10              // times that what seemed free is locked, until some of it is
	mostInHand = 2000            // events in hand that a look knows of: of more the lock will tell
)

// findFree takes what is due first and not behind an event that another instance has in hand.
func (s *session) findFree(ctx context.Context, tx bun.Tx, c *claim, kind string, limit int) error {
	taken, err := s.inHand(ctx, tx)
	if err != nil {
		return err
	}
	c.rows, c.seen, c.full, c.last = nil, 0, true, c.from
	for page, tries := 0, 0; page < lookPages && c.full; page++ {
		rows, err := s.p.ob.look(ctx, tx, kind, c.last)
		if err != nil {
			return err
		}
		c.full = len(rows) == lookRows
		before := c.seen
		for free := range slices.Chunk(freeOf(rows, taken), limit) {
			end := len(rows) // of what this chunk has seen
			if len(free) == limit {
				end = free[limit-1] + 1
			}
			c.seen, c.last = before+end, s.p.ob.placeOf(rows[end-1])
			c.rows, err = s.lockFree(ctx, tx, kind, rows, free)
			if tries++; err != nil || len(c.rows) > 0 || tries == lookTries {
				c.full = c.full || end < len(rows)
				return err
			}
		}
		if len(rows) > 0 {
			c.seen, c.last = before+len(rows), s.p.ob.placeOf(rows[len(rows)-1])
		}
		if !c.full && s.p.ob.d.NullsLast && c.last.due != noTime { // those without a time come now
			c.full, c.last = true, place{due: noTime}
		}
	}
	return nil
}

// freeOf tells which of the rows are not behind what is taken.
func freeOf(rows []eventrow.Row, taken map[store.Aggregate]int64) (free []int) {
	for i, r := range rows {
		if before, ok := taken[r.Aggregate()]; !ok || r.OutboxID < before {
			free = append(free, i)
		}
	}
	return free
}

// lockFree locks those of the rows that seemed free, and keeps what is.
func (s *session) lockFree(ctx context.Context, tx bun.Tx, kind string, seen []eventrow.Row, free []int) ([]eventrow.Row, error) {
	o, ids := s.p.ob, make([]dialect.Pair, len(free))
	for i, n := range free {
		ids[i].ID = seen[n].OutboxID
	}
	rows, _, err := eventrow.ReadWithin(ctx, tx, o.d, eventrow.Within(s.freeBytes()), o.d.Keyed(table)+" WHERE "+dialect.IDs(ids)+" AND CASE WHEN "+kind+" THEN 1 END = 1"+o.d.SkipLocked)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return s.keepClaimable(ctx, tx, rows)
}

// look reads what a claim must know of due rows, from a place on, to tell whether they are free.
func (o *Outbox) look(ctx context.Context, tx bun.Tx, kind string, from place) ([]eventrow.Row, error) {
	due := o.dueFrom(kind, from)
	return o.outlines(ctx, tx, o.d.Due(table)+" WHERE "+due.where+walk, append(due.args, lookRows)...)
}

// inHand tells which aggregates are held up, from which event on, because other instances work on it.
func (s *session) inHand(ctx context.Context, tx bun.Tx) (map[store.Aggregate]int64, error) {
	o := s.p.ob
	later := " AND e.next_retry_at > " + o.d.Now
	rows, err := o.outlines(ctx, tx, o.d.Due(table)+" WHERE e.status = 'DISPATCHING'"+inDueIndex+" AND e.locked_by <> ?"+later+walk, s.p.owner, mostInHand)
	if err != nil {
		return nil, err
	}
	taken := make(map[store.Aggregate]int64, len(rows))
	for _, r := range rows {
		key := r.Aggregate()
		if before, ok := taken[key]; !ok || r.OutboxID < before {
			taken[key] = r.OutboxID
		}
	}
	return taken, nil
}

// outlines reads of rows e only whose they are, and when they are due.
func (o *Outbox) outlines(ctx context.Context, tx bun.Tx, from string, args ...any) (out []eventrow.Row, err error) {
	rows, err := tx.QueryContext(ctx, "SELECT e.id, COALESCE(e.tenant_id, 0), e.aggregate_type, e.aggregate_id, COALESCE("+o.d.Micros("e.next_retry_at")+", 0) FROM "+from, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var r eventrow.Row
		if err := rows.Scan(&r.OutboxID, &r.TenantID, &r.AggregateType, &r.AggregateID, &r.DueAt); err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, rows.Err()
}
