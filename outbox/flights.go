package outbox

import (
	"slices"
	"sync"
	"time"

	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/eventrow"
)

// flights are the events that a publisher has leased and not settled yet. It is safe for concurrent use.
type flights struct {
	most     int // events there may be: what is in the lanes, and what waits to be settled
	maxBytes int // of their payloads, but for one event

	ended   chan struct{} // the deliveries of an event have ended
	settled chan struct{} // an event has been settled: there is room

	mu    sync.Mutex
	byID  map[int64]*flight // by outbox id
	bytes int               // of the payloads of all of them
	queue settle.Queue[*flight]
}

func newFlights(most, maxBytes int) *flights {
	return &flights{
		most: most, maxBytes: maxBytes, ended: make(chan struct{}, 1), settled: make(chan struct{}, 1), byID: make(map[int64]*flight),
	}
}

// add adds an event that was leased.
func (fs *flights) add(f *flight) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.byID[f.row.OutboxID] = f
	fs.bytes += f.bytes()
}

// land queues an event whose deliveries have ended for settling.
func (fs *flights) land(f *flight) {
	fs.mu.Lock()
	fs.queue.Add(f, f.event(), time.Now())
	fs.mu.Unlock()
	signal(fs.ended)
}

// all are the events in the order of their ids: whoever locks many rows does it in this order.
func (fs *flights) all() []*flight {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	out := make([]*flight, 0, len(fs.byID))
	for _, f := range fs.byID {
		out = append(out, f)
	}
	slices.SortFunc(out, byID)
	return out
}

// without drops rows of events that are in flight already.
func (fs *flights) without(rows []eventrow.Row) []eventrow.Row {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	kept := rows[:0]
	for _, r := range rows {
		if _, ok := fs.byID[r.OutboxID]; !ok {
			kept = append(kept, r)
		}
	}
	return kept
}

// free is how many more events there may be.
func (fs *flights) free() int {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.bytes >= fs.maxBytes {
		return 0
	}
	return fs.most - len(fs.byID)
}

// freeBytes is how many bytes of payloads may be claimed. One event may be larger.
func (fs *flights) freeBytes() int {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return max(fs.maxBytes-fs.bytes, 0)
}

// isWorthWaiting reports whether the deliveries of other events may end soon, to be settled with those that wait.
func (fs *flights) isWorthWaiting() bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return !fs.queue.IsFull(len(fs.byID))
}

// take takes the events that are settled now. If some are left, it signals when to ask again.
func (fs *flights) take(all bool) []*flight {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	batch, again := fs.queue.Take(time.Now(), len(fs.byID), all)
	if again >= 0 {
		time.AfterFunc(again, func() {
			fs.mu.Lock()
			fs.queue.Tick()
			fs.mu.Unlock()
			signal(fs.ended)
		})
	}
	return batch
}

// remove removes events that were settled, or given up.
func (fs *flights) remove(batch []*flight) {
	fs.mu.Lock()
	for _, f := range batch {
		delete(fs.byID, f.row.OutboxID)
		fs.bytes -= f.bytes()
	}
	fs.mu.Unlock()
	signal(fs.settled)
}
