package outbox

import (
	"context"
	"fmt"
	"time"

	due "github.com/bluecone-go/bluecone/internal/engine/claim"
)

// claimOtherTenants dispatches events of tenants that the claims of a backlog pass over.
func (s *session) claimOtherTenants(ctx context.Context, c claim) error {
	if s.flights.free() < due.MostHandedOver {
		return nil
	}
	back, isTime := s.fairness.Look(time.Now())
	if !isTime {
		return nil
	}
	busy := due.BusyTenants(c.Rows)
	if len(busy) == 0 {
		return nil
	}
	o := s.p.ob
	others, err := o.claims.NewOfOthers(ctx, o.db, back, busy, due.MostHandedOver)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	if len(others) == 0 {
		return nil
	}
	taken, _, err := s.claimByID(ctx, others)
	if err != nil || len(taken.Rows) == 0 {
		return err
	}
	return s.dispatch(ctx, taken)
}
