package delivery

import (
	"slices"
	"sync"
)

// payloadRoom bounds the bytes of payloads that the lanes of a process have loaded for deliveries from the consume log. A
// lane whose next payload does not fit waits in a line; beyond half of the room, those in line go before others.
type payloadRoom struct {
	most int

	mu   sync.Mutex
	used int
	line []*retryQueue
}

// take takes room for a payload, or puts the lane in line. One payload may be larger than the room.
func (r *payloadRoom) take(q *retryQueue, bytes int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	fits := r.used == 0 || r.used+bytes <= r.most
	if len(r.line) > 0 && r.line[0] != q && r.used+bytes > r.most/2 {
		fits = false
	}
	if fits {
		r.used += bytes
	} else if !slices.Contains(r.line, q) {
		r.line = append(r.line, q)
	}
	return fits
}

// mustWait reports whether the lane is in line behind another.
func (r *payloadRoom) mustWait(q *retryQueue) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Index(r.line, q) > 0
}

// give returns room, and lets the first in line claim again. Nobody calls it with the mutex of a lane.
func (r *payloadRoom) give(bytes int) {
	if bytes == 0 {
		return
	}
	r.mu.Lock()
	r.used -= bytes
	r.mu.Unlock()
	r.wake()
}

// turn ends a claim of the lane: it leaves the line, or goes to its end if it got some of what it claimed, and not all. If it
// got nothing it stays where it is.
func (r *payloadRoom) turn(q *retryQueue, got, all bool) {
	r.mu.Lock()
	i := slices.Index(r.line, q)
	if i < 0 || (!got && !all) {
		r.mu.Unlock()
		return
	}
	r.line = slices.Delete(r.line, i, i+1)
	if !all {
		r.line = append(r.line, q)
	}
	next := i == 0 && all
	r.mu.Unlock()
	if next {
		r.wake()
	}
}

func (r *payloadRoom) wake() {
	r.mu.Lock()
	var first *retryQueue
	if len(r.line) > 0 {
		first = r.line[0]
	}
	r.mu.Unlock()
	if first != nil {
		first.refill()
	}
}
