package claim

import "sync"

// Handover is the way of just committed events from the producers of this process to its publisher. It saves the search
// for them, nothing else: they are leased as by a claim, and whoever misses one finds it by claiming. It is safe for
// concurrent use.
type Handover struct {
	mu     sync.Mutex
	ids    []string
	isOver bool // there were too many: claim instead
	calls  chan struct{}
}

// MostHandedOver is how many events may wait to be handed over. More are a backlog, which claims
// work off faster.
const MostHandedOver = 50

// NewHandover returns a way without events on it.
func NewHandover() *Handover { return &Handover{calls: make(chan struct{}, 1)} }

// Put hands over events, by their event_ids.
func (h *Handover) Put(ids []string) {
	h.mu.Lock()
	if h.isOver = h.isOver || len(h.ids)+len(ids) > MostHandedOver; h.isOver {
		h.ids = nil
	} else {
		h.ids = append(h.ids, ids...)
	}
	h.mu.Unlock()
	select {
	case h.calls <- struct{}{}:
	default:
	}
}

// Calls tells that something was put.
func (h *Handover) Calls() <-chan struct{} { return h.calls }

// Take returns what was handed over, and false if it was too much.
func (h *Handover) Take() (ids []string, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ids, ok = h.ids, !h.isOver
	h.ids, h.isOver = nil, false
	return ids, ok
}
