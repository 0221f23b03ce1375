package outbox

import (
	"context"
	"fmt"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	due "github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/store"
)

// claim is what one claim transaction has leased.
type claim struct {
	due.Result
	consumers *roster // all consumers of the deployment, as of the claim
	handed    bool    // not searched for, but handed over after the commit
}

// dueOf is what a claim of a kind takes.
func dueOf(kind due.Kind) store.DueKind {
	switch kind {
	case due.Scheduled:
		return store.DueParked // see claimDelayed for the others
	case due.Expired:
		return store.DueExpired
	}
	return store.DueNew
}

// claim leases up to limit due events of one kind, from a place on, in a short READ COMMITTED
// transaction that is over before any handler runs.
func (s *session) claim(ctx context.Context, kind due.Kind, limit int, from store.Cursor) (c claim, err error) {
	o := s.p.ob
	if kind == due.Scheduled {
		if c, err := s.claimDelayed(ctx, limit); err != nil || c.Seen > 0 {
			return c, err
		}
	}
	defer s.lanes.Turn()()
	err = o.inTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		c = claim{Result: due.Result{Kind: kind, From: from}}
		if err := o.claims.AlongIndexes(ctx, tx); err != nil {
			return err
		}
		if err := s.find(ctx, tx, &c, dueOf(kind), limit); err != nil {
			return err
		}
		return s.leaseRows(ctx, tx, &c, kind == due.Expired)
	})
	if err != nil {
		return claim{}, fmt.Errorf("outbox: claim: %w", err)
	}
	return c, nil
}

// leaseRows reads the registry and leases what a claim keeps.
func (s *session) leaseRows(ctx context.Context, tx bun.Tx, c *claim, expired bool) (err error) {
	if len(c.Rows) == 0 {
		return nil
	}
	var now int64
	if c.consumers, now, err = s.registry.read(ctx, tx); err != nil {
		return err
	}
	c.Until = now + dialect.Micro(s.p.cfg.Lease)
	return s.lease(ctx, tx, c.Rows, expired)
}

// lease turns the locked rows into DISPATCHING rows of this instance, in id order.
func (s *session) lease(ctx context.Context, tx bun.Tx, rows []eventrow.Row, expired bool) error {
	ids := make([]int64, len(rows))
	for i, r := range rows {
		ids[i] = r.OutboxID // locked by this transaction
		rows[i].LockVersion++
		if expired {
			rows[i].RetryCount++
		}
	}
	return s.p.ob.claims.Lease(ctx, tx, s.newLease(), ids, expired)
}

// newLease is what this session writes into the rows that it leases.
func (s *session) newLease() store.Lease { return store.Lease{Owner: s.p.owner, For: s.p.cfg.Lease} }
