package settle

import (
	"slices"
	"sync"
	"time"

	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/flow"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/eventrow"
)

// Flights are the events that a publisher has leased and not settled yet. It is safe for concurrent use.
type Flights struct {
	most int // events there may be: what is in the lanes, and what waits to be settled

	ended   chan struct{} // the deliveries of an event have ended
	settled chan struct{} // an event has been settled: there is room

	mu    sync.Mutex
	byID  map[int64]*Flight // by outbox id
	bytes flow.Bytes        // of the payloads of all of them
	queue Queue[*Flight]
}

// NewFlights has room for so many events, and so many bytes of their payloads, but for one event.
func NewFlights(most, maxBytes int) *Flights {
	return &Flights{
		most: most, bytes: flow.NewBytes(maxBytes), ended: make(chan struct{}, 1), settled: make(chan struct{}, 1),
		byID: make(map[int64]*Flight),
	}
}

// Begin adds an event that was leased until a time. routed is the registry by which it is routed, if that may be a little old.
func (fs *Flights) Begin(row eventrow.Row, until int64, routed *registry.Snapshot) *Flight {
	f := &Flight{Row: row, IsFresh: row.LockVersion == 1, in: fs, routed: routed}
	f.clean.Store(true)
	f.Lease.Version = row.LockVersion
	f.Lease.Extend(until)
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.byID[row.OutboxID] = f
	fs.bytes.Take(f.bytes())
	return f
}

// all are the events in the order of their ids: all statements that lock many rows lock them in this order.
func (fs *Flights) all() []*Flight {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	out := make([]*Flight, 0, len(fs.byID))
	for _, f := range fs.byID {
		out = append(out, f)
	}
	slices.SortFunc(out, byID)
	return out
}

// Len is how many events there are.
func (fs *Flights) Len() int {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return len(fs.byID)
}

// Without drops rows of events that are in flight already.
func (fs *Flights) Without(rows []eventrow.Row) []eventrow.Row {
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

// Most is how many events there may be.
func (fs *Flights) Most() int { return fs.most }

// Free is how many more events there may be.
func (fs *Flights) Free() int {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.bytes.Limit() == 0 {
		return 0
	}
	return fs.most - len(fs.byID)
}

// FreeBytes is how many bytes of payloads may be claimed. One event may be larger.
func (fs *Flights) FreeBytes() int {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.bytes.Limit()
}

// Settled is signaled when events have been settled: there is room.
func (fs *Flights) Settled() <-chan struct{} { return fs.settled }

// Wake signals [Flights.Settled]: after trouble the loop may have missed a signal.
func (fs *Flights) Wake() { claim.Signal(fs.settled) }

// isWorthWaiting reports whether the deliveries of other events may end soon, to be settled with those that wait.
func (fs *Flights) isWorthWaiting() bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return !fs.queue.IsFull(len(fs.byID))
}

// take takes the events that are settled now. If some are left, it signals when to ask again.
func (fs *Flights) take(all bool) []*Flight {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	batch, again := fs.queue.Take(time.Now(), len(fs.byID), all)
	if again >= 0 {
		time.AfterFunc(again, func() {
			fs.mu.Lock()
			fs.queue.Tick()
			fs.mu.Unlock()
			claim.Signal(fs.ended)
		})
	}
	return batch
}

// remove removes events that were settled, or given up.
func (fs *Flights) remove(batch []*Flight) {
	fs.mu.Lock()
	for _, f := range batch {
		delete(fs.byID, f.Row.OutboxID)
		fs.bytes.Give(f.bytes())
	}
	fs.mu.Unlock()
	claim.Signal(fs.settled)
}
