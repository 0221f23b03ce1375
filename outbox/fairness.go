package outbox

import (
	"context"
	"fmt"
	"time"

	due "github.com/bluecone-go/bluecone/internal/engine/claim"
)

// claimOtherTenants dispatches events of tenants that the claims of a backlog pass over.
func (s *session) claimOtherTenants(ctx context.Context, r due.Result) error {
	if s.flights.free() < due.MostHandedOver {
		return nil
	}
	others, err := s.claimer.OtherTenants(ctx, time.Now(), r)
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
