package outbox

import (
	"context"
	"fmt"

	"github.com/uptrace/bun"

	due "github.com/bluecone-go/bluecone/internal/engine/claim"
)

// claimDelayed claims events that their producers delayed and that are due now. They take their places first, in a
// transaction of its own: from then on no later event of their aggregates is claimed, and those that other instances
// have in hand are waited for. What has to wait is NEW, and claimed like any other such event.
func (s *session) claimDelayed(ctx context.Context, limit int) (c claim, err error) {
	defer s.lanes.Turn()()
	ids, err := s.takePlaces(ctx, limit)
	if err != nil || len(ids) == 0 {
		return claim{}, err
	}
	o := s.p.ob
	err = o.inTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		c = claim{Result: due.Result{Kind: due.Scheduled, Seen: len(ids), IsFull: true}}
		rows, err := o.claims.LockNew(ctx, tx, ids, s.flights.freeBytes())
		if err != nil {
			return err
		}
		if c.Rows, err = s.keepClaimable(ctx, tx, rows); err != nil {
			return err
		}
		return s.leaseRows(ctx, tx, &c, false)
	})
	if err != nil {
		return claim{}, fmt.Errorf("outbox: claim delayed events: %w", err)
	}
	if c.IsBlocked() {
		s.alarm.set(due.BlockedFor)
	}
	return c, nil
}

// takePlaces makes delayed events NEW that are due.
func (s *session) takePlaces(ctx context.Context, limit int) (ids []int64, err error) {
	o := s.p.ob
	err = o.inTx(ctx, func(ctx context.Context, tx bun.Tx) (err error) {
		ids, err = o.claims.ActivateDelayed(ctx, tx, limit)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("outbox: claim delayed events: %w", err)
	}
	return ids, nil
}
