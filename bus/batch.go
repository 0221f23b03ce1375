package bus

import "time"

// batchSize is how many events fit into the time box. It needs ln.mu.
//
// While a backlog is worked off the box is longer: what is new waits behind the queue anyway, and
// every transaction saved is work that the database does not do. The box is also a multiple of what
// a transaction takes beside its handlers, so that a machine that is slow under its load does not
// get smaller and smaller batches, and with them even more to do.
//
// Nor is it worth anything to let events share a transaction of which a handler refuses some.
func (ln *lane) batchSize() int {
	if ln.wary > 0 {
		return 1
	}
	box := batchTimeBox
	if 2*len(ln.queue) > ln.window {
		box = max(backlogTimeBox, worthOverhead*ln.overhead)
	}
	return max(1, min(int(box/max(ln.perEvent, time.Microsecond)), ln.c.cfg.Batch))
}

// observe learns how long a handler took for each of its events: that it is slow, at once.
func (ln *lane) observe(each time.Duration) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if each > ln.perEvent {
		ln.perEvent = (ln.perEvent + 3*each) / 4
	} else {
		ln.perEvent = (3*ln.perEvent + each) / 4
	}
}

// waryFor is how many successes in a row make up for a failure.
const waryFor = 20

// refused notes that a handler has refused an event.
func (ln *lane) refused() {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.wary = waryFor
}

// accepted notes that handlers have accepted n events.
func (ln *lane) accepted(n int) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.wary = max(ln.wary-n, 0)
}

// observeOverhead learns how long a transaction takes beside its handlers.
func (ln *lane) observeOverhead(took time.Duration) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.overhead = (7*ln.overhead + took) / 8
}

// sojourn is how long a delivery should wait in the queue at most: what is claimed and waits here
// is what another instance could be working on. (The idea is CoDel's.)
const sojourn = 200 * time.Millisecond

// widest leaves a fifth of the queue to events that come out of turn.
func widest(c *Consumer) int { return c.cfg.Queue - c.cfg.Queue/5 }

// adapt narrows the window when deliveries wait too long, and widens it when they do not. It needs ln.mu.
func (ln *lane) adapt(batch []*delivery) {
	if len(batch) == 0 || batch[0].queued.IsZero() {
		return
	}
	if time.Since(batch[0].queued) > sojourn {
		ln.window = max(ln.window*3/4, min(widest(ln.c), ln.c.cfg.Batch))
	} else {
		ln.window = min(ln.window+len(batch)/2+1, widest(ln.c))
	}
}
