package delivery

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// putOff remembers deliveries that were put off, by the keys of their consumers and the ids of their events, once it is told to.
type putOff struct {
	mu   sync.Mutex
	byID map[string]map[string]struct{} // nil: nobody asks
}

func (p *putOff) remember() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.byID = make(map[string]map[string]struct{})
}

func (p *putOff) add(consumer, eventID string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byID == nil {
		return
	}
	if p.byID[consumer] == nil {
		p.byID[consumer] = make(map[string]struct{})
	}
	p.byID[consumer][eventID] = struct{}{}
}

// drop forgets a delivery that has run since: it waits for a time of its own now, if at all.
func (p *putOff) drop(consumer, eventID string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byID[consumer], eventID)
}

func (p *putOff) take() map[string][]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make(map[string][]string, len(p.byID))
	for consumer, ids := range p.byID {
		if len(ids) > 0 {
			out[consumer] = slices.Sorted(maps.Keys(ids))
		}
	}
	clear(p.byID)
	return out
}

// RememberPutOff lets the lanes remember what they put off, for [Lanes.WakePutOff]. Call it before they get anything.
func (l *Lanes) RememberPutOff() { l.putOff.remember() }

// WakePutOff makes due what the lanes have put off since the last time, and tells whether there was anything: what it waited for may
// have ended since, and a delivery straight from a claim wakes nobody.
func (l *Lanes) WakePutOff(ctx context.Context) (isAny bool, err error) {
	for consumer, ids := range l.putOff.take() {
		isAny = true
		for chunk := range slices.Chunk(ids, dialect.MostIDs) {
			if err := l.regs.Log.WakeEvents(ctx, l.regs.DB, consumer, chunk); err != nil {
				return false, err
			}
		}
	}
	return isAny, nil
}
