package outbox

import (
	"context"
	"fmt"
	"slices"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/eventrow"
)

// The due conditions of a claim: one status each, so that every claim is a walk along
// idx_status_next_retry that needs no sorting.
const (
	dueNew       = "e.status = 'NEW'" // whatever next_retry_at says: a hand-written NOW() may be hours off
	dueScheduled = "e.status = 'SCHEDULED' AND e.next_retry_at <= "
	dueExpired   = "e.status = 'DISPATCHING' AND e.next_retry_at <= "
)

// claimPages bounds how far a claim looks past rows whose aggregate another instance works on.
const claimPages = 10

// claim is what one claim transaction has leased.
type claim struct {
	rows      []eventrow.Row // with the lock version of the new lease
	consumers []registration // all consumers of the deployment, as of the claim
	full      bool           // whether more may be due
}

// claim leases up to limit due events of one status, in a short READ COMMITTED
// transaction that is over before any handler runs.
func (s *session) claim(ctx context.Context, due string, limit int) (c claim, err error) {
	o := s.p.ob
	err = o.inTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		c = claim{}
		for page := range claimPages {
			rows, err := eventrow.Read(ctx, tx, eventrow.Select(o.d, "WHERE "+due+" ORDER BY e.next_retry_at, e.id LIMIT ? OFFSET ?"+o.d.SkipLocked), limit, page*limit)
			if err != nil {
				return err
			}
			c.full = len(rows) == limit
			free, err := s.heads(ctx, tx, rows)
			if err != nil {
				return err
			}
			c.rows = append(c.rows, free...)
			if !c.full || 2*len(c.rows) >= limit {
				break
			}
		}
		if len(c.rows) == 0 {
			return nil
		}
		if err := s.lease(ctx, tx, c.rows, due == s.expired()); err != nil {
			return err
		}
		c.consumers, err = o.registrations(ctx, tx)
		return err
	})
	if err != nil {
		return claim{}, fmt.Errorf("outbox: claim: %w", err)
	}
	return c, nil
}

// heads drops rows whose aggregate has an earlier row that is NEW, DISPATCHING, parked or
// due, unless that row is in this claim too or leased by this instance. It reads after
// the rows are locked. So two instances never work on two events of one aggregate.
func (s *session) heads(ctx context.Context, tx bun.Tx, rows []eventrow.Row) ([]eventrow.Row, error) {
	if len(rows) == 0 {
		return nil, nil
	}
	o, pairs := s.p.ob, make([]dialect.Pair, len(rows))
	for i, r := range rows {
		pairs[i] = dialect.Pair{ID: r.OutboxID}
	}
	query := "SELECT e.id, p.id FROM " + o.d.FromPairs(table, pairs) + " JOIN " + table + " p ON " + o.d.Siblings("p", "e") + " AND p.id < e.id " +
		"WHERE p.status IN ('NEW', 'DISPATCHING', 'SCHEDULED') AND NOT (p.status = 'DISPATCHING' AND p.locked_by = ? AND p.next_retry_at > " + o.d.Now + ") " +
		"AND NOT (p.status = 'SCHEDULED' AND p.lock_version = 0 AND p.next_retry_at > " + o.d.Now + ")"
	found, err := tx.QueryContext(ctx, query, s.p.owner)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	earlier := make(map[int64][]int64)
	for found.Next() {
		var row, before int64
		if err := found.Scan(&row, &before); err != nil {
			return nil, err
		}
		earlier[row] = append(earlier[row], before)
	}
	if err := found.Err(); err != nil {
		return nil, err
	}
	return withoutBlocked(rows, earlier), nil
}

// withoutBlocked keeps, in id order, the rows all of whose earlier rows are kept as well.
func withoutBlocked(rows []eventrow.Row, earlier map[int64][]int64) []eventrow.Row {
	rows = slices.Clone(rows)
	slices.SortFunc(rows, func(a, b eventrow.Row) int { return int(a.OutboxID - b.OutboxID) })
	kept := make(map[int64]bool, len(rows))
	return slices.DeleteFunc(rows, func(r eventrow.Row) bool {
		for _, before := range earlier[r.OutboxID] {
			if !kept[before] {
				return true
			}
		}
		kept[r.OutboxID] = true
		return false
	})
}

// lease turns the locked rows into DISPATCHING rows of this instance, in id order.
func (s *session) lease(ctx context.Context, tx bun.Tx, rows []eventrow.Row, expired bool) error {
	o, pairs, count := s.p.ob, make([]dialect.Pair, len(rows)), ""
	for i, r := range rows {
		pairs[i] = dialect.Pair{ID: r.OutboxID, Version: r.LockVersion}
		rows[i].LockVersion++
		if expired {
			rows[i].RetryCount++
			count = "retry_count = retry_count + 1, "
		}
	}
	_, err := tx.ExecContext(ctx, o.d.UpdatePairs(table, pairs,
		count+"status = 'DISPATCHING', locked_by = ?, lock_version = lock_version + 1, next_retry_at = "+o.d.After+", updated_at = "+o.d.Now,
		"e.lock_version = t.v"), s.p.owner, dialect.Micro(s.p.cfg.Lease))
	return err
}

func (s *session) scheduled() string { return dueScheduled + s.p.ob.d.Now }
func (s *session) expired() string   { return dueExpired + s.p.ob.d.Now }
