package flow

import "time"

// BatchSize says how many deliveries a batch takes: as many as fit into a time box, by what the handlers took.
//
// While a backlog is worked off, from when it fills half the window until the queue is empty, the
// box is longer: what is new waits behind the queue anyway, and every transaction saved is work that
// the database does not do. The box is also a multiple of what a transaction takes beside its handlers,
// so that a machine that is slow under its load does not get smaller and smaller batches, and with them
// even more to do.
//
// The zero value knows of no backlog.
type BatchSize struct{ backlog bool }

const (
	batchTimeBox   = 20 * time.Millisecond
	backlogTimeBox = 3 * batchTimeBox
	worthOverhead  = 8 // how many times as long as a transaction's overhead its handlers may take
	firstBatch     = 4 // for a handler of which nobody knows yet how long it takes: a slow one is known soon
)

// Observe tells a backlog by the queue, compared with its window, and by whether more waits in the consume log: of that the
// queue never holds more than a second's work.
func (b *BatchSize) Observe(queued, window int, more bool) {
	b.backlog = queued > 0 && (b.backlog || 2*queued > window || more)
}

// Box is the time that the handlers of a batch should take.
func (b *BatchSize) Box() time.Duration {
	if b.backlog {
		return backlogTimeBox
	}
	return batchTimeBox
}

// Limit is how many deliveries a batch takes, at most so many.
func (b *BatchSize) Limit(t *Times, most int) int {
	if t.perEvent == 0 {
		return min(most, firstBatch)
	}
	box := b.Box()
	if b.backlog {
		box = max(box, worthOverhead*t.overhead)
	}
	return max(1, min(int(box/t.perEvent), most))
}
