package delivery

import (
	"maps"

	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/store"
)

// take removes the next batch of at most size deliveries from the queue and marks its aggregates busy. Each kind of due
// work has its turn, whatever the queue holds of the others. While the circuit is half-open, what has run before comes
// last: it is the worse probe. It needs ln.mu.
func (ln *lane) take(size int) []*delivery {
	const neverRan = claim.All &^ (1<<claim.Retries | 1<<claim.Orphans)
	var kinds claim.Kinds
	for _, d := range ln.queue {
		kinds |= claim.Of(d.kind)
	}
	if ln.isHalfOpen() {
		if batch := ln.takeTurn(kinds&neverRan, size); len(batch) > 0 {
			return batch
		}
	}
	return ln.takeTurn(kinds, size)
}

// takeTurn is take for some kinds. It needs ln.mu.
func (ln *lane) takeTurn(kinds claim.Kinds, size int) []*delivery {
	for {
		kind, ok := ln.turns.Next(kinds)
		if !ok {
			return nil
		}
		if batch := ln.takeOf(kind, ln.turnSize(kind, size)); len(batch) > 0 {
			if ln.turns.Take(kind); kind == claim.New {
				ln.adapt(batch)
			}
			return batch
		}
		kinds = kinds.Without(kind)
	}
}

// turnSize is how many deliveries of a kind have their turn together: of what runs again as many as share a transaction.
// If most of them are refused each time, because they wait for others, they would take half of all the time from these.
// It needs ln.mu.
func (ln *lane) turnSize(kind claim.Kind, size int) int {
	if kind == claim.Retries {
		return ln.wary.Together(false, size)
	}
	return size
}

// takeOf is take for one kind. It needs ln.mu.
func (ln *lane) takeOf(kind claim.Kind, size int) []*delivery {
	var batch, rest []*delivery
	mine, passed := make(map[store.Aggregate]struct{}), make(map[store.Aggregate]int64) // the first event of the aggregate that stays
	for i, d := range ln.queue {
		if len(batch) == size {
			rest = append(rest, ln.queue[i:]...)
			break
		}
		key := d.aggregate()
		_, busy := ln.busy[key]
		first, behind := passed[key]
		if behind && !d.direct() && d.Event.OutboxID < first { // what stays could not run before it
			behind = false
		}
		fits := len(batch) == 0 || (batch[0].suspect() == d.suspect() && !ln.external(d) && !ln.external(batch[0]))
		if d.kind != kind || !fits || (!ln.c.Config.Unordered && (busy || behind)) {
			if first == 0 || d.Event.OutboxID < first {
				passed[key] = d.Event.OutboxID
			}
			rest = append(rest, d)
			continue
		}
		mine[key] = struct{}{}
		batch = append(batch, d)
	}
	if len(batch) == 0 {
		return nil
	}
	maps.Copy(ln.busy, mine)
	ln.queue = rest
	return batch
}
