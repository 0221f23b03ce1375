package outbox

import (
	"context"
	"fmt"
	"time"

	due "github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
)

// registryFor is how old the registry may be that events are handed over by. Settling looks again.
const registryFor = time.Second

// receive leases handed over events and dispatches them. It reports false if they have to be
// claimed instead.
func (s *session) receive(ctx context.Context) (bool, error) {
	ids, ok := s.p.handover.Take()
	room, _ := s.lanes.Room()
	if !ok || len(ids) > min(s.flights.free(), room) {
		return false, nil
	}
	if len(ids) == 0 {
		return true, nil
	}
	if _, age := s.roster.Last(); age > registryFor {
		if err := s.roster.Refresh(ctx); err != nil {
			return false, err
		}
	}
	c, dropped, err := s.claimByID(ctx, ids)
	if err != nil {
		return false, err
	}
	if len(dropped) > 0 {
		s.alarm.set(due.BlockedFor)
	}
	if len(c.Rows) == 0 {
		return true, nil
	}
	return true, s.dispatch(ctx, c)
}

// claimByID leases events that nobody has claimed yet, and gives back those that an earlier event
// of their aggregate blocks.
func (s *session) claimByID(ctx context.Context, ids []string) (c claim, dropped []*flight, err error) {
	defer s.budget.Turn()()
	r, blocked, err := s.claimer.ClaimByID(ctx, ids)
	if err != nil {
		return claim{}, nil, fmt.Errorf("outbox: %w", err)
	}
	r.Rows = s.flights.without(r.Rows)
	r.Registry, _ = s.roster.Last()
	for _, row := range s.flights.without(blocked) {
		dropped = append(dropped, &flight{row: row})
	}
	return claim{Result: r, handed: true}, dropped, s.settling.giveBack(ctx, dropped, settle.Return{Status: settle.New})
}
