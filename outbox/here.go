package outbox

import (
	"strconv"
	"sync"
)

// publishers are those of this process.
type publishers struct {
	mu      sync.Mutex
	made    int
	wakers  map[*Publisher]func() // of those whose Run has begun
	running map[*Publisher]bool   // of those, the ones that take events
	wasRun  bool                  // Run of one of them was called
	cleans  bool                  // the program has made a retention by itself
}

func newPublishers() publishers {
	return publishers{wakers: make(map[*Publisher]func()), running: make(map[*Publisher]bool)}
}

// name is the instance name, with a number for every further publisher of this process.
func (h *publishers) name(instance string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.made++
	if h.made == 1 {
		return instance
	}
	suffix := "#" + strconv.Itoa(h.made)
	return instance[:min(len(instance), 64-len(suffix))] + suffix
}

// subscribe has wake called after every commit of this process, until unsubscribe.
func (h *publishers) subscribe(p *Publisher, wake func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wakers[p], h.wasRun = wake, true
}

func (h *publishers) unsubscribe(p *Publisher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.wakers, p)
}

// ownRetention notes that the program has made a retention by itself.
func (h *publishers) ownRetention() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cleans = true
}

func (h *publishers) hasRetention() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cleans
}

// any reports whether Run of a publisher has begun and not ended.
func (h *publishers) any() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.wakers) > 0
}

// took notes whether a publisher takes events.
func (h *publishers) took(p *Publisher, running bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if running {
		h.running[p] = true
	} else {
		delete(h.running, p)
	}
}

// Publishing reports whether a publisher of this outbox takes events in this process now, and whether one should: one
// should as soon as [Publisher.Run] has been called. A publisher whose context has ended drains, and takes none.
func (o *Outbox) Publishing() (running, expected bool) {
	o.here.mu.Lock()
	defer o.here.mu.Unlock()
	return len(o.here.running) > 0, o.here.wasRun
}
