package outbox

import (
	"context"
	"fmt"

	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/eventrow"
)

// releaseOrphans gives back, after trouble, what this instance has leased and does not work on: events of a
// claim of which it never heard, and such as could not be settled. They would wait for the end of their
// leases, and others of their aggregates with them.
func (s *session) releaseOrphans(ctx context.Context) error {
	if s.p.sessions.Load() > 1 || !s.mustReleaseOrphans.Swap(false) { // what is another one's looks like nobody's
		return nil
	}
	known := make(map[int64]bool) // before the database is asked: only this goroutine claims
	for _, f := range s.flights.all() {
		known[f.row.OutboxID] = true
	}
	leased, err := s.claimer.Orphans(ctx, known)
	orphans := make([]*flight, len(leased))
	for i, p := range leased {
		orphans[i] = &flight{row: eventrow.Row{OutboxID: p.ID, LockVersion: p.Version}}
	}
	if err == nil {
		err = s.settling.giveBack(ctx, orphans, settle.Return{Status: settle.New})
	}
	if err != nil {
		s.mustReleaseOrphans.Store(true)
		return fmt.Errorf("outbox: give back leased events: %w", err)
	}
	return nil
}
