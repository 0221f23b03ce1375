package delivery

import (
	"math"
	"sync"
	"time"

	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/flow"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
)

// lane queues and runs the deliveries of one consumer.
//
// Batches run side by side, but never two with events of the same aggregate
// (unless the consumer is unordered), and within the lane an aggregate's
// deliveries keep the order in which they came.
type lane struct {
	l       *Lanes
	c       *handler.Consumer
	runner  runner
	out     *outcomes
	retries *retryQueue

	mu       sync.Mutex
	queue    queue
	speed    flow.Speed
	inFlight map[*delivery]struct{} // leased deliveries, queued or running
	guards   map[*guard]struct{}    // of what runs
	alarms   alarms
	isOver   bool
}

func newLane(l *Lanes, c *handler.Consumer, limit int) *lane {
	if len(c.ExternalTypes()) == 0 { // a handler without a transaction needs no turn while it runs
		limit = min(limit, l.cfg.Budget.Most())
	}
	ln := &lane{
		l: l, c: c, queue: queue{c: c, faults: &l.regs.Faults, busy: make(map[store.Aggregate]struct{})},
		speed:    flow.NewSpeed(flow.Settings{Batch: c.Config.Batch, Queue: c.Config.Queue, Workers: limit, Rate: c.Config.Rate}),
		inFlight: make(map[*delivery]struct{}), guards: make(map[*guard]struct{}),
	}
	ln.out = &outcomes{l, c, ln}
	ln.runner = runner{l: l, c: c, ln: ln, marks: marks{l, c, ln}, out: ln.out}
	ln.retries = &retryQueue{l: l, c: c, ln: ln, size: flow.NewClaimSize(mostWaiting)}
	return ln
}

// Offer hands leased events, in id order, to the lane of the consumer with this key. It tells how many of
// them, from the first, the lane has taken: if it is full, behind or paused, the rest have to
// wait in the consume log.
func (l *Lanes) Offer(key string, events []Offered) (taken int) {
	if l.lanes[key].isHalted() {
		return 0
	}
	ds, all := make([]*delivery, len(events)), make([]delivery, len(events))
	for i, ev := range events {
		f := ev.Flight
		ds[i] = &all[i]
		all[i] = delivery{
			Message: handler.Message{Event: &f.Row, Attempt: 1},
			kind:    ev.Kind, held: &f.Lease, isFresh: f.IsFresh, isSuspected: ev.Suspect, done: f.Done,
		}
	}
	return l.lanes[key].push(ds)
}

// push queues direct deliveries of one kind, and tells how many of them, from the first, it has taken.
func (ln *lane) push(ds []*delivery) int {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if ln.isOver || ln.speed.Spill.IsActive() {
		return 0
	}
	if len(ds) == 0 {
		return 0
	}
	room := ln.c.Config.Queue - ln.queue.count(claim.New) - ln.queue.count(claim.Scheduled) - ln.queue.count(claim.Expired)
	if kind := ds[0].kind; kind != claim.New {
		room = min(room, ln.speed.KindLimit()-ln.queue.count(kind))
	}
	n, now := min(len(ds), max(room, 0)), time.Now()
	for _, d := range ds[:n] {
		d.queued = now
	}
	ln.queue.add(ds[:n])
	ln.start()
	return n
}

// readmit queues deliveries from the retry queue, for which there was room. It reports false if
// the lane has closed meanwhile.
func (ln *lane) readmit(ds []*delivery) bool {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if ln.isOver {
		return false
	}
	for _, d := range ds {
		ln.inFlight[d] = struct{}{}
	}
	ln.queue.add(ds)
	ln.start()
	return true
}

// start runs as many batches as the queue and the limit allow. It needs ln.mu.
func (ln *lane) start() {
	ln.speed.Observe(len(ln.queue.ds), ln.retries.more.Has(claim.Deliveries))
	for ln.speed.Workers.Running() < ln.speed.Settings.Workers && len(ln.queue.ds) > 0 {
		now := time.Now()
		size, wait := ln.speed.Bucket.Limit(now, ln.speed.BatchLimit(now))
		if size == 0 {
			ln.lookAgain(wait, &ln.alarms.tokens)
			return
		}
		if wait := ln.speed.Wait(now, len(ln.queue.ds), size); wait > 0 {
			ln.lookAgain(wait, &ln.alarms.worker)
			return
		}
		batch := ln.queue.take(size, &ln.speed.Parts, ln.speed.IsHalfOpen(now))
		if len(batch) == 0 {
			return
		}
		if batch[0].kind == claim.New {
			ln.speed.Window.Observe(now.Sub(batch[0].queued), len(batch))
		}
		ln.speed.Bucket.Spend(now, len(batch))
		ln.speed.Workers.Begin(now)
		ln.l.wg.Add(1)
		go ln.work(batch, now)
		ln.l.Signals.free()
	}
}

// alarms say what timers are set that call start.
type alarms struct{ worker, tokens bool }

// lookAgain calls start after a while, unless an alarm is set for it already. It needs ln.mu.
func (ln *lane) lookAgain(wait time.Duration, alarm *bool) {
	if *alarm {
		return
	}
	*alarm = true
	time.AfterFunc(wait, func() {
		ln.mu.Lock()
		defer ln.mu.Unlock()
		if *alarm = false; !ln.isOver {
			ln.start()
		}
	})
}

func (ln *lane) work(batch []*delivery, began time.Time) {
	defer ln.l.wg.Done()
	ln.l.regs.Log.Learn(ln.l.work)
	ln.runner.run(ln.l.work, batch)
	ln.l.room.give(loaded(batch))
	ln.mu.Lock()
	defer ln.mu.Unlock()
	took := time.Since(began)
	ln.speed.Times.ObserveBatch(took)
	ln.speed.Prefetch.Observe(len(batch), took)
	ln.speed.Workers.End(began, time.Now())
	for _, d := range batch {
		delete(ln.queue.busy, d.aggregate())
		delete(ln.inFlight, d)
	}
	ln.start()
	if ln.speed.Workers.Running() == 0 { // it is idle
		ln.l.Signals.free()
	}
	if ln.retries.mustRefill() {
		ln.retries.refillLocked()
	}
}

// loaded is how many bytes of payloads a batch has loaded from the consume log.
func loaded(batch []*delivery) (bytes int) {
	for _, d := range batch {
		bytes += d.bytes
	}
	return bytes
}

// needsWork reports whether the lane works directly and has nothing to do, and how long it takes for an event. It is
// starved already when nothing is left in its queue.
func (ln *lane) needsWork() (each time.Duration, idle, starved bool) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	starved = !ln.speed.Spill.IsActive() && len(ln.queue.ds) == 0 && !ln.isHaltedLocked()
	return ln.speed.Times.Usual(), starved && ln.speed.Workers.Running() == 0, starved
}

// room tells how many more deliveries the lane takes, and how many when it is empty. If others
// have been idle for too long because this one is full, it spills from now on. Until then it takes more than its window while
// other lanes have nothing queued. A lane that spills, is paused or has an open circuit puts no limit on the others.
func (ln *lane) room(idle idleLanes, starved bool) (free, window int) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	now := time.Now()
	most := ln.speed.QueueLimit(now)
	window = min(ln.speed.Window.Limit(), most)
	free = window - ln.queue.count(claim.New)
	limit := time.Duration(math.MaxInt64) // a lane that is closed does not spill
	if !ln.isOver {
		limit = ln.speed.SpillLimit(len(ln.queue.ds), idle.quickest)
	}
	ln.speed.Spill.Observe(now, idle.isAny && free <= window/2, limit)
	if ln.speed.Spill.IsActive() || ln.isHaltedLocked() {
		return math.MaxInt, math.MaxInt
	}
	if starved {
		free += most - window
	}
	return free, window
}

// roomFor tells how many more events of a kind that is not NEW the lane takes, and how many when it has none of them,
// unless it does not work directly.
func (ln *lane) roomFor(kind claim.Kind) (free, share int, flows bool) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	share = ln.speed.KindLimit()
	return share - ln.queue.count(kind), share, !ln.speed.Spill.IsActive() && !ln.isHaltedLocked()
}

// isDrained reports whether nothing is queued that keeps the publisher from offering more.
func (ln *lane) isDrained() bool {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	return len(ln.queue.ds) == 0 || ln.speed.Spill.IsActive() || ln.isHaltedLocked()
}

// leased lists the retried deliveries in memory.
func (ln *lane) leased() []*delivery {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	out := make([]*delivery, 0, len(ln.inFlight))
	for d := range ln.inFlight {
		out = append(out, d)
	}
	return out
}

// shut closes the lane and returns what has not started.
func (ln *lane) shut() []*delivery {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.isOver = true
	left := ln.queue.ds
	ln.queue.ds = nil
	for _, d := range left {
		delete(ln.inFlight, d)
	}
	return left
}

func (ln *lane) isClosed() bool {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	return ln.isOver
}

func (ln *lane) isIdle() bool {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	return ln.speed.Workers.Running() == 0 && len(ln.queue.ds) == 0 && !ln.retries.isClaiming
}
