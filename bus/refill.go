package bus

import (
	"context"
	"errors"
	"slices"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// refill claims due deliveries into the queue, in the background, until nothing
// more is due or the queue is full. A call while it works makes it look once more.
func (ln *lane) refill() {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.refillLocked()
}

func (ln *lane) refillLocked() {
	if ln.closed || ln.claiming {
		ln.again = ln.claiming
		return
	}
	ln.claiming = true
	ln.l.wg.Go(func() {
		for ln.claimDue(ln.l.work) {
		}
	})
}

// mostRetried is how many waiting deliveries one claim takes: each counts as an attempt from then on.
const mostRetried = 200

// claimDue claims once, and reports whether to go on.
func (ln *lane) claimDue(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, ln.l.host.Lease) // a connection may be lost without a word
	defer cancel()
	ln.mu.Lock()
	ln.again = false
	room := min(ln.depth()-len(ln.queue), ln.c.cfg.Batch*2, mostRetried)
	closed := ln.closed
	ln.mu.Unlock()
	more := false
	if room > 0 && !closed && !ln.isHalted() {
		claimed, err := ln.claim(ctx, room)
		ln.admit(ctx, claimed)
		more = len(claimed) == room
		if err == nil && len(claimed) == 0 {
			ln.catchUp()
		}
	}
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if more || ln.again {
		return true
	}
	ln.claiming = false
	return false
}

// claim leases due deliveries. Each counts as an attempt from then on: if nobody knows whether that has
// been stored, the database is asked what is leased.
func (ln *lane) claim(ctx context.Context, most int) ([]consumelog.Leased, error) {
	var claimed []consumelog.Leased
	err := ln.l.Write(ctx, func() (err error) {
		claimed, err = ln.l.bus.log.Claim(ctx, consumelog.ClaimQuery{Gate: ln.gate(), Types: ln.c.EventTypes(), Lease: ln.l.host.Lease, Limit: most})
		return err
	})
	if err == nil {
		return claimed, nil
	}
	ln.l.bus.logger.Log(ctx, ln.level(ctx, err), "waiting deliveries could not be claimed; the next beat tries again", telemetry.Consumer, ln.c.name, telemetry.Err, err)
	if len(claimed) == 0 {
		return nil, err
	}
	var lost []int64
	err = ln.insist(ctx, func(ctx context.Context) (err error) {
		lost, err = ln.l.bus.log.Lost(ctx, ln.l.host.Instance, claimed)
		return err
	})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(claimed, func(d consumelog.Leased) bool { return slices.Contains(lost, d.ID) }), nil
}

// catchUp ends a time behind: nothing waits in the consume log any more that is due.
func (ln *lane) catchUp() {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if len(ln.queue) == 0 {
		ln.behind, ln.debt = false, 0
	}
}

// admit loads the events of claimed deliveries and queues them.
func (ln *lane) admit(ctx context.Context, claimed []consumelog.Leased) {
	if len(claimed) == 0 {
		return
	}
	ids := make([]string, len(claimed))
	for i, c := range claimed {
		ids[i] = c.EventID
	}
	envs, err := ln.l.bus.envelopes(ctx, ids)
	var ready []*delivery
	for i := range claimed {
		lease := claimed[i]
		d := &delivery{lease: &lease, own: new(Lease), attempt: lease.Attempts, env: envs[lease.EventID]}
		if d.env == nil {
			d.env = &Envelope{OutboxID: lease.OutboxID, ID: lease.EventID, Type: lease.EventType, AggregateType: lease.AggregateType, AggregateID: lease.AggregateID, MaxAttempts: lease.Attempts}
		}
		switch {
		case err != nil:
			ln.postpone(ctx, d, err)
		case envs[lease.EventID] == nil:
			ln.fail(ctx, d, Permanent(errors.New("the event's row does not exist any more")))
		default:
			ready = append(ready, d)
		}
	}
	if !ln.readmit(ready) {
		for _, d := range ready {
			ln.giveBack(ctx, d)
		}
	}
}
