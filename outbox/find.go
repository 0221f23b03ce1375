package outbox

import (
	"context"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	due "github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/store"
)

// find locks due rows, and keeps those that may be worked on here. They are the first that are due. Where
// other instances have most of those in hand, or what is before them, these are left alone: to lock them
// all and then drop them took a third of the database's time beside seven other instances.
func (s *session) find(ctx context.Context, tx bun.Tx, c *claim, kind store.DueKind, limit int) (err error) {
	began, isNew := time.Now(), kind == store.DueNew
	isCrowded := isNew && s.watermark.IsCrowded()
	if !isCrowded {
		err = s.findFirst(ctx, tx, c, kind, limit)
		isCrowded = c.IsFull && c.IsMostlyBlocked()
	}
	if isCrowded && err == nil {
		err = s.findFree(ctx, tx, c, kind, limit)
	}
	if err == nil && isNew {
		now := time.Now()
		s.watermark.Observe(now, c.Result, now.Sub(began), isCrowded)
	}
	return err
}

// findFirst takes what is due first.
func (s *session) findFirst(ctx context.Context, tx bun.Tx, c *claim, kind store.DueKind, limit int) error {
	rows, more, err := s.p.ob.claims.LockDue(ctx, tx, kind, c.From, limit, s.flights.freeBytes())
	if err != nil || len(rows) == 0 {
		return err
	}
	c.Last = s.p.ob.claims.CursorBehind(rows[len(rows)-1])
	c.IsFull, c.Seen = more || len(rows) == limit, len(rows)
	c.Rows, err = s.keepClaimable(ctx, tx, rows)
	return err
}

const (
	lookRows   = dialect.MostIDs // rows that one look goes over, without locking them
	lookPages  = 5               // looks, until one finds any that are free
	lookTries  = 10              // times that what seemed free is locked, until some of it is
	mostInHand = 2000            // events in hand that a look knows of: of more the lock will tell
)

// findFree takes what is due first and not behind an event that another instance has in hand.
func (s *session) findFree(ctx context.Context, tx bun.Tx, c *claim, kind store.DueKind, limit int) error {
	claims := s.p.ob.claims
	taken, err := claims.LeasedElsewhere(ctx, tx, s.p.owner, mostInHand)
	if err != nil {
		return err
	}
	c.Rows, c.Seen, c.IsFull, c.Last = nil, 0, true, c.From
	for page, tries := 0, 0; page < lookPages && c.IsFull; page++ {
		rows, err := claims.OutlineDue(ctx, tx, kind, c.Last, lookRows)
		if err != nil {
			return err
		}
		c.IsFull = len(rows) == lookRows
		before := c.Seen
		for free := range slices.Chunk(due.NotBehind(rows, taken), limit) {
			end := len(rows) // of what this chunk has seen
			if len(free) == limit {
				end = free[limit-1] + 1
			}
			c.Seen, c.Last = before+end, claims.CursorBehind(rows[end-1])
			c.Rows, err = s.lockFree(ctx, tx, kind, rows, free)
			if tries++; err != nil || len(c.Rows) > 0 || tries == lookTries {
				c.IsFull = c.IsFull || end < len(rows)
				return err
			}
		}
		if len(rows) > 0 {
			c.Seen, c.Last = before+len(rows), claims.CursorBehind(rows[len(rows)-1])
		}
		if !c.IsFull { // those without a time may come now
			c.Last, c.IsFull = claims.NextPart(c.Last)
		}
	}
	return nil
}

// lockFree locks those of the rows that seemed free, and keeps what is.
func (s *session) lockFree(ctx context.Context, tx bun.Tx, kind store.DueKind, seen []eventrow.Row, free []int) ([]eventrow.Row, error) {
	ids := make([]int64, len(free))
	for i, n := range free {
		ids[i] = seen[n].OutboxID
	}
	rows, err := s.p.ob.claims.LockDueByID(ctx, tx, kind, ids, s.flights.freeBytes())
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return s.keepClaimable(ctx, tx, rows)
}
