package delivery

import (
	"cmp"
	"context"
	"time"

	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/flow"
	"github.com/bluecone-go/bluecone/internal/handler"
)

const (
	batchTimeBox   = 20 * time.Millisecond
	backlogTimeBox = 3 * batchTimeBox
	worthOverhead  = 8 // how many times as long as a transaction's overhead its handlers may take
)

// firstBatch is for a handler of which nobody knows yet how long it takes: a slow one is known soon.
const firstBatch = 4

// batchSize is how many events fit into the time box. It needs ln.mu.
//
// While a backlog is worked off, from when it filled half the window until the queue is empty, the
// box is longer: what is new waits behind the queue anyway, and every transaction saved is work that
// the database does not do. The box is also a multiple of what a transaction takes beside its handlers,
// so that a machine that is slow under its load does not get smaller and smaller batches, and with them
// even more to do.
func (ln *lane) batchSize() int {
	box, most := ln.box(), ln.c.Config.Batch
	switch {
	case ln.isHalfOpen():
		return 1
	case ln.perEvent == 0:
		return min(most, firstBatch)
	case ln.wary.Any():
		most = min(most, mostWary)
	}
	if ln.backlog {
		box = max(box, worthOverhead*ln.overhead)
	}
	return max(1, min(int(box/ln.perEvent), most))
}

// notice tells a backlog by the queue, and by the consume log: of that the queue never holds more than a second's work.
// It needs ln.mu.
func (ln *lane) notice() {
	ln.backlog = len(ln.queue) > 0 && (ln.backlog || 2*len(ln.queue) > ln.window || ln.retries.more.Has(claim.Deliveries))
}

// observeTime learns how long a handler took for each of its events: that it is slow, at once.
func (ln *lane) observeTime(each time.Duration) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	each = max(each, time.Microsecond)
	usual := cmp.Or(ln.usual, each)
	ln.usual = (3*usual + min(each, 2*usual)) / 4
	switch {
	case ln.perEvent == 0:
		ln.perEvent = each
	case each > ln.perEvent:
		ln.perEvent = (ln.perEvent + 3*each) / 4
	default:
		ln.perEvent = (3*ln.perEvent + each) / 4
	}
}

// mostWary is how many events a worker takes, to run them in parts.
const mostWary = 100

// refused notes that a handler has refused one of the deliveries that shared a transaction: for a while fewer do.
func (ln *lane) refused(ds []*delivery) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.wary.Refused(ds[0].isFirstRun(), len(ds))
}

// accepted notes that handlers have accepted deliveries of one kind.
func (ln *lane) accepted(ctx context.Context, ds []*delivery) {
	ln.mu.Lock()
	ln.wary.Accepted(ds[0].isFirstRun(), len(ds))
	ln.mu.Unlock()
	ln.observe(ctx, flow.Succeeded, false, nil)
}

// box is the time that handlers of a batch should take. While a backlog is worked off it is longer. It needs ln.mu.
func (ln *lane) box() time.Duration {
	if ln.backlog {
		return backlogTimeBox
	}
	return batchTimeBox
}

// fullBatch is how many deliveries are worth another worker at once: one where each runs alone anyway. It needs ln.mu.
func (ln *lane) fullBatch(size int) int {
	if ln.wary.Any() {
		return 1
	}
	return size
}

// mostWorkers is how many batches should run side by side, slow ones not counted. It needs ln.mu.
func (ln *lane) mostWorkers() int {
	if ln.isHalfOpen() {
		return 1
	}
	return ln.limit - ln.pace.eased
}

// probesInHand is how many waiting deliveries a half-open circuit has in hand: it tries as many in a second.
const probesInHand = 4

// depth is how many waiting deliveries to have leased that have not started. It needs ln.mu.
func (ln *lane) depth() int {
	if ln.isHalfOpen() {
		return min(probesInHand, ln.c.Config.Queue)
	}
	idle := 0
	if len(ln.queue) == 0 {
		idle = max(ln.mostWorkers()-ln.workers.Running(), 0)
	}
	most := ln.ahead.Limit(max(ln.mostWorkers()-idle, 0), idle)
	if rate := ln.c.Config.Rate; rate > 0 {
		most = min(most, max(int(rate), 1))
	}
	return min(most, ln.c.Config.Queue)
}

// together is how many of the deliveries should share a transaction, after what handlers have refused lately.
func (ln *lane) together(ds []*delivery) int {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	return ln.wary.Together(ds[0].isFirstRun(), len(ds))
}

// observeOverhead learns how long a transaction takes beside its handlers: that it is less than it was, soon. The
// first ones of a connection take very long.
func (ln *lane) observeOverhead(took time.Duration) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if took < ln.overhead {
		ln.overhead = (ln.overhead + took) / 2
	} else {
		ln.overhead = (7*ln.overhead + took) / 8
	}
}

// sojourn is how long a delivery should wait in the queue at most: what is claimed and waits here
// is what another instance could be working on. (The idea is CoDel's.)
const sojourn = 200 * time.Millisecond

// widest leaves a fifth of the queue to events that come out of turn.
func widest(c *handler.Consumer) int { return c.Config.Queue - c.Config.Queue/5 }

// narrowest is the least that a window becomes: less would make batches that are not worth their
// transactions. A lane begins with twice as much: the first claims of an instance that joins others
// must not take more than it can work off.
const narrowest = 100

// adapt narrows the window when deliveries wait too long, and widens it when they do not. It needs ln.mu.
func (ln *lane) adapt(batch []*delivery) {
	if len(batch) == 0 || batch[0].queued.IsZero() {
		return
	}
	if time.Since(batch[0].queued) > sojourn {
		ln.window = max(ln.window*3/4, min(widest(ln.c), narrowest))
	} else {
		ln.window = min(ln.window+len(batch)/2+1, widest(ln.c))
	}
}
