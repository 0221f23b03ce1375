package bus

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/bluecone-go/bluecone/consumelog"
)

// lane queues and runs the deliveries of one consumer.
//
// Batches run side by side, but never two with events of the same aggregate
// (unless the consumer is unordered), and within the lane an aggregate's
// deliveries keep the order in which they came.
type lane struct {
	l *Lanes
	c *Consumer

	mu       sync.Mutex
	queue    []*delivery
	busy     map[[2]string]struct{}
	inHand   map[*delivery]struct{} // leased deliveries, queued or running
	running  int
	limit    int
	closed   bool
	claiming bool
	again    bool
	held     time.Time     // since when others have been dry because this one is full
	behind   bool          // its deliveries go to the consume log until it has caught up
	perEvent time.Duration // moving average of the time one event takes in a batch
}

func newLane(l *Lanes, c *Consumer, limit int) *lane {
	if l.budget != nil {
		limit = min(limit, cap(l.budget))
	}
	return &lane{l: l, c: c, limit: limit, busy: make(map[[2]string]struct{}), inHand: make(map[*delivery]struct{}), perEvent: time.Millisecond}
}

// push queues direct deliveries, and tells how many of them, from the first, it has taken.
func (ln *lane) push(ds []*delivery) int {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if ln.closed || ln.behind {
		return 0
	}
	n := min(len(ds), max(ln.c.cfg.Queue-len(ln.queue), 0))
	ln.enqueue(ds[:n])
	return n
}

// readmit queues deliveries from the retry queue, for which there was room. It reports false if
// the lane has closed meanwhile.
func (ln *lane) readmit(ds []*delivery) bool {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if ln.closed {
		return false
	}
	for _, d := range ds {
		ln.inHand[d] = struct{}{}
	}
	ln.enqueue(ds)
	return true
}

// enqueue needs ln.mu.
func (ln *lane) enqueue(ds []*delivery) {
	if ln.queue = append(ln.queue, ds...); ln.l.bus.faults.Reorder {
		ln.reverse()
	}
	ln.start()
}

// reverse turns the queue round, but for the order within each aggregate. It needs ln.mu.
func (ln *lane) reverse() {
	slices.SortStableFunc(ln.queue, func(a, b *delivery) int {
		return cmp.Compare(b.env.AggregateType+"/"+b.env.AggregateID, a.env.AggregateType+"/"+a.env.AggregateID)
	})
}

// start runs as many batches as the queue and the limit allow. It needs ln.mu.
func (ln *lane) start() {
	for ln.running < ln.limit {
		batch := ln.take()
		if len(batch) == 0 {
			return
		}
		ln.running++
		ln.l.wg.Add(1)
		go ln.work(batch)
		select {
		case ln.l.freed <- struct{}{}:
		default:
		}
	}
}

// patience is how long lanes that have run dry wait for one that is full.
const patience = 100 * time.Millisecond

// dry reports whether the lane works directly and has nothing queued.
func (ln *lane) dry() bool {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	return !ln.behind && len(ln.queue) == 0 && !ln.l.host.Paused(ln.c.name)
}

// room tells how many more deliveries the lane takes. If others have been dry for too long
// because this one is full, it falls behind. A lane that does not work directly puts no limit
// on the others.
func (ln *lane) room(othersDry bool) int {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	free := ln.c.cfg.Queue - len(ln.queue)
	switch {
	case !othersDry || free > ln.c.cfg.Queue/2:
		ln.held = time.Time{}
	case ln.held.IsZero():
		ln.held = time.Now()
	case time.Since(ln.held) > patience && !ln.closed:
		ln.behind = true
	}
	if ln.behind || ln.l.host.Paused(ln.c.name) {
		return math.MaxInt
	}
	return free
}

func (ln *lane) work(batch []*delivery) {
	defer ln.l.wg.Done()
	if ln.l.budget != nil {
		ln.l.budget <- struct{}{}
	}
	began := time.Now()
	ln.run(ln.l.work, batch)
	each := time.Since(began) / time.Duration(len(batch))
	if ln.l.budget != nil {
		<-ln.l.budget
	}
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.perEvent = (3*ln.perEvent + each) / 4
	ln.running--
	for _, d := range batch {
		delete(ln.busy, d.aggregate())
		delete(ln.inHand, d)
	}
	ln.start()
	if ln.behind && len(ln.queue) < ln.c.cfg.Queue/2 {
		ln.refillLocked()
	}
}

// take removes the next batch from the queue and marks its aggregates busy. It needs ln.mu.
func (ln *lane) take() []*delivery {
	size := ln.batchSize()
	var batch, rest []*delivery
	mine, passed := make(map[[2]string]struct{}), make(map[[2]string]struct{})
	for i, d := range ln.queue {
		if len(batch) == size {
			rest = append(rest, ln.queue[i:]...)
			break
		}
		key := d.aggregate()
		_, busy := ln.busy[key]
		_, behind := passed[key]
		fits := len(batch) == 0 || (batch[0].direct() == d.direct() && !ln.external(d) && !ln.external(batch[0]))
		if (!ln.c.cfg.Unordered && (busy || behind)) || !fits {
			passed[key] = struct{}{}
			rest = append(rest, d)
			continue
		}
		mine[key] = struct{}{}
		batch = append(batch, d)
	}
	for key := range mine {
		ln.busy[key] = struct{}{}
	}
	ln.queue = rest
	return batch
}

func (ln *lane) external(d *delivery) bool {
	h := ln.c.handlers[d.env.Type]
	return h != nil && h.external
}

// batchSize is how many events fit into the time box, and never more than leaves
// work for every worker that is free. It needs ln.mu.
func (ln *lane) batchSize() int {
	box := int(batchTimeBox / max(ln.perEvent, time.Microsecond))
	share := (len(ln.queue) + ln.limit - ln.running - 1) / max(ln.limit-ln.running, 1)
	return max(1, min(box, share, ln.c.cfg.Batch))
}

// leased lists the retried deliveries in memory.
func (ln *lane) leased() []*delivery {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	out := make([]*delivery, 0, len(ln.inHand))
	for d := range ln.inHand {
		out = append(out, d)
	}
	return out
}

// shut closes the lane and returns what has not started.
func (ln *lane) shut() []*delivery {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.closed = true
	left := ln.queue
	ln.queue = nil
	for _, d := range left {
		delete(ln.inHand, d)
	}
	return left
}

// giveBack ends a delivery that never ran.
func (ln *lane) giveBack(ctx context.Context, d *delivery) {
	if d.direct() {
		d.done(Abandoned)
		return
	}
	defer d.cancel(nil)
	if err := ln.l.bus.log.PutBack(ctx, ln.l.host.Instance, *d.lease, 0); err != nil {
		ln.warn(ctx, d, "delivery could not be given back; its lease will expire", err)
	}
}

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

// claimDue claims once, and reports whether to go on.
func (ln *lane) claimDue(ctx context.Context) bool {
	ln.mu.Lock()
	ln.again = false
	room := min(ln.c.cfg.Queue-len(ln.queue), ln.c.cfg.Batch*2)
	closed := ln.closed
	ln.mu.Unlock()
	more := false
	if room > 0 && !closed && !ln.l.host.Paused(ln.c.name) {
		claimed, err := ln.l.bus.log.Claim(ctx, consumelog.ClaimQuery{Gate: ln.c.gate(ln.l.host.Instance), Lease: ln.l.host.Lease, Limit: room})
		if err != nil {
			ln.l.bus.logger.WarnContext(ctx, "waiting deliveries could not be claimed; the next beat tries again", "consumer", ln.c.name, "error", err)
		}
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

// catchUp ends a time behind: nothing waits in the consume log any more that is due.
func (ln *lane) catchUp() {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.behind = ln.behind && len(ln.queue) > 0
}

func (ln *lane) idle() bool {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	return ln.running == 0 && len(ln.queue) == 0 && !ln.claiming
}
