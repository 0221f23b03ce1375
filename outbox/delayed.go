package outbox

import (
	"context"
	"fmt"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	due "github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/eventrow"
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
		c = claim{kind: due.Scheduled, seen: len(ids), full: true}
		rows, _, err := eventrow.ReadWithin(ctx, tx, o.d, eventrow.Within(s.freeBytes()), o.d.Keyed(table)+" WHERE "+dialect.IDs(dialect.Pairs(ids))+" AND e.status = 'NEW'"+o.d.SkipLocked)
		if err != nil {
			return err
		}
		if c.rows, err = s.keepClaimable(ctx, tx, rows); err != nil {
			return err
		}
		return s.leaseRows(ctx, tx, &c, false)
	})
	if err != nil {
		return claim{}, fmt.Errorf("outbox: claim delayed events: %w", err)
	}
	if c.blocked() {
		s.lookout.later(blockedFor, s.front)
	}
	return c, nil
}

// takePlaces makes delayed events NEW that are due.
func (s *session) takePlaces(ctx context.Context, limit int) (ids []int64, err error) {
	o := s.p.ob
	err = o.inTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		found, err := numbers(ctx, o.stmts.On(tx), "SELECT e.id FROM "+o.d.Due(table)+" WHERE "+s.scheduled()+" AND e.lock_version = 0"+walk+o.d.SkipLocked, limit)
		if err != nil || len(found) == 0 {
			return err
		}
		ids = column(found)
		_, err = tx.ExecContext(ctx, o.d.UpdateIDs(table, dialect.Pairs(ids), "status = 'NEW', lock_version = 1, updated_at = "+o.d.Now, "1 = 1"))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("outbox: claim delayed events: %w", err)
	}
	return ids, nil
}
