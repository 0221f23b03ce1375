package settle

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/store"
)

// note notes the answer of a statement that ended the leases of events, and missed some of them. If it missed any, it looks which:
// an event whose lease has ended in this very way was settled by an earlier try, whose answer was lost.
func (s *Settler) note(ctx context.Context, idb bun.IDB, events []Event, status Status, missed int, isDeleting bool, done *Settled) error {
	if missed == 0 {
		done.add(events, status)
		return nil
	}
	rows, err := s.events.Leases(ctx, idb, idsOf(events))
	if err != nil {
		return err
	}
	for _, e := range events {
		row, ok := rows[e.Lease.ID]
		// A row that is gone may also have been deleted by the instance that took the event over: nothing tells that apart.
		if isSettled := ok && hasEnded(e, row) && Status(row.Status) == status; isSettled || (isDeleting && !ok) {
			done.add([]Event{e}, status)
		} else {
			done.Lost = append(done.Lost, e.Lease.ID)
		}
	}
	return nil
}

// noteMissing notes events whose leases the owner does not hold any more: an earlier try to settle them may have ended these.
func (s *Settler) noteMissing(ctx context.Context, tx bun.Tx, events []Event, done *Settled) error {
	retried, lost := split(events, func(e Event) bool { return e.IsRetry })
	for _, e := range lost {
		done.Lost = append(done.Lost, e.Lease.ID)
	}
	if len(retried) == 0 {
		return nil
	}
	rows, err := s.events.Leases(ctx, tx, idsOf(retried))
	if err != nil {
		return err
	}
	for _, e := range retried {
		switch row, ok := rows[e.Lease.ID]; {
		case ok && hasEnded(e, row):
			done.add([]Event{e}, Status(row.Status))
		case !ok && s.deletesSent:
			done.add([]Event{e}, Sent)
		default:
			done.Lost = append(done.Lost, e.Lease.ID)
		}
	}
	return nil
}

// hasEnded reports whether a row is as it is when the lease of the event has ended, and nobody has leased or changed it since.
func hasEnded(e Event, row store.EventLease) bool {
	return !row.IsLeased && row.Version == e.Lease.Version+1
}

// add notes that events were settled.
func (r *Settled) add(events []Event, status Status) {
	for _, e := range events {
		r.Status[e.Lease.ID] = status
	}
}
