package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/bluecone-go/bluecone/internal/engine/budget"
	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/delivery"
	"github.com/bluecone-go/bluecone/internal/engine/health"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/store"
)

// registryFor is how old the registry may be that events are handed over by. Settling looks again.
const registryFor = time.Second

// turn is what one turn of the loop is about.
type turn struct {
	isHandedOver bool // events were handed over
	isBeat       bool // it is time to look at what has fallen due
	isFull       bool // it is time to look at everything
	isExhaustive bool // it goes on until nothing is due any more
}

// claims takes what is due, each kind in its turn, and dispatches it. Only the goroutine of the loop uses it.
type claims struct {
	cfg      *Config
	handover *claim.Handover
	claimer  *claim.Claimer
	plan     *claim.Plan
	alarm    *claim.Alarm
	more     chan struct{} // the last turn has left something
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
			signal(c.more)
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
	case <-c.lanes.Freed():
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
	defer c.budget.Turn()()
	r, err := c.claimer.Claim(ctx, kind, from, limit, c.flights.FreeBytes())
	if err != nil {
		return r, fmt.Errorf("outbox: claim: %w", err)
	}
	return r, nil
}

// claimDelayed leases events that their producers delayed.
func (c *claims) claimDelayed(ctx context.Context, limit int) (claim.Result, error) {
	defer c.budget.Turn()()
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
	if len(others) == 0 {
		return nil
	}
	taken, _, err := c.claimByID(ctx, others)
	if err != nil || len(taken.Rows) == 0 {
		return err
	}
	return c.dispatch.dispatch(ctx, taken)
}

// receive leases handed over events and dispatches them. What it cannot take has to be claimed: then it reports false, and the
// plan knows.
func (c *claims) receive(ctx context.Context) (isDone bool, err error) {
	c.plan.Worked(time.Now())
	if isDone, err = c.leaseHandedOver(ctx); err == nil && !isDone {
		c.plan.Add(time.Now(), claim.Of(claim.New))
	}
	return isDone, err
}

func (c *claims) leaseHandedOver(ctx context.Context) (isDone bool, err error) {
	ids, ok := c.handover.Take()
	room, _ := c.lanes.Room()
	if !ok || len(ids) > min(c.flights.Free(), room) {
		return false, nil
	}
	if len(ids) == 0 {
		return true, nil
	}
	if _, age := c.roster.Last(); age > registryFor {
		if err := c.roster.Refresh(ctx); err != nil {
			return false, err
		}
	}
	taken, blocked, err := c.claimByID(ctx, ids)
	if err != nil {
		return false, err
	}
	if blocked > 0 {
		c.alarm.Set(claim.BlockedFor)
	}
	if len(taken.Rows) == 0 {
		return true, nil
	}
	return true, c.dispatch.dispatch(ctx, taken)
}

// claimByID leases events that nobody has claimed yet, and gives back those that an earlier event
// of their aggregate blocks.
func (c *claims) claimByID(ctx context.Context, ids []string) (taken claimed, blocked int, err error) {
	defer c.budget.Turn()()
	r, behind, err := c.claimer.ClaimByID(ctx, ids)
	if err != nil {
		return claimed{}, 0, fmt.Errorf("outbox: %w", err)
	}
	r.Rows = c.flights.Without(r.Rows)
	r.Registry, _ = c.roster.Last()
	behind = c.flights.Without(behind)
	return claimed{Result: r, isByID: true}, len(behind), c.giveBack(ctx, behind)
}

func (c *claims) giveBack(ctx context.Context, rows []eventrow.Row) error {
	return c.settling.GiveBack(ctx, rows, settle.Return{Status: settle.New})
}

// retryAll lets the lanes run all deliveries that wait in the consume log and are due.
func (c *claims) retryAll(ctx context.Context) error {
	waiting, err := c.queues.DueConsumers(ctx, c.cfg.DB)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	return c.lanes.Retry(ctx, waiting)
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
