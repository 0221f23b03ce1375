package claim

import (
	"context"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/store"
)

// search is the search of one claim, in its transaction.
type search struct {
	*Claimer
	tx              bun.Tx
	kind            store.DueKind
	limit, maxBytes int
}

// find locks due rows, and keeps those that may be worked on here. They are the first that are due. Where
// other instances work on most of those, or on what is before them, these are left alone: to lock them
// all and then drop them took a third of the database's time beside seven other instances.
func (s search) find(ctx context.Context, r *Result) (err error) {
	began, isNew := time.Now(), s.kind == store.DueNew
	isCrowded := isNew && s.watermark.IsCrowded()
	if !isCrowded {
		err = s.findFirst(ctx, r)
		isCrowded = r.IsFull && r.IsMostlyBlocked()
	}
	if isCrowded && err == nil {
		err = s.findFree(ctx, r)
	}
	if err == nil && isNew {
		now := time.Now()
		s.watermark.Observe(now, *r, now.Sub(began), isCrowded)
	}
	return err
}

// findFirst takes what is due first.
func (s search) findFirst(ctx context.Context, r *Result) error {
	rows, more, err := s.events.LockDue(ctx, s.tx, s.kind, r.From, s.limit, s.maxBytes)
	if err != nil || len(rows) == 0 {
		return err
	}
	r.Last = s.events.CursorBehind(rows[len(rows)-1])
	r.IsFull, r.Seen = more || len(rows) == s.limit, len(rows)
	r.Rows, err = s.keepClaimable(ctx, s.tx, rows)
	return err
}

const (
	lookRows       = dialect.MostIDs // rows that one look goes over, without locking them
	lookPages      = 5               // looks, until one finds any that are free
	lookTries      = 10              // times that what seemed free is locked, until some of it is
	mostLeasesSeen = 2000            // leases of others that a look knows of: of more the lock will tell
)

// findFree takes what is due first and not behind an event that another instance works on.
func (s search) findFree(ctx context.Context, r *Result) error {
	taken, err := s.events.LeasedElsewhere(ctx, s.tx, s.lease.Owner, mostLeasesSeen)
	if err != nil {
		return err
	}
	r.Rows, r.Seen, r.IsFull, r.Last = nil, 0, true, r.From
	for page, tries := 0, 0; page < lookPages && r.IsFull; page++ {
		rows, err := s.events.OutlineDue(ctx, s.tx, s.kind, r.Last, lookRows)
		if err != nil {
			return err
		}
		r.IsFull = len(rows) == lookRows
		before := r.Seen
		for free := range slices.Chunk(NotBehind(rows, taken), s.limit) {
			end := len(rows) // of what this chunk has seen
			if len(free) == s.limit {
				end = free[s.limit-1] + 1
			}
			r.Seen, r.Last = before+end, s.events.CursorBehind(rows[end-1])
			r.Rows, err = s.lockFree(ctx, rows, free)
			if tries++; err != nil || len(r.Rows) > 0 || tries == lookTries {
				r.IsFull = r.IsFull || end < len(rows)
				return err
			}
		}
		if len(rows) > 0 {
			r.Seen, r.Last = before+len(rows), s.events.CursorBehind(rows[len(rows)-1])
		}
		if !r.IsFull { // those without a time may come now
			r.Last, r.IsFull = s.events.NextPart(r.Last)
		}
	}
	return nil
}

// lockFree locks those of the rows that seemed free, and keeps what is.
func (s search) lockFree(ctx context.Context, seen []eventrow.Row, free []int) ([]eventrow.Row, error) {
	ids := make([]int64, len(free))
	for i, n := range free {
		ids[i] = seen[n].OutboxID
	}
	rows, err := s.events.LockDueByID(ctx, s.tx, s.kind, ids, s.maxBytes)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return s.keepClaimable(ctx, s.tx, rows)
}
