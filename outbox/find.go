package outbox

import (
	"context"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/eventrow"
)

// dueRows is a condition on rows e, a walk along idx_status_next_retry.
type dueRows struct {
	where string
	args  []any
}

const walk = " ORDER BY e.next_retry_at, e.id LIMIT ?"

// find locks due rows, and keeps those that may be worked on here. They are the first that are due. Where
// other instances have most of those in hand, or what is before them, these are left alone: to lock them
// all and then drop them took a third of the database's time beside seven other instances.
func (s *session) find(ctx context.Context, tx bun.Tx, c *claim, kind string, due dueRows, limit int) error {
	began, low, fresh := time.Now(), s.lookout.low, kind == dueNew
	var last int64
	var err error
	crowded := fresh && s.lookout.crowded
	if !crowded {
		last, err = s.findFirst(ctx, tx, c, due, limit)
		crowded = c.full && c.inTheWay()
	}
	if crowded && err == nil {
		last, err = s.findFree(ctx, tx, c, due, limit)
	}
	if err != nil || !fresh {
		return err
	}
	s.lookout.crowded = crowded && c.inTheWay()
	s.lookout.saw(c.from, time.Since(began), last)
	if c.from == 0 && c.inTheWay() {
		s.lookout.notBefore(low)
	}
	return nil
}

// findFirst takes what is due first, and tells when the last of it is due, 0 if nothing is.
func (s *session) findFirst(ctx context.Context, tx bun.Tx, c *claim, due dueRows, limit int) (last int64, err error) {
	o := s.p.ob
	rows, err := eventrow.Read(ctx, tx, eventrow.Select(o.d, o.d.Due(table)+" WHERE "+due.where+walk+o.d.SkipLocked), append(slices.Clone(due.args), limit)...)
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	last = rows[len(rows)-1].DueAt
	c.full, c.seen = len(rows) == limit, len(rows)
	c.rows, err = s.heads(ctx, tx, rows)
	return last, err
}

const (
	lookRows   = dialect.MostIDs // rows that one look goes over, without locking them
	lookPages  = 5               // looks, until one finds any that are free
	lookTries  = 10              // times that what seemed free is locked, until some of it is
	mostInHand = 2000            // events in hand that a look knows of: of more the lock will tell
)

// findFree takes what is due first and not behind an event that another instance has in hand, and tells
// when the last of what it has seen is due.
func (s *session) findFree(ctx context.Context, tx bun.Tx, c *claim, due dueRows, limit int) (last int64, err error) {
	taken, err := s.inHand(ctx, tx)
	if err != nil {
		return 0, err
	}
	c.rows, c.seen, c.full = nil, 0, true
	for page, tries := 0, 0; page < lookPages && c.full; page++ {
		rows, err := s.p.ob.look(ctx, tx, due, page)
		if err != nil || len(rows) == 0 {
			c.full = false
			return last, err
		}
		c.full = len(rows) == lookRows
		before := c.seen
		for free := range slices.Chunk(freeOf(rows, taken), limit) {
			end := len(rows) // of what this chunk has seen
			if len(free) == limit {
				end = free[limit-1] + 1
			}
			c.seen, last = before+end, rows[end-1].DueAt
			c.rows, err = s.lockFree(ctx, tx, due, rows, free)
			if tries++; err != nil || len(c.rows) > 0 || tries == lookTries {
				c.full = c.full || end < len(rows)
				return last, err
			}
		}
		c.seen, last = before+len(rows), rows[len(rows)-1].DueAt
	}
	return last, nil
}

// freeOf tells which of the rows are not behind what is taken.
func freeOf(rows []eventrow.Row, taken map[[2]string]int64) (free []int) {
	for i, r := range rows {
		if before, ok := taken[[2]string{r.AggregateType, r.AggregateID}]; !ok || r.OutboxID < before {
			free = append(free, i)
		}
	}
	return free
}

// lockFree locks those of the rows that seemed free, and keeps what is.
func (s *session) lockFree(ctx context.Context, tx bun.Tx, due dueRows, seen []eventrow.Row, free []int) ([]claimedRow, error) {
	o, ids := s.p.ob, make([]dialect.Pair, len(free))
	for i, n := range free {
		ids[i].ID = seen[n].OutboxID
	}
	rows, err := eventrow.Read(ctx, tx, eventrow.Select(o.d, o.d.Keyed(table)+" WHERE "+dialect.IDs(ids)+" AND CASE WHEN "+due.where+" THEN 1 END = 1"+o.d.SkipLocked), due.args...)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return s.heads(ctx, tx, rows)
}

// look reads what a claim must know of due rows to tell whether they are free.
func (o *Outbox) look(ctx context.Context, tx bun.Tx, due dueRows, page int) ([]eventrow.Row, error) {
	return o.outlines(ctx, tx, o.d.Due(table)+" WHERE "+due.where+walk+" OFFSET ?", append(slices.Clone(due.args), lookRows, page*lookRows)...)
}

// inHand tells which aggregates are held up, from which event on, because other instances work on it, or
// because it is parked.
func (s *session) inHand(ctx context.Context, tx bun.Tx) (map[[2]string]int64, error) {
	o := s.p.ob
	later := " AND e.next_retry_at > " + o.d.Now
	rows, err := o.outlines(ctx, tx, o.d.Due(table)+" WHERE e.status = 'DISPATCHING'"+inDueIndex+" AND e.locked_by <> ?"+later+walk, s.p.owner, mostInHand)
	if err != nil {
		return nil, err
	}
	parked, err := o.outlines(ctx, tx, o.d.Due(table)+" WHERE e.status = 'SCHEDULED'"+inDueIndex+" AND e.lock_version > 0"+later+walk, mostInHand)
	taken := make(map[[2]string]int64, len(rows)+len(parked))
	for _, r := range append(rows, parked...) {
		key := [2]string{r.AggregateType, r.AggregateID}
		if before, ok := taken[key]; !ok || r.OutboxID < before {
			taken[key] = r.OutboxID
		}
	}
	return taken, err
}

// outlines reads of rows e only whose they are, and when they are due.
func (o *Outbox) outlines(ctx context.Context, tx bun.Tx, from string, args ...any) (out []eventrow.Row, err error) {
	rows, err := tx.QueryContext(ctx, "SELECT e.id, e.aggregate_type, e.aggregate_id, COALESCE("+o.d.Micros("e.next_retry_at")+", 0) FROM "+from, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var r eventrow.Row
		if err := rows.Scan(&r.OutboxID, &r.AggregateType, &r.AggregateID, &r.DueAt); err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, rows.Err()
}
