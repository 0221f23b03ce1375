package reaper

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// outcome is what becomes of an expired lock.
type outcome int

const (
	released outcome = iota // given back
	held                    // an event is unfinished for its consumer
	dead                    // a DEAD delivery to its consumer holds it
	kept                    // its owner's guard keeps it
	gone                    // somebody else has settled it
)

func (r *Report) add(o outcome) {
	switch o {
	case released:
		r.Released++
	case held:
		r.Held++
	case dead:
		r.Dead++
	case kept:
		r.Kept++
	case gone:
		r.Gone++
	}
}

// decided is a lock of a task, and what has become of it.
type decided struct {
	task Task
	lock Lock
	as   outcome
}

// reapLock decides about one lock, in a transaction of its own, and lets the other locks of its owner go with it.
func (r *Reaper) reapLock(ctx context.Context, t Task, l Lock, report *Report) error {
	var all []decided
	err := r.db.RunInTx(ctx, r.d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) (err error) {
		all, err = r.decide(ctx, tx, t, l)
		return err
	})
	if err != nil {
		return err
	}
	for _, d := range all {
		report.add(d.as)
		r.tell(ctx, d)
	}
	return nil
}

// decide first locks the owner's row. From then on no event of the aggregate can commit: saving one needs that lock.
func (r *Reaper) decide(ctx context.Context, tx bun.Tx, t Task, l Lock) ([]decided, error) {
	may, err := t.Owner.Guard(ctx, tx, l.Aggregate())
	if err != nil {
		return nil, fmt.Errorf("ask the owner's guard: %w", err)
	}
	if !may {
		return []decided{{t, l, kept}}, nil
	}
	as, err := r.release(ctx, tx, t, l)
	all := []decided{{t, l, as}}
	if err != nil || as != released {
		return all, err
	}
	more, err := r.releaseOthers(ctx, tx, t, l)
	if err == nil && t.Owner.Released != nil {
		err = t.Owner.Released(ctx, tx, l.Aggregate())
	}
	return append(all, more...), err
}

// releaseOthers releases the other locks of the aggregate whose lock l has been released. Those that something holds
// stay: the owner has said that they may go, not that they must.
func (r *Reaper) releaseOthers(ctx context.Context, tx bun.Tx, t Task, l Lock) (all []decided, err error) {
	for _, other := range r.tasks {
		if other.Owner != t.Owner || other.Of == nil {
			continue
		}
		locks, err := other.Of(ctx, tx, l.Aggregate())
		if err != nil {
			return nil, fmt.Errorf("%s: locks of the aggregate: %w", other.Name, err)
		}
		for _, k := range locks {
			if other.Name == t.Name && k.ID == l.ID {
				continue
			}
			as, err := r.release(ctx, tx, other, k)
			if err != nil {
				return nil, fmt.Errorf("%s: lock %s: %w", other.Name, k.ID, err)
			}
			if as == released {
				all = append(all, decided{other, k, as})
			}
		}
	}
	return all, nil
}

// release gives one lock back, unless something holds it.
func (r *Reaper) release(ctx context.Context, tx bun.Tx, t Task, l Lock) (outcome, error) {
	waiting, buried, err := r.events.OpenEvents(ctx, tx, l.TenantID, l.AggregateType, l.AggregateID, t.Consumer)
	switch {
	case err != nil:
		return held, err
	case waiting > 0:
		return held, nil
	case buried > 0 && (!t.ReleaseDead || l.Age < r.cfg.DeadTimeout):
		return dead, nil
	}
	done, err := t.Release(ctx, tx, l)
	if err != nil || !done {
		return gone, err
	}
	return released, r.note(ctx, tx, t, l)
}

// note leaves in the audit log that a lock was released, so that people find out what became of it.
func (r *Reaper) note(ctx context.Context, tx bun.Tx, t Task, l Lock) error {
	return store.WriteAudit(ctx, tx, r.d, store.AuditEntry{
		Actor: "reaper", Action: "release", Target: store.AggregateTarget(l.AggregateType, l.AggregateID),
		Reason: "the lock was " + l.Age.Round(time.Second).String() + " old", Details: t.Name + " " + l.ID,
	})
}

func (r *Reaper) tell(ctx context.Context, d decided) {
	l := d.lock
	attrs := []any{
		"task", d.task.Name, "lock", l.ID, telemetry.AggregateType, l.AggregateType, telemetry.AggregateID, l.AggregateID,
		"tenant", l.TenantID, "age", l.Age,
	}
	switch {
	case d.as == released:
		telemetry.Add(ctx, r.released, 1, "task", d.task.Name)
		r.cfg.Logger.InfoContext(ctx, "lock released", attrs...)
	case d.as == dead && l.Age >= r.cfg.DeadTimeout:
		r.cfg.Logger.ErrorContext(ctx, "lock is held by a DEAD delivery: retry or skip it", attrs...)
	default:
		r.cfg.Logger.DebugContext(ctx, "lock left alone", attrs...)
	}
}
