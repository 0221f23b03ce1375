package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bluecone-go/bluecone/internal/engine/backfill"
	"github.com/bluecone-go/bluecone/internal/engine/budget"
	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/delivery"
	"github.com/bluecone-go/bluecone/internal/engine/health"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/store"
)

// registryFor is how old the registry may be that events are handed over by. Settling looks again.
const registryFor = time.Second

// claims takes what is due, each kind in its turn, and dispatches it. Only the goroutine of the loop uses it.
type claims struct {
	cfg      *Config
	handover *claim.Handover
	claimer  *claim.Claimer
	plan     *claim.Plan
	alarm    *claim.Alarm
	more     chan struct{} // the last pass has left something
	statements

	lanes    *delivery.Lanes
	flights  *settle.Flights
	settling *settle.Settling
	roster   *registry.Roster
	budget   *budget.Transactions
	silence  *health.Silence
	dispatch *dispatcher
}

// statements look for what is due.
type statements struct {
	events store.Claims
	queues store.Queues
}

func newStatements(cfg *Config) statements {
	return statements{events: store.NewClaims(cfg.Dialect, cfg.Statements), queues: store.NewQueues(cfg.Dialect, cfg.Statements)}
}

// handedOver are the events that were handed over. If there is no room for them they have to be claimed: then it answers none
// and false, and the plan knows.
func (c *claims) handedOver() (ids []string, areAll bool) {
	c.plan.Worked(time.Now())
	ids, ok := c.handover.Take()
	room, _ := c.lanes.Room()
	if !ok || len(ids) > min(c.flights.Free(), room) {
		c.plan.Add(time.Now(), claim.Of(claim.New))
		return nil, false
	}
	return ids, true
}

// cycle claims what is due and hands it to the lanes, each kind in its turn, until nothing that it knows of is left. Unless
// it has to be exhaustive, it ends when the time has come to look again at what else has fallen due.
func (r *run) cycle(ctx context.Context, t pass) error {
	if t.isFull {
		if err := r.upkeep.Sweep(ctx); err != nil {
			return err
		}
		r.claims.claimer.WalkThoroughly()
	}
	if t.isBeat {
		if err := r.claims.look(ctx, t.isExhaustive); err != nil {
			return err
		}
	}
	takesOver := r.lanes.Signals.HaveTakenOver() || r.claims.plan.Due().Has(claim.Expired)
	err := r.claims.claimInTurns(ctx, t.isExhaustive)
	if err == nil && takesOver {
		err = r.upkeep.WakeAfterExpiry(ctx)
	}
	if !t.isFull || err != nil {
		return err
	}
	r.claims.claimer.Relax()
	if err := r.spiller.Write(ctx); err != nil {
		return err
	}
	return r.claims.retryAll(ctx) // also what the claims have made wait
}

// look looks, in one statement that locks nothing, for kinds of due work that the plan does not know of. An instance that
// has nothing to do asks nothing else.
func (c *claims) look(ctx context.Context, isExhaustive bool) error {
	question := c.plan.Question(c.lanes.Left())
	began := time.Now()
	answer, err := c.events.LookForDue(ctx, c.cfg.DB, question)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	if answer.Left {
		if err := c.lanes.TakeLeft(ctx, isExhaustive); err != nil {
			return err
		}
	}
	c.plan.Answered(began, time.Now(), answer, c.lanes.Has(answer.Consumers))
	return nil
}

// claimInTurns claims what is known to be due.
func (c *claims) claimInTurns(ctx context.Context, isExhaustive bool) error {
	until := c.plan.NextLook(c.cfg.Poll)
	for ctx.Err() == nil && c.plan.Due() != 0 {
		if !isExhaustive && !time.Now().Before(until) {
			claim.Signal(c.more)
			return nil
		}
		pages := c.pages()
		kind, ok := c.plan.NextOf(pages)
		switch {
		case !ok:
			c.waitForRoom(ctx)
		case kind == claim.Deliveries:
			c.plan.Taken(kind, false)
			if err := c.lanes.Retry(ctx, c.plan.Consumers()); err != nil {
				return err
			}
		default:
			more, err := c.claimPage(ctx, kind, pages[kind])
			if err != nil {
				return err
			}
			c.plan.Taken(kind, more)
		}
	}
	return nil
}

// pages tells how many events of each kind that is due a claim takes now.
func (c *claims) pages() (p claim.Pages) {
	for kind := range p {
		if kind := claim.Kind(kind); c.plan.Due().Has(kind) {
			r := claim.Room{InFlight: c.flights.Free(), MostInFlight: c.flights.Most()}
			if kind == claim.New {
				r.Lanes, r.MostLanes = c.lanes.Room()
			} else {
				r.Lanes, r.MostLanes = c.lanes.RoomFor(kind)
			}
			p[kind] = c.plan.PageSize(kind, r)
		}
	}
	return p
}

// waitForRoom waits until it may be worth asking again for what there is room.
func (c *claims) waitForRoom(ctx context.Context) {
	c.silence.Reset()
	select {
	case <-c.flights.Settled():
	case <-c.lanes.Signals.Freed():
	case <-time.After(20 * time.Millisecond): // a lane may have to fall behind
	case <-ctx.Done():
	}
}

// claimPage claims once, and reports whether more of the kind is due.
func (c *claims) claimPage(ctx context.Context, kind claim.Kind, size int) (more bool, err error) {
	if again := c.claimer.Rests(time.Now(), kind, c.lanes.QueuesAreEmpty()); again > 0 {
		c.alarm.Set(again)
		return false, nil
	}
	c.silence.Reset()
	began := time.Now()
	r, err := c.claimNext(ctx, kind, size)
	if err != nil {
		return false, err
	}
	took := time.Since(began)
	if len(r.Rows) > 0 {
		if err := c.dispatch.dispatch(ctx, claimed{Result: r}); err != nil {
			return false, err
		}
	}
	c.plan.Claimed(r)
	if kind == claim.New && len(r.Rows) > 0 && r.IsFull {
		if err := c.claimOtherTenants(ctx, r); err != nil {
			return false, err
		}
	}
	more, again := c.claimer.GoOn(time.Now(), r, took)
	if again > 0 {
		c.alarm.Set(again)
	}
	return more, nil
}

// claimNext leases up to limit due events of one kind, from where claims of it have got to.
func (c *claims) claimNext(ctx context.Context, kind claim.Kind, limit int) (claim.Result, error) {
	from := c.claimer.Start(time.Now(), kind)
	if kind == claim.Scheduled {
		if r, err := c.claimDelayed(ctx, limit); err != nil || r.Seen > 0 {
			return r, err
		}
	}
	over, err := c.budget.Acquire(ctx)
	if err != nil {
		return claim.Result{}, err
	}
	defer over()
	r, err := c.claimer.Claim(ctx, kind, from, limit, c.flights.FreeBytes())
	if err != nil {
		return r, fmt.Errorf("outbox: claim: %w", err)
	}
	return r, nil
}

// claimDelayed leases events that their producers delayed.
func (c *claims) claimDelayed(ctx context.Context, limit int) (claim.Result, error) {
	over, err := c.budget.Acquire(ctx)
	if err != nil {
		return claim.Result{}, err
	}
	defer over()
	r, err := c.claimer.ClaimDelayed(ctx, limit, c.flights.FreeBytes())
	if err != nil {
		return r, fmt.Errorf("outbox: claim delayed events: %w", err)
	}
	if r.IsBlocked() {
		c.alarm.Set(claim.BlockedFor)
	}
	return r, nil
}

// claimOtherTenants dispatches events of tenants that the claims of a backlog pass over.
func (c *claims) claimOtherTenants(ctx context.Context, r claim.Result) error {
	if c.flights.Free() < claim.MostHandedOver {
		return nil
	}
	others, err := c.claimer.OtherTenants(ctx, time.Now(), r)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	return c.takeByID(ctx, others)
}

// retryAll lets the lanes run all deliveries that wait in the consume log and are due.
func (c *claims) retryAll(ctx context.Context) error {
	waiting, err := c.queues.DueConsumers(ctx, c.cfg.DB)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	return c.lanes.Retry(ctx, waiting)
}

// once does a full cycle and waits for its deliveries. It does another one if it has left anything alone, and so on until a
// cycle has nothing left or does nothing.
func (r *run) once(ctx context.Context) error {
	r.lanes.RememberPutOff()
	if err := r.enrollment.Announce(ctx); err != nil {
		return err
	}
	began := time.Now()
	for before := (progress{-1, -1, -1}); r.progress() != before; {
		before = r.progress()
		r.claims.plan.ForgetPassedOver()
		isMoved, err := r.backfill(ctx)
		if err != nil {
			return err
		}
		all := pass{isBeat: true, isFull: true, isExhaustive: true}
		if err := r.silence.Limit(ctx, func(ctx context.Context) error { return r.cycle(ctx, all) }); err != nil {
			r.settling.NoteOrphans()
			return err
		}
		r.waitUntilIdle(ctx)
		var isLeft, isWoken bool
		err = r.silence.Limit(ctx, func(ctx context.Context) (err error) {
			if isWoken, err = r.lanes.WakePutOff(ctx); err == nil {
				isLeft, err = r.claims.isLeft(ctx, time.Since(began))
			}
			return err
		})
		if ctx.Err() != nil || err != nil || (!isLeft && !isMoved && !isWoken) {
			return errors.Join(ctx.Err(), err)
		}
	}
	return ctx.Err()
}

// backfill gives each new consumer that wants the past a page of it, and tells whether there was one.
func (r *run) backfill(ctx context.Context) (isMoved bool, err error) {
	var did backfill.Result
	err = r.silence.Limit(ctx, func(ctx context.Context) (err error) {
		if err = r.claims.roster.Refresh(ctx); err == nil {
			did, err = r.backfills.Step(ctx)
		}
		return err
	})
	return did.IsGiven, err
}

// progress is how much a run has done: events that it has claimed, deliveries from the retry queues that have ended, and past
// events that it has looked at for new consumers.
type progress struct{ claimed, retried, past int64 }

func (r *run) progress() progress {
	return progress{r.dispatch.claimed.Load(), r.rollUps.Deliveries(), r.backfills.Seen()}
}

func (r *run) waitUntilIdle(ctx context.Context) {
	for ctx.Err() == nil && (r.flights.Free() < r.flights.Most() || !r.lanes.AreIdle()) {
		select {
		case <-r.flights.Settled():
		case <-time.After(2 * time.Millisecond): // lanes have no signal of their own
		case <-ctx.Done():
		}
	}
}

// isLeft reports whether the last cycle has left alone events that had to wait for others, deliveries that have been due for so
// long, or what other releases have left to this one. Claims of two lanes side by side may pass over each other's deliveries:
// MariaDB locks, besides what a claim takes, the next row of the index, which is the first of another consumer.
func (c *claims) isLeft(ctx context.Context, dueFor time.Duration) (bool, error) {
	if c.plan.HasPassedOver() {
		return true, nil
	}
	waiting, err := c.queues.DueFor(ctx, c.cfg.DB, dueFor)
	if err != nil {
		return false, fmt.Errorf("outbox: %w", err)
	}
	if c.lanes.Has(waiting) {
		return true, nil
	}
	answer, err := c.events.LookForDue(ctx, c.cfg.DB, store.DueQuestion{Left: c.lanes.Left()})
	if err != nil {
		return false, fmt.Errorf("outbox: %w", err)
	}
	return answer.Left, nil
}
