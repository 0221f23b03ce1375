package outbox

import (
	"context"
	"fmt"

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
		s.p.ob.logger.Log(ctx, s.outage.Level(ctx, err), "the leases of the run before this one could not be ended; they run out by "+
			"themselves", telemetry.Err, err)
	}
	if err := s.wakeForgotten(ctx); err != nil {
		s.p.ob.logger.Log(ctx, s.outage.Level(ctx, err), "deliveries that a process may have left asleep could not be woken; they look again "+
			"by themselves", telemetry.Err, err)
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
	before, err := o.instances.RunOf(ctx, o.db, s.p.name)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	if before == "" || before == s.p.owner {
		return nil
	}
	for more := true; more; {
		if more, err = s.expireEvents(ctx, before); err != nil {
			return fmt.Errorf("outbox: end the leases of %s: %w", before, err)
		}
	}
	leased, err := o.queues.Leased(ctx, o.db)
	if err != nil {
		return fmt.Errorf("outbox: end the leases of %s: %w", before, err)
	}
	return s.lanes.Expire(ctx, leased, before)
}

// expireEvents ends leases of events, and tells whether there may be more.
func (s *session) expireEvents(ctx context.Context, owner string) (more bool, err error) {
	defer s.budget.Turn()()
	return s.claimer.ExpireLeases(ctx, owner)
}
