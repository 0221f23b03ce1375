package simulation

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/bluecone-go/bluecone/bus"
)

// Some events are delayed, and take their place among those of their aggregate when they fall due: not before, and not
// beside one that is in flight.

// withDelays delays the events that are saved first, and makes the others slow at the consumer without a transaction: then
// some of them are in flight when the first ones fall due. All are of one aggregate.
func (p *plan) withDelays(r *rand.Rand) {
	p.delayed = make(map[int]time.Duration)
	first := slices.MinFunc(p.saves, func(a, b save) int { return cmp.Compare(a.at, b.at) })
	n := 0
	for _, s := range p.saves {
		for range s.events {
			if s.at == first.at && s.key == 0 {
				p.delayed[n] = time.Second + time.Duration(r.Int64N(int64(12*time.Second)))
			} else {
				p.failures[fmt.Sprintf("Outside/%d", n)] = failure{"slow", 1}
			}
			n++
		}
	}
	p.inOneAggregate()
	if r.IntN(2) == 0 { // only there the look at what is in flight is sure
		p.rates, p.troubles = rates{}, nil
	}
}

func (p plan) isDelayed(n int) bool { return p.delayed[n] > 0 }

// inTime notes when a delayed event is due, and looks whether it is when it comes.
func (l *life) inTime(m bus.Message[happened]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, ok := l.due[m.Payload.N]; ok && time.Now().Before(at) && len(l.plan.jumps) == 0 {
		l.t.Errorf("seed %d: event %d came %v too early", l.plan.seed, m.Payload.N, time.Until(at))
	}
}

// hand is a call that is under way.
type hand struct {
	event string
	ctx   context.Context //nolint:containedctx // it is the call's
}

// alone looks that no other event of the aggregate is in flight at the consumer without a transaction, where nothing goes
// wrong that an instance could not know of.
func (w *worker) alone(ctx context.Context, m bus.Message[happened]) (over func()) {
	w.inTime(m)
	if !w.plan.peaceful() {
		return func() {}
	}
	key := lineage(m.TenantID, m.AggregateID)
	w.mu.Lock()
	defer w.mu.Unlock()
	if other, ok := w.hands[key]; ok && other.ctx.Err() == nil && other.event != m.ID {
		w.t.Errorf("seed %d: event %d (%s) of %s runs beside event %s", w.plan.seed, m.Payload.N, m.ID, key, other.event)
	}
	w.hands[key] = hand{m.ID, ctx}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.hands, key)
	}
}
