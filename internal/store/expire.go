package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// Expire ends, at once, what owner has leased: it has died, or an operator has started its successor while it was
// frozen. Then it finds out by the lock versions. Rows that another transaction is writing are left to expire by themselves.
func (l Leases) Expire(ctx context.Context, consumers []string, owner string) error {
	for _, consumer := range consumers {
		for more := true; more; {
			err := l.db.RunInTx(ctx, l.d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) error {
				ids, err := l.ofOwner(ctx, tx, consumer, owner)
				if more = len(ids) == dialect.MostIDs; err != nil || len(ids) == 0 {
					return err
				}
				slices.Sort(ids)
				return l.cutShort(ctx, tx, ids)
			})
			if err != nil {
				return fmt.Errorf("consume log: end the leases of %s: %w", owner, err)
			}
		}
	}
	return nil
}

// ofOwner locks deliveries of a consumer that owner has leased, along idx_consumer_due, and tells their ids.
func (l Leases) ofOwner(ctx context.Context, tx bun.Tx, consumer, owner string) (ids []int64, err error) {
	err = tx.NewRaw("SELECT id FROM "+l.d.DueDeliveries(deliveryTable)+" WHERE consumer_name = ? AND status = 'PROCESSING'"+inDueIndex+
		" AND next_retry_at > "+l.d.Now+" AND locked_by = ? ORDER BY next_retry_at, id LIMIT ?"+l.d.SkipLocked,
		consumer, owner, dialect.MostIDs).Scan(ctx, &ids)
	return ids, err
}

// cutShort makes leases, whose rows the transaction has locked, end now.
func (l Leases) cutShort(ctx context.Context, tx bun.Tx, ids []int64) error {
	set := "next_retry_at = " + l.d.Now + ", lock_version = lock_version + 1"
	_, err := tx.ExecContext(ctx, l.d.UpdateIDs(deliveryTable, dialect.Pairs(ids), set, "1 = 1"))
	return err
}
