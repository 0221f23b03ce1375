package outbox

import (
	"context"
	"fmt"
	"time"

	due "github.com/bluecone-go/bluecone/internal/engine/claim"
)

// claim is what one claim has leased.
type claim struct {
	due.Result
	handed bool // not searched for, but handed over after the commit
}

// claimNext leases up to limit due events of one kind, from where claims of it have got to.
func (s *session) claimNext(ctx context.Context, kind due.Kind, limit int) (due.Result, error) {
	from := s.claimer.Start(time.Now(), kind)
	if kind == due.Scheduled {
		if r, err := s.claimDelayed(ctx, limit); err != nil || r.Seen > 0 {
			return r, err
		}
	}
	defer s.budget.Turn()()
	r, err := s.claimer.Claim(ctx, kind, from, limit, s.flights.freeBytes())
	if err != nil {
		return r, fmt.Errorf("outbox: claim: %w", err)
	}
	return r, nil
}

// claimDelayed leases events that their producers delayed.
func (s *session) claimDelayed(ctx context.Context, limit int) (due.Result, error) {
	defer s.budget.Turn()()
	r, err := s.claimer.ClaimDelayed(ctx, limit, s.flights.freeBytes())
	if err != nil {
		return r, fmt.Errorf("outbox: claim delayed events: %w", err)
	}
	if r.IsBlocked() {
		s.alarm.set(due.BlockedFor)
	}
	return r, nil
}
