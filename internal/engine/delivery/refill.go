package delivery

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/flow"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// retryQueue claims the consumer's due deliveries from the consume log into the queue of its lane. The lane's mu guards what is
// below it.
type retryQueue struct {
	l  *Lanes
	c  *handler.Consumer
	ln *lane

	isClaiming   bool
	isAskedAgain bool        // refill was called while it was claiming
	more         claim.Kinds // of which the consume log may hold more
	left         leftWalk
	size         flow.ClaimSize
	gaveUp       time.Time // when it last looked for deliveries that are too old to be tried again
}

// refill claims due deliveries into the queue, in the background, until it has seen all that is due
// or the queue is full. A call while it works makes it begin once more.
func (q *retryQueue) refill() {
	q.ln.mu.Lock()
	defer q.ln.mu.Unlock()
	q.refillLocked()
}

func (q *retryQueue) refillLocked() {
	if q.ln.isOver {
		return
	}
	q.isAskedAgain = true
	if q.isClaiming {
		return
	}
	q.isClaiming = true
	q.l.woken.Add(1)
	q.l.wg.Go(func() {
		for q.begins() {
			began := time.Now() // what is blocked is put off, and must not be met again
			for q.claimInTurn(began) {
			}
		}
	})
}

// claimInTurn is [retryQueue.claimDue] when it is the lane's turn: a claim ends within the length of a lease.
func (q *retryQueue) claimInTurn(began time.Time) (more bool) {
	q.l.claims <- struct{}{}
	defer func() { <-q.l.claims }()
	return q.claimDue(q.l.work, time.Since(began))
}

// begins tells whether refill has to begin, because of the first call or another since then.
func (q *retryQueue) begins() bool {
	q.ln.mu.Lock()
	defer q.ln.mu.Unlock()
	q.isClaiming, q.isAskedAgain = q.isAskedAgain, false
	return q.isClaiming
}

// One claim takes so many waiting deliveries.
const (
	mostWaiting = 200 // that have never run
	mostRetried = 100 // that run again, and as many of those whose lease has run out
)

// leaseLimit is how many deliveries to have leased that have not started. It needs the lane's mu.
func (q *retryQueue) leaseLimit() int { return q.ln.speed.LeaseLimit(time.Now(), len(q.ln.queue.ds)) }

// leaseShare is how many deliveries of one kind to have leased that have not started. It needs the lane's mu.
func (q *retryQueue) leaseShare(kind claim.Kind) int {
	return q.ln.speed.LeaseShare(time.Now(), len(q.ln.queue.ds), kind != claim.Orphans) // of those each runs alone
}

// roomInQueue is how many more deliveries of each kind the queue takes from the consume log. It needs the lane's mu.
func (q *retryQueue) roomInQueue() claim.Limits {
	room := func(kind claim.Kind, most int) int {
		return max(min(q.leaseShare(kind)-q.ln.queue.count(kind), q.c.Config.Batch*2, most, q.size.Limit()), 0)
	}
	limits := claim.Limits{
		Pending: room(claim.Deliveries, mostWaiting), Failed: room(claim.Retries, mostRetried), Processing: room(claim.Orphans, mostRetried),
	}
	if limits == (claim.Limits{}) { // nobody looks: there may be some of each
		q.more = claim.Of(claim.Deliveries) | claim.Of(claim.Retries) | claim.Of(claim.Orphans)
	}
	return limits
}

// mustRefill tells whether the consume log may hold more of what the queue has few of. It needs the lane's mu.
func (q *retryQueue) mustRefill() bool {
	few := func(kind claim.Kind) bool { return q.more.Has(kind) && 2*q.ln.queue.count(kind) <= q.leaseShare(kind) }
	return (q.ln.speed.Spill.IsActive() && 2*len(q.ln.queue.ds) <= q.leaseLimit()) || few(claim.Deliveries) ||
		few(claim.Retries) || few(claim.Orphans)
}

// claimDue claims once what has been due for so long, and reports whether there may be more of it.
func (q *retryQueue) claimDue(ctx context.Context, dueFor time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, q.l.cfg.Lease) // a connection may be lost without a word
	defer cancel()
	q.ln.mu.Lock()
	room := q.roomInQueue()
	closed := q.ln.isOver
	q.ln.mu.Unlock()
	if q.l.room.mustWait(q) {
		return false
	}
	got, all := 0, true
	defer func() { q.l.room.claimEnded(q, got > 0, all) }()
	if !closed && q.isCutOff() {
		q.giveUp(ctx)
	}
	if room == (claim.Limits{}) || closed || q.ln.isHalted() {
		return false
	}
	left := q.findLeft(ctx, (room.Pending+1)/2)
	room.Pending -= len(left)
	claimed, err := q.claim(ctx, room, dueFor, left)
	if claimed.Found.Processing > 0 {
		q.l.Signals.takenOver.Store(true)
	}
	got, all = q.admit(ctx, claimed.Deliveries)
	if err == nil && claimed.Found == (claim.Limits{}) && len(left) == 0 {
		q.catchUp()
	}
	q.observe(got, all)
	if !all { // the rest is claimed when there is room
		q.noteMore(claimed.Found, room, len(left) > 0)
		return false
	}
	return q.noteMore(claimed.Found, room, len(left) > 0) || claimed.Woken > 0
}

// noteMore notes of which kinds a claim with so much room may have left some in the log, and tells whether there are any; left
// says that the claim has also taken deliveries that other instances had left.
func (q *retryQueue) noteMore(found, room claim.Limits, left bool) bool {
	q.ln.mu.Lock()
	defer q.ln.mu.Unlock()
	q.more = 0
	again := left && q.left.mayBeMore
	for _, of := range []struct {
		kind        claim.Kind
		found, room int
	}{
		{claim.Deliveries, found.Pending, room.Pending},
		{claim.Retries, found.Failed, room.Failed},
		{claim.Orphans, found.Processing, room.Processing},
	} {
		if of.found == of.room { // none, if there was no room
			q.more |= claim.Of(of.kind)
			again = again || of.room > 0
		}
	}
	return again
}

// observe learns how many payloads of a claim fitted into the room for them, and whether all did.
func (q *retryQueue) observe(got int, all bool) {
	q.ln.mu.Lock()
	defer q.ln.mu.Unlock()
	q.size.Observe(got, all)
}

// claim leases due deliveries. If nobody knows whether that has been stored, the database is asked what is leased:
// forgotten, they would wait for the end of their leases.
func (q *retryQueue) claim(ctx context.Context, room claim.Limits, dueFor time.Duration, left []int64) (claimed claim.Leased, err error) {
	err = q.l.cfg.Budget.Write(ctx, func() (err error) {
		claimed, err = claim.FromLog(ctx, q.l.regs.DB, q.l.regs.Log, claim.LogQuery{
			Gate: q.l.gateOf(q.c), Types: q.c.EventTypes(), Lease: q.l.cfg.Lease, Limits: room, DueFor: dueFor, Left: left,
		})
		return err
	})
	if err == nil {
		for _, d := range claimed.PutOff {
			q.l.putOff.add(q.c.Key, d.EventID)
		}
		return claimed, nil
	}
	q.l.regs.Logger.Log(ctx, q.ln.out.level(ctx, err), "waiting deliveries could not be claimed; it is tried again in a moment",
		telemetry.Consumer, q.c.Name, telemetry.Err, err)
	if len(claimed.Deliveries) == 0 {
		return claim.Leased{}, err
	}
	var lost []int64
	err = q.ln.out.insist(ctx, func(ctx context.Context) (err error) {
		lost, err = q.l.regs.Log.Lost(ctx, q.l.cfg.Instance, claimed.Deliveries)
		return err
	})
	if err != nil {
		return claim.Leased{}, err
	}
	claimed.Deliveries = slices.DeleteFunc(claimed.Deliveries, func(d store.Leased) bool { return slices.Contains(lost, d.ID) })
	return claimed, nil
}

// WakeForgotten lets the lanes of these consumers, by their keys, wake what is put off in the consume log although nothing is
// before it; others are passed over.
func (l *Lanes) WakeForgotten(ctx context.Context, putOff []string) error {
	for _, key := range putOff {
		ln := l.lanes[key]
		if ln == nil || ln.c.Config.Unordered { // no delivery of an unordered consumer waits for another one
			continue
		}
		var woken int
		err := l.cfg.Budget.Write(ctx, func() (err error) {
			woken, err = claim.WakeForgotten(ctx, l.regs.DB, l.regs.Log, l.gateOf(ln.c))
			return err
		})
		if err != nil {
			return err
		}
		if woken > 0 {
			ln.retries.refill()
		}
	}
	return nil
}

// catchUp ends the spill of a lane that has nothing to do: nothing is due in the consume log any more.
func (q *retryQueue) catchUp() {
	q.ln.mu.Lock()
	defer q.ln.mu.Unlock()
	if len(q.ln.queue.ds) == 0 {
		q.ln.speed.Spill.End()
	}
}

// admit loads the events of claimed deliveries and queues them. What does not fit into the room for payloads is given back
// and due at once: the lane claims it when there is room. It reports how many were loaded, and whether all.
func (q *retryQueue) admit(ctx context.Context, claimed []store.Leased) (got int, all bool) {
	if len(claimed) == 0 {
		return 0, true
	}
	ids := make([]string, len(claimed))
	for i, c := range claimed {
		ids[i] = c.EventID
	}
	taken := 0
	events, more, err := q.l.load(ctx, ids, func(bytes int) bool {
		ok := q.l.room.take(q, bytes)
		if ok {
			taken += bytes
		}
		return ok
	})
	var ready, unknown, late []*delivery
	for i := range claimed {
		event, found := events[claimed[i].EventID]
		d := fromLog(claimed[i], event)
		switch {
		case err != nil:
			q.ln.out.postpone(ctx, d, err)
		case !found && more:
			late = append(late, d)
		case !found:
			q.ln.out.fail(ctx, d, handler.Permanent(errors.New("the event's row does not exist any more")))
		case !q.c.Knows(d.Event.Type, d.Event.SchemaVersion):
			unknown = append(unknown, d)
		default:
			taken -= d.bytes // until its batch has ended
			ready = append(ready, d)
		}
	}
	q.leave(ctx, unknown)
	if len(late) > 0 {
		q.ln.out.putBackAll(ctx, late, 0)
	}
	if !q.ln.readmit(ready) {
		q.ln.out.giveBack(ctx, ready...)
	}
	q.l.room.give(taken)
	return len(events), !more
}
