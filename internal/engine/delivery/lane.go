package delivery

import (
	"cmp"
	"context"
	"math"
	"slices"
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
	queue    []*delivery
	busy     map[store.Aggregate]struct{} // aggregates of running batches
	inHand   map[*delivery]struct{}       // leased deliveries, queued or running
	guards   map[*guard]struct{}          // of what runs
	workers  flow.Workers
	limit    int
	rings    bool // a timer will look again whether another batch may begin
	closed   bool
	turns    claim.Turns   // of the kinds of due work in the queue
	window   int           // how many deliveries to have queued, for none to wait longer than sojourn
	looked   time.Time     // when room was last asked for
	debt     time.Duration // how long others were dry because this one was full, less the time they were not
	backlog  bool          // the queue has been half full, and not empty since
	behind   bool          // its deliveries go to the consume log until it has caught up
	circuit  flow.Circuit
	wary     flow.Wary
	pace     pace
	ahead    flow.Ahead
	perEvent time.Duration // moving average of the time a handler takes for one event, 0 before the first
	overhead time.Duration // moving average of the time a transaction takes beside its handlers
	usual    time.Duration // the same as perEvent, but slow calls change it only when there are many
	turn     time.Duration // moving average of the time a batch takes a worker, with all that goes on around its handlers
}

func newLane(l *Lanes, c *handler.Consumer, limit int) *lane {
	if l.budget != nil && len(c.ExternalTypes()) == 0 { // a handler without a transaction needs no turn while it runs
		limit = min(limit, cap(l.budget))
	}
	ln := &lane{
		l: l, c: c, limit: limit, window: min(widest(c), 2*narrowest), pace: newPace(c.Config.Rate),
		busy: make(map[store.Aggregate]struct{}), inHand: make(map[*delivery]struct{}), guards: make(map[*guard]struct{}),
	}
	ln.out = &outcomes{l, c, ln}
	ln.runner = runner{l: l, c: c, ln: ln, marks: marks{l, c, ln}, out: ln.out}
	ln.retries = &retryQueue{l: l, c: c, ln: ln, fitting: mostWaiting}
	return ln
}

// push queues direct deliveries of one kind, and tells how many of them, from the first, it has taken.
func (ln *lane) push(ds []*delivery) int {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if ln.closed || ln.behind {
		return 0
	}
	if len(ds) == 0 {
		return 0
	}
	room := ln.c.Config.Queue - ln.queued(claim.New) - ln.queued(claim.Scheduled) - ln.queued(claim.Expired)
	if kind := ds[0].kind; kind != claim.New {
		room = min(room, ln.share()-ln.queued(kind))
	}
	n, now := min(len(ds), max(room, 0)), time.Now()
	for _, d := range ds[:n] {
		d.queued = now
	}
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
	if ln.queue = append(ln.queue, ds...); ln.l.regs.Faults.Reorder {
		ln.reverse()
	}
	ln.start()
}

// reverse turns the queue round, but for the order within each aggregate. It needs ln.mu.
func (ln *lane) reverse() {
	slices.SortStableFunc(ln.queue, func(a, b *delivery) int {
		return cmp.Compare(b.Event.AggregateType+"/"+b.Event.AggregateID, a.Event.AggregateType+"/"+a.Event.AggregateID)
	})
}

// start runs as many batches as the queue and the limit allow. It needs ln.mu.
func (ln *lane) start() {
	ln.notice()
	for ln.workers.Running() < ln.limit && len(ln.queue) > 0 {
		size := ln.pace.tokens(ln.batchSize(), ln.resume)
		if size == 0 {
			return
		}
		now := time.Now()
		if wait := ln.workers.Wait(now, ln.mostWorkers(), len(ln.queue), ln.fullBatch(size), ln.box()); wait > 0 {
			ln.lookAgain(wait)
			return
		}
		batch := ln.take(size)
		if len(batch) == 0 {
			return
		}
		ln.pace.spend(len(batch))
		ln.workers.Begin(now)
		ln.l.wg.Add(1)
		go ln.work(batch, now)
		ln.l.free()
	}
}

// lookAgain calls start after a while. It needs ln.mu.
func (ln *lane) lookAgain(wait time.Duration) {
	if ln.rings {
		return
	}
	ln.rings = true
	time.AfterFunc(wait, func() {
		ln.mu.Lock()
		defer ln.mu.Unlock()
		if ln.rings = false; !ln.closed {
			ln.start()
		}
	})
}

// resume goes on after a wait for tokens.
func (ln *lane) resume() {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.pace.again = false
	if !ln.closed {
		ln.start()
	}
}

const (
	// patience is how long, all in all, lanes that have run dry wait for one that is full, and patientTurns
	// is for how many of its batches at least: many instances on one machine make every batch slow, and
	// the way through the consume log would make all of them slower.
	patience     = time.Second
	patientTurns = 20
	// hopeless is how long a lane must take for half its queue for others to wait no longer than that, if
	// a call of its handler takes many times as long as one of theirs, and longer than the rest of its
	// transaction: a machine under load makes all of that slow, and some of them slower for a moment.
	hopeless = time.Second / 10
	slower   = 8
)

// dry reports whether the lane works directly and has nothing to do, and how long it takes for an event. It is
// starved already when nothing is left in its queue.
func (ln *lane) dry() (each time.Duration, dry, starved bool) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	starved = !ln.behind && len(ln.queue) == 0 && !ln.halted()
	return ln.usual, starved && ln.workers.Running() == 0, starved
}

// room tells how many more deliveries the lane takes, and how many when it is empty. If others
// have been dry for too long because this one is full, it falls behind. Until that is decided, it takes more
// than its window for the sake of those that are starved. A lane that does not work directly puts no limit on the others.
func (ln *lane) room(dry dryLanes, starved bool) (free, window int) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	most := ln.mostDirect()
	window = min(ln.window, most)
	free = window - ln.queued(claim.New)
	now := time.Now()
	passed := min(now.Sub(ln.looked), patience/3)
	ln.looked = now
	if !dry.any || free > window/2 {
		ln.debt = max(ln.debt-passed, 0)
	} else {
		ln.debt += passed
		ln.behind = ln.behind || (ln.debt > ln.patience(dry.quickest) && !ln.closed)
	}
	if ln.behind || ln.halted() {
		return math.MaxInt, math.MaxInt
	}
	if starved {
		free += most - window
	}
	return free, window
}

// mostDirect is how many new events to have queued at most, however long others starve: what the workers start within a
// second, if that is more than the least window. If the process dies, whoever takes them over has to take all of them for
// started. It needs ln.mu.
func (ln *lane) mostDirect() int {
	if !ln.ahead.Knows() {
		return widest(ln.c)
	}
	return min(max(ln.ahead.Limit(ln.mostWorkers(), 0), narrowest), widest(ln.c))
}

// share is how much of its queue the lane keeps for events of each kind that is not NEW. It is what the window of NEW
// ones leaves.
func (ln *lane) share() int { return max(ln.c.Config.Queue/10, 1) }

// roomFor tells how many more events of a kind that is not NEW the lane takes, and how many when it has none of them,
// unless it does not work directly.
func (ln *lane) roomFor(kind claim.Kind) (free, share int, flows bool) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	return ln.share() - ln.queued(kind), ln.share(), !ln.behind && !ln.halted()
}

// queued is how many deliveries of a kind are in the queue. It needs ln.mu.
func (ln *lane) queued(kind claim.Kind) (n int) {
	for _, d := range ln.queue {
		if d.kind == kind {
			n++
		}
	}
	return n
}

// drained reports whether nothing is queued that keeps the publisher from offering more.
func (ln *lane) drained() bool {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	return len(ln.queue) == 0 || ln.behind || ln.halted()
}

// patience is how long others wait for the lane; quickest is what the quickest of them takes for an event. It needs ln.mu.
func (ln *lane) patience(quickest time.Duration) time.Duration {
	half := len(ln.queue) / 2
	switch {
	case ln.pace.takes(half) > hopeless:
		return 0
	case ln.usual > max(slower*quickest, ln.overhead) && time.Duration(half/ln.limit)*ln.usual > hopeless:
		return hopeless
	}
	return max(patience, patientTurns*ln.turn)
}

func (ln *lane) work(batch []*delivery, began time.Time) {
	defer ln.l.wg.Done()
	ln.l.regs.Log.Learn(ln.l.work)
	ln.runner.run(ln.l.work, batch)
	ln.l.room.give(loaded(batch))
	ln.mu.Lock()
	defer ln.mu.Unlock()
	took := time.Since(began)
	ln.turn = (3*cmp.Or(ln.turn, took) + took) / 4
	ln.ahead.Observe(len(batch), took)
	ln.workers.End(began, time.Now())
	for _, d := range batch {
		delete(ln.busy, d.aggregate())
		delete(ln.inHand, d)
	}
	ln.start()
	if ln.workers.Running() == 0 { // it is dry
		ln.l.free()
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

func (ln *lane) external(d *delivery) bool {
	return ln.c.IsExternal(d.Event.Type)
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

func (ln *lane) isClosed() bool {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	return ln.closed
}

// giveBack ends a delivery that never ran.
func (o *outcomes) giveBack(ctx context.Context, d *delivery) {
	if d.direct() {
		d.done(Abandoned)
		return
	}
	if err := o.l.regs.Log.PutBack(ctx, o.l.host.Instance, 0, *d.lease); err != nil {
		o.warn(ctx, d, "delivery could not be given back; its lease will expire", err)
	}
	o.reportWaiting(d)
}

// gate is the consumer's question to the consume log.
func (ln *lane) gate() store.Gate {
	return store.Gate{Consumer: ln.c.Key, Types: ln.c.EventTypes(), Ordered: !ln.c.Config.Unordered, PassDead: ln.c.Config.PassDead, Owner: ln.l.host.Instance, Replay: ln.c.Replays != nil}
}

func (ln *lane) idle() bool {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	return ln.workers.Running() == 0 && len(ln.queue) == 0 && !ln.retries.claiming
}
