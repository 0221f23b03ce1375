package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// succeedPredecessor ends the leases of the run before this one under the same name, if that has not ended as it should
// and is not about to.
// Names are unique in the deployment, so it is dead: nobody has to wait for the end of its leases. Should it be frozen,
// then it finds out by the lock versions, as when its leases run out.
func (s *session) succeedPredecessor(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.p.cfg.Lease)
	defer cancel()
	if err := s.expirePredecessor(ctx); err != nil {
		s.p.ob.logger.Log(ctx, s.outage.level(ctx, err), "the leases of the run before this one could not be ended; they run out by themselves", telemetry.Err, err)
	}
	if err := s.wakeForgotten(ctx); err != nil {
		s.p.ob.logger.Log(ctx, s.outage.level(ctx, err), "deliveries that a process may have left asleep could not be woken; they look again by themselves", telemetry.Err, err)
	}
}

// wakeForgotten wakes deliveries that nothing is before any more. Whoever ends one wakes the next, unless it dies in between:
// then its successor does, under whatever name it starts.
func (s *session) wakeForgotten(ctx context.Context) error {
	asleep, err := s.p.ob.queues.Asleep(ctx, s.p.ob.db)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	return s.lanes.WakeForgotten(ctx, asleep)
}

func (s *session) expirePredecessor(ctx context.Context) error {
	o := s.p.ob
	var before sql.NullString
	err := o.db.QueryRowContext(ctx, "SELECT run_id FROM bc_instance WHERE name = ? AND draining = 0", s.p.name).Scan(&before)
	if errors.Is(err, sql.ErrNoRows) || (err == nil && (before.String == "" || before.String == s.p.owner)) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("outbox: look for a run before this one: %w", err)
	}
	for more := true; more; {
		if more, err = s.expireEvents(ctx, before.String); err != nil {
			return fmt.Errorf("outbox: end the leases of %s: %w", before.String, err)
		}
	}
	leased, err := o.queues.Leased(ctx, o.db)
	if err != nil {
		return fmt.Errorf("outbox: end the leases of %s: %w", before.String, err)
	}
	return s.lanes.Expire(ctx, leased, before.String)
}

// expireEvents ends leases of events, and tells whether there may be more.
func (s *session) expireEvents(ctx context.Context, owner string) (more bool, err error) {
	defer s.lanes.Turn()()
	o := s.p.ob
	err = o.inTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		var ids []int64
		err := tx.NewRaw("SELECT e.id FROM "+o.d.Due(table)+" WHERE e.status = 'DISPATCHING'"+inDueIndex+" AND e.next_retry_at > "+o.d.Now+
			" AND e.locked_by = ? ORDER BY e.next_retry_at, e.id LIMIT ?"+o.d.SkipLocked, owner, dialect.MostIDs).Scan(ctx, &ids)
		if more = len(ids) == dialect.MostIDs; err != nil || len(ids) == 0 {
			return err
		}
		slices.Sort(ids)
		_, err = tx.ExecContext(ctx, o.d.UpdateIDs(table, dialect.Pairs(ids), "next_retry_at = "+o.d.Now+", lock_version = lock_version + 1", "1 = 1"))
		return err
	})
	return more, err
}
