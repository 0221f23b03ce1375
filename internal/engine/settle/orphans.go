package settle

import (
	"context"
	"fmt"

	"github.com/bluecone-go/bluecone/internal/engine/claim"
)

// NoteOrphans notes that something may be leased that is not in flight: events of a claim of which this instance never heard, and
// such as could not be settled.
func (g *Settling) NoteOrphans() { g.mayHaveOrphans.Store(true) }

// ReleaseOrphans gives back, after trouble, what this instance has leased and does not work on. It would wait for the end of its
// leases, and others of its aggregates with it. Only the goroutine that claims calls it.
func (g *Settling) ReleaseOrphans(ctx context.Context, claimer *claim.Claimer) error {
	if !g.mayHaveOrphans.Swap(false) {
		return nil
	}
	known := make(map[int64]bool) // before the database is asked: only this goroutine claims
	for _, f := range g.cfg.Flights.all() {
		known[f.Row.OutboxID] = true
	}
	orphans, err := claimer.Orphans(ctx, known)
	if err == nil {
		err = g.giveBack(ctx, orphans, Return{Status: New})
	}
	if err != nil {
		g.NoteOrphans()
		return fmt.Errorf("outbox: give back leased events: %w", err)
	}
	return nil
}
