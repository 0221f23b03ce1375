package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/bluecone-go/bluecone/internal/eventrow"
)

// Fairness between tenants: while a backlog of some tenants is worked off, the newest events are
// looked at as well, and those of other tenants are taken out of turn.
const (
	fairEvery = 250 * time.Millisecond
	fairBack  = 1500 * time.Millisecond // how new the events are that are looked at, at least
	fairMost  = handoverMost
	fairShare = 10 // a tenant with a tenth of a claim has its turn
)

// fair dispatches events of tenants that the claims of a backlog pass over.
func (s *session) fair(ctx context.Context, c claim) error {
	if time.Since(s.wasFair) < fairEvery || s.free() < fairMost {
		return nil
	}
	back := fairBack
	if !s.wasFair.IsZero() {
		back += 2 * time.Since(s.wasFair) // nothing since the last look is missed, however long ago that was
	}
	s.wasFair = time.Now()
	busy := busyTenants(c.rows)
	if len(busy) == 0 {
		return nil
	}
	o := s.p.ob
	others, err := o.claims.NewOfOthers(ctx, o.db, back, busy, fairMost)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	if len(others) == 0 {
		return nil
	}
	taken, _, err := s.claimByID(ctx, others)
	if err != nil || len(taken.rows) == 0 {
		return err
	}
	return s.dispatch(ctx, taken)
}

// busyTenants are those that have a good part of a claim.
func busyTenants(rows []eventrow.Row) []int64 {
	counts := make(map[int64]int)
	for _, r := range rows {
		counts[r.TenantID]++
	}
	var busy []int64
	for tenant, n := range counts {
		if n*fairShare >= len(rows) {
			busy = append(busy, tenant)
		}
	}
	return busy
}
