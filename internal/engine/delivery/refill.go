package delivery

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// refill claims due deliveries into the queue, in the background, until it has seen all that is due
// or the queue is full. A call while it works makes it begin once more.
func (ln *lane) refill() {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.refillLocked()
}

func (ln *lane) refillLocked() {
	if ln.closed {
		return
	}
	ln.again = true
	if ln.claiming {
		return
	}
	ln.claiming = true
	ln.l.wg.Go(func() {
		for ln.begins() {
			began := time.Now() // what is blocked is put off, and must not be met again
			for ln.claimInTurn(began) {
			}
		}
	})
}

// claimInTurn is [lane.claimDue] when it is the lane's turn: a claim ends within the length of a lease.
func (ln *lane) claimInTurn(began time.Time) (more bool) {
	ln.l.claims <- struct{}{}
	defer func() { <-ln.l.claims }()
	return ln.claimDue(ln.l.work, time.Since(began))
}

// begins tells whether refill has to begin, because of the first call or another since then.
func (ln *lane) begins() bool {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.claiming, ln.again = ln.again, false
	return ln.claiming
}

// One claim takes so many waiting deliveries.
const (
	mostWaiting = 200 // that have never run
	mostRetried = 100 // that run again, and as many of those whose lease has run out
)

// leaseShare is how many deliveries of one kind to have leased that have not started: each kind has a third. It needs ln.mu.
func (ln *lane) leaseShare() int { return (ln.depth() + 2) / 3 }

// roomInQueue is how many more deliveries of each kind the queue takes from the consume log. It needs ln.mu.
func (ln *lane) roomInQueue() store.Limits {
	share := ln.leaseShare()
	room := func(kind claim.Kind, most int) int {
		return max(min(share-ln.queued(kind), ln.c.Config.Batch*2, most, ln.fitting), 0)
	}
	limits := store.Limits{
		Pending: room(claim.Deliveries, mostWaiting), Failed: room(claim.Retries, mostRetried), Processing: room(claim.Orphans, mostRetried),
	}
	if limits == (store.Limits{}) { // nobody looks: there may be some of each
		ln.more = claim.Of(claim.Deliveries) | claim.Of(claim.Retries) | claim.Of(claim.Orphans)
	}
	return limits
}

// isHungry tells whether the consume log may hold more of what the queue has few of. It needs ln.mu.
func (ln *lane) isHungry() bool {
	share := ln.leaseShare()
	few := func(kind claim.Kind) bool { return ln.more.Has(kind) && 2*ln.queued(kind) <= share }
	return (ln.behind && 2*len(ln.queue) <= ln.depth()) || few(claim.Deliveries) || few(claim.Retries) || few(claim.Orphans)
}

// claimDue claims once what has been due for so long, and reports whether there may be more of it.
func (ln *lane) claimDue(ctx context.Context, dueFor time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, ln.l.host.Lease) // a connection may be lost without a word
	defer cancel()
	ln.mu.Lock()
	room := ln.roomInQueue()
	closed := ln.closed
	ln.mu.Unlock()
	if ln.l.room.mustWait(ln) {
		return false
	}
	got, all := 0, true
	defer func() { ln.l.room.turn(ln, got > 0, all) }()
	if room == (store.Limits{}) || closed || ln.isHalted() {
		return false
	}
	left := ln.findLeft(ctx, (room.Pending+1)/2)
	room.Pending -= len(left)
	claimed, err := ln.claim(ctx, room, dueFor, left)
	got, all = ln.admit(ctx, claimed.Deliveries)
	if err == nil && claimed.Found == (store.Limits{}) && len(left) == 0 {
		ln.catchUp()
	}
	ln.noteFitting(got, all)
	if !all { // the rest is claimed when there is room
		ln.noteMore(claimed.Found, room, len(left) > 0)
		return false
	}
	return ln.noteMore(claimed.Found, room, len(left) > 0) || claimed.Woken > 0
}

// noteMore notes of which kinds a claim with so much room may have left some, and tells whether it is of any; left says
// that it was also one of what others have left.
func (ln *lane) noteMore(found, room store.Limits, left bool) bool {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.more = 0
	again := left && ln.left.on
	for _, of := range []struct {
		kind        claim.Kind
		found, room int
	}{{claim.Deliveries, found.Pending, room.Pending}, {claim.Retries, found.Failed, room.Failed}, {claim.Orphans, found.Processing, room.Processing}} {
		if of.found == of.room { // none, if there was no room
			ln.more |= claim.Of(of.kind)
			again = again || of.room > 0
		}
	}
	return again
}

// noteFitting notes how many deliveries to claim of a kind: as many as fitted last time, and twice as many when all did. Each
// that is given back was leased, and its length read, in vain.
func (ln *lane) noteFitting(got int, all bool) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if all {
		ln.fitting = min(2*ln.fitting, mostWaiting)
	} else {
		ln.fitting = max(got, 1)
	}
}

// claim leases due deliveries. If nobody knows whether that has been stored, the database is asked what is leased:
// forgotten, they would wait for the end of their leases.
func (ln *lane) claim(ctx context.Context, room store.Limits, dueFor time.Duration, left []int64) (claimed store.Claimed, err error) {
	err = ln.l.Write(ctx, func() (err error) {
		claimed, err = ln.l.regs.Log.Claim(ctx, store.ClaimQuery{Gate: ln.gate(), Types: ln.c.EventTypes(), Lease: ln.l.host.Lease, Limits: room, DueFor: dueFor, Left: left})
		return err
	})
	if err == nil {
		return claimed, nil
	}
	ln.l.regs.Logger.Log(ctx, ln.level(ctx, err), "waiting deliveries could not be claimed; the next beat tries again", telemetry.Consumer, ln.c.Name, telemetry.Err, err)
	if len(claimed.Deliveries) == 0 {
		return store.Claimed{}, err
	}
	var lost []int64
	err = ln.insist(ctx, func(ctx context.Context) (err error) {
		lost, err = ln.l.regs.Log.Lost(ctx, ln.l.host.Instance, claimed.Deliveries)
		return err
	})
	if err != nil {
		return store.Claimed{}, err
	}
	claimed.Deliveries = slices.DeleteFunc(claimed.Deliveries, func(d store.Leased) bool { return slices.Contains(lost, d.ID) })
	return claimed, nil
}

// WakeForgotten lets the lanes of these consumers, by their keys, wake what sleeps in the consume log although nothing is
// before it; others are passed over.
func (l *Lanes) WakeForgotten(ctx context.Context, asleep []string) error {
	for _, key := range asleep {
		ln := l.lanes[key]
		if ln == nil || ln.c.Config.Unordered { // who keeps no order lets nobody sleep
			continue
		}
		var woken int
		err := l.Write(ctx, func() (err error) {
			woken, err = l.regs.Log.WakeForgotten(ctx, ln.gate())
			return err
		})
		if err != nil {
			return err
		}
		if woken > 0 {
			ln.refill()
		}
	}
	return nil
}

// catchUp ends a time behind: nothing waits in the consume log any more that is due.
func (ln *lane) catchUp() {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if len(ln.queue) == 0 {
		ln.behind, ln.debt = false, 0
	}
}

// admit loads the events of claimed deliveries and queues them. What does not fit into the room for payloads is given back
// and due at once: the lane claims it when there is room. It reports how many were loaded, and whether all.
func (ln *lane) admit(ctx context.Context, claimed []store.Leased) (got int, all bool) {
	if len(claimed) == 0 {
		return 0, true
	}
	ids := make([]string, len(claimed))
	for i, c := range claimed {
		ids[i] = c.EventID
	}
	taken := 0
	events, more, err := ln.l.load(ctx, ids, func(bytes int) bool {
		ok := ln.l.room.take(ln, bytes)
		if ok {
			taken += bytes
		}
		return ok
	})
	var ready, unknown, late []*delivery
	for i := range claimed {
		lease := claimed[i]
		event, found := events[lease.EventID]
		d := &delivery{kind: kindOf(lease), lease: &lease, own: new(Lease)}
		d.Attempt, d.Replay = lease.Attempts, store.IsReplay(lease.Consumer)
		if found {
			d.Event, d.bytes = event, event.Size
		} else {
			d.Event = &eventrow.Row{OutboxID: lease.OutboxID, ID: lease.EventID, Type: lease.EventType, AggregateType: lease.AggregateType, AggregateID: lease.AggregateID, MaxAttempts: lease.Attempts}
		}
		switch {
		case err != nil:
			ln.postpone(ctx, d, err)
		case !found && more:
			late = append(late, d)
		case !found:
			ln.fail(ctx, d, handler.Permanent(errors.New("the event's row does not exist any more")))
		case !ln.c.Knows(d.Event.Type, d.Event.SchemaVersion):
			unknown = append(unknown, d)
		default:
			taken -= d.bytes // until its batch has ended
			ready = append(ready, d)
		}
	}
	ln.leave(ctx, unknown)
	if len(late) > 0 {
		ln.putBackAll(ctx, late, 0)
	}
	if !ln.readmit(ready) {
		for _, d := range ready {
			ln.giveBack(ctx, d)
		}
	}
	ln.l.room.give(taken)
	return len(events), !more
}
