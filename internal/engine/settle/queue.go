package settle

import "time"

const (
	// Batch is how many events are settled together at most.
	Batch = 500
	// MostLooks is how many deliveries are looked at or written for the events of a batch, unless it is one event: one may
	// have thousands.
	MostLooks = 20_000
	// Linger is how long to wait for the deliveries of other events to end, if there are others. Nothing waits for an event to be settled.
	Linger = 5 * time.Millisecond
	// Later is how long those events wait whose deliveries have to be looked at, which takes five statements for one event or
	// many. A consumer that is slow, paused or failing makes one of every event.
	Later = 50 * time.Millisecond
)

// Queue decides which events are settled together, and when. It holds those whose deliveries have ended. It has no lock and
// no clock: callers guard it, and tell it the time.
type Queue[E any] struct {
	ended   []ended[E]
	isTimed bool // a caller was told when to ask again
}

// ended is an event whose deliveries have ended.
type ended[E any] struct {
	event  E
	looks  int  // deliveries to be looked at
	isSent bool // it is SENT for certain
	since  time.Time
}

// Add adds an event whose deliveries have ended now.
func (q *Queue[E]) Add(event E, of Event, now time.Time) {
	q.ended = append(q.ended, ended[E]{event, len(of.Uncertain()), of.IsDelivered(), now})
}

// IsFull reports whether to settle without waiting for others: none are in flight beside those in the queue, or enough are in it.
func (q *Queue[E]) IsFull(inFlight int) bool {
	return len(q.ended) == inFlight || len(q.ended) >= Batch
}

// Take takes the events that are settled now. If there are none, but some that wait, it tells once after how long to call
// [Queue.Tick] and ask again; otherwise again is negative.
func (q *Queue[E]) Take(now time.Time, inFlight int, all bool) (batch []E, again time.Duration) {
	all = all || q.IsFull(inFlight)
	var rest []ended[E]
	looks := 0
	for _, e := range q.ended {
		fits := len(batch) == 0 || (len(batch) < Batch && looks+e.looks <= MostLooks)
		if fits && (all || e.isSent || now.Sub(e.since) >= Later) {
			batch, looks = append(batch, e.event), looks+e.looks
		} else {
			rest = append(rest, e)
		}
	}
	q.ended = rest
	if len(batch) == 0 && len(rest) > 0 && !q.isTimed {
		q.isTimed = true
		return nil, max(Later-now.Sub(rest[0].since), 0)
	}
	return batch, -1
}

// Tick notes that the time has passed after which to ask again.
func (q *Queue[E]) Tick() { q.isTimed = false }
