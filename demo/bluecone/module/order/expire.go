package order

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/outbox"
	"github.com/bluecone-go/bluecone/reaper"
)

// LockOwner speaks for orders when their locks have outlived their time to live.
func (s *Service) LockOwner() *reaper.Owner {
	return &reaper.Owner{Guard: s.letsGo, Released: s.giveUp}
}

// letsGo locks the order, and keeps the locks of one that is paid.
func (s *Service) letsGo(ctx context.Context, tx bun.Tx, a reaper.Aggregate) (bool, error) {
	o, err := s.read(ctx, tx, a.ID, s.d.ForUpdate)
	return o.Status == WaitPay || o.Status == StCancel, err
}

// giveUp cancels an order whose locks are gone: WAIT_PAY → CANCELED, and order.canceled.
func (s *Service) giveUp(ctx context.Context, tx bun.Tx, a reaper.Aggregate) error {
	o, err := s.read(ctx, tx, a.ID, s.d.ForUpdate)
	if err != nil || o.Status != WaitPay {
		return err
	}
	return s.cancel(ctx, tx, &o, outbox.Meta("source", "lock_timeout"))
}
