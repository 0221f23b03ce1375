package outbox

import (
	"context"
	"fmt"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	due "github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/eventrow"
)

// The due conditions of a claim: one status each, so that every claim is a walk along
// idx_status_next_retry that needs no sorting.
const (
	dueNew       = "e.status = 'NEW'" + inDueIndex // whatever next_retry_at says: a hand-written NOW() may be hours off
	dueScheduled = "e.status = 'SCHEDULED'" + inDueIndex + " AND e.next_retry_at <= "
	dueExpired   = "e.status = 'DISPATCHING'" + inDueIndex + " AND e.next_retry_at <= "
)

// inDueIndex is the condition under which PostgreSQL and SQLite have an event in idx_status_next_retry:
// SQLite does not see by itself that it holds.
const inDueIndex = " AND e.status <> 'SENT'"

// claim is what one claim transaction has leased.
type claim struct {
	kind      due.Kind
	rows      []eventrow.Row // with the lock version of the new lease
	until     int64          // when the leases end, by the database's clock, or a little earlier
	consumers *roster        // all consumers of the deployment, as of the claim
	full      bool           // whether more may be due
	handed    bool           // not searched for, but handed over after the commit
	seen      int            // rows it has looked at
	from      place          // where it started
	last      place          // how far it has looked
}

// blocked tells whether some were left alone for the sake of earlier ones.
func (c claim) blocked() bool { return len(c.rows) < c.seen }

// inTheWay tells whether that holds for most: other instances have in hand what these are behind.
func (c claim) inTheWay() bool { return 2*len(c.rows) < c.seen }

// dueOf is the condition on due events of a kind.
func (s *session) dueOf(kind due.Kind) string {
	switch kind {
	case due.Scheduled:
		return s.scheduled() + " AND e.lock_version > 0" // those that are parked; see claimDelayed for the others
	case due.Expired:
		return s.expired()
	}
	return dueNew
}

// claim leases up to limit due events of one kind, from a place on, in a short READ COMMITTED
// transaction that is over before any handler runs.
func (s *session) claim(ctx context.Context, kind due.Kind, limit int, from place) (c claim, err error) {
	o := s.p.ob
	if kind == due.Scheduled {
		if c, err := s.claimDelayed(ctx, limit); err != nil || c.seen > 0 {
			return c, err
		}
	}
	defer s.lanes.Turn()()
	err = o.inTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		c = claim{kind: kind, from: from}
		if o.d.ByIndex != "" {
			if _, err := tx.ExecContext(ctx, o.d.ByIndex); err != nil {
				return err
			}
		}
		if err := s.find(ctx, tx, &c, s.dueOf(kind), limit); err != nil {
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
	if len(c.rows) == 0 {
		return nil
	}
	var now int64
	if c.consumers, now, err = s.registry.read(ctx, tx); err != nil {
		return err
	}
	c.until = now + dialect.Micro(s.p.cfg.Lease)
	return s.lease(ctx, tx, c.rows, expired)
}

// lease turns the locked rows into DISPATCHING rows of this instance, in id order.
func (s *session) lease(ctx context.Context, tx bun.Tx, rows []eventrow.Row, expired bool) error {
	o, ids, count := s.p.ob, make([]int64, len(rows)), ""
	for i, r := range rows {
		ids[i] = r.OutboxID // locked by this transaction
		rows[i].LockVersion++
		if expired {
			rows[i].RetryCount++
			count = "retry_count = retry_count + 1, "
		}
	}
	_, err := o.stmts.On(tx).ExecContext(ctx, "UPDATE "+o.d.Keyed(table)+" SET "+count+
		"status = 'DISPATCHING', locked_by = ?, lock_version = lock_version + 1, next_retry_at = "+o.d.After+", updated_at = "+o.d.Now+
		" WHERE e.id IN (?)", s.p.owner, dialect.Micro(s.p.cfg.Lease), ids)
	return err
}

func (s *session) scheduled() string { return dueScheduled + s.p.ob.d.Now }
func (s *session) expired() string   { return dueExpired + s.p.ob.d.Now }
