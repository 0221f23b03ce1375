package claim

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/bluecone-go/bluecone/internal/eventrow"
)

// Handover is the way of just committed events from the producers of this process to its publisher. It saves the search
// for them, nothing else: they are leased as by a claim, and an event that is missed here is found by a claim. It is safe for
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
	Signal(h.calls)
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

// ClaimByID leases events, by their event_ids, that nobody has leased yet. Those that an earlier event of their aggregate
// blocks are leased too, and answered apart: give them back. The result does not say of which registry it is.
func (c *Claimer) ClaimByID(ctx context.Context, eventIDs []string) (r Result, blocked []eventrow.Row, err error) {
	rows, err := c.events.LeaseFresh(ctx, c.db, c.lease, eventIDs)
	if err != nil {
		return Result{}, nil, fmt.Errorf("lease events: %w", err)
	}
	slices.SortFunc(rows, func(a, b eventrow.Row) int { return cmp.Compare(a.OutboxID, b.OutboxID) })
	for _, row := range rows {
		r.Until = row.DueAt // where the end of a lease stands
		if first := row.Extra; first != 0 && first < row.OutboxID {
			blocked = append(blocked, row)
			continue
		}
		r.Rows = append(r.Rows, row)
	}
	return r, blocked, nil
}
