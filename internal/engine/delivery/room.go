package delivery

import (
	"sync"

	"github.com/bluecone-go/bluecone/internal/engine/flow"
)

// payloadRoom bounds the bytes of payloads that the lanes of a process have loaded for deliveries from the consume log, and
// tells the lane whose turn it is when there is room.
type payloadRoom struct {
	mu    sync.Mutex
	bytes flow.SharedBytes[*retryQueue]
}

func newPayloadRoom(bytes int) *payloadRoom {
	return &payloadRoom{bytes: flow.NewSharedBytes[*retryQueue](bytes)}
}

// take takes room for a payload, or puts the lane in line.
func (r *payloadRoom) take(q *retryQueue, bytes int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bytes.TakeFor(q, bytes)
}

// mustWait reports whether the lane is in line behind another.
func (r *payloadRoom) mustWait(q *retryQueue) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bytes.MustWait(q)
}

// give returns room, and lets the first in line claim again. Nobody calls it with the mutex of a lane.
func (r *payloadRoom) give(bytes int) {
	if bytes == 0 {
		return
	}
	r.mu.Lock()
	r.bytes.Give(bytes)
	r.mu.Unlock()
	r.wake()
}

// claimEnded ends a claim of the lane.
func (r *payloadRoom) claimEnded(q *retryQueue, got, all bool) {
	r.mu.Lock()
	next := r.bytes.EndTurn(q, got, all)
	r.mu.Unlock()
	if next {
		r.wake()
	}
}

// wake lets the first in line claim again.
func (r *payloadRoom) wake() {
	r.mu.Lock()
	first, ok := r.bytes.First()
	r.mu.Unlock()
	if ok {
		first.refill()
	}
}
