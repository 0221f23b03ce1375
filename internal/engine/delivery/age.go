package delivery

import (
	"context"
	"errors"
	"time"

	"github.com/bluecone-go/bluecone/internal/engine/flow"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

const (
	// giveUpEvery is how often a consumer whose circuit is open looks for deliveries that are too old: it walks along all that
	// have failed.
	giveUpEvery = 10 * time.Second
	// mostGivenUp is how many of them it ends by one claim, and mostGivenUpBytes how many bytes of payloads it loads for that.
	mostGivenUp      = 50
	mostGivenUpBytes = 4 << 20
)

// isCutOff reports whether the circuit alone keeps the lane from starting anything.
func (q *retryQueue) isCutOff() bool {
	q.ln.mu.Lock()
	defer q.ln.mu.Unlock()
	return q.ln.speed.Circuit.State(time.Now()) == flow.Open && !q.l.isPaused(q.c)
}

// giveUp ends the deliveries that have failed for longer than their limit allows. While the circuit is open one delivery at a
// time is tried, and those that never ran come first: the others would be tried, and end, much later or never.
func (q *retryQueue) giveUp(ctx context.Context) {
	if time.Since(q.gaveUp) < giveUpEvery {
		return
	}
	q.gaveUp = time.Now()
	for limit, types := range q.ageLimits() {
		for more := true; more && ctx.Err() == nil; {
			var err error
			if more, err = q.giveUpPage(ctx, limit, types); err != nil {
				q.l.regs.Logger.Log(ctx, q.ln.out.level(ctx, err), "deliveries that are too old could not be ended; the next look tries again",
					telemetry.Consumer, q.c.Name, telemetry.Err, err)
				return
			}
		}
	}
}

// ageLimits are the consumer's event types by how long their deliveries are tried.
func (q *retryQueue) ageLimits() map[time.Duration][]string {
	limits := make(map[time.Duration][]string)
	for _, t := range q.c.EventTypes() {
		if limit := q.c.MaxAge(t); limit > 0 {
			limits[limit] = append(limits[limit], t)
		}
	}
	return limits
}

// giveUpPage ends some deliveries that are too old, and tells whether there may be more. Those whose events do not fit into this page
// are given back and due at once: Config.OnDeadLetter gets the whole event.
func (q *retryQueue) giveUpPage(ctx context.Context, limit time.Duration, types []string) (more bool, err error) {
	var aged []store.Aged
	err = q.l.cfg.Budget.Write(ctx, func() (err error) {
		aged, err = q.l.regs.Log.ClaimAged(ctx, store.AgedQuery{
			Consumer: q.c.Key, Types: types, Owner: q.l.cfg.Instance, Lease: q.l.cfg.Lease, Age: limit, Limit: mostGivenUp,
		})
		return err
	})
	if err != nil || len(aged) == 0 {
		return false, err
	}
	ids, bytes := make([]string, len(aged)), 0
	for i, a := range aged {
		ids[i] = a.EventID
	}
	events, isPart, err := q.l.load(ctx, ids, func(n int) bool { bytes += n; return bytes == n || bytes <= mostGivenUpBytes })
	if err != nil {
		return false, err // their leases run out
	}
	var late []*delivery
	for _, a := range aged {
		event, found := events[a.EventID]
		d := fromLog(a.Leased, event)
		if !found && isPart {
			late = append(late, d)
			continue
		}
		why := handler.GivenUp(d.sinceFirstRun(), limit, a.Error)
		q.ln.out.conclude(ctx, d, store.Verdict{Status: store.Dead, Error: why}, errors.New(a.Error))
	}
	if len(late) > 0 {
		q.ln.out.putBackAll(ctx, late, 0)
	}
	return isPart || len(aged) == mostGivenUp, nil
}
