package flow

import "time"

// BatchSize says how many deliveries a batch takes: as many as fit into a time box, by what the handlers took.
//
// A backlog begins when the queue holds more than half of the window, or more waits in the consume log, and ends when the queue is
// empty. While there is one, the box is longer: a new event waits behind the queue anyway, and each transaction less
// is less work for the database. The box is then also at least a multiple of what a transaction takes beside its handlers.
// Otherwise a slow machine would get smaller and smaller batches, and with them even more to do.
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
