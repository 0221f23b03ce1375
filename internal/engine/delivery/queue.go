package delivery

import (
	"cmp"
	"slices"

	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/flow"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/inject"
	"github.com/bluecone-go/bluecone/internal/store"
)

// queue holds the deliveries of one lane that have not started. Its lane's mu guards it.
type queue struct {
	c      *handler.Consumer
	faults *inject.Faults
	ds     []*delivery
	busy   map[store.Aggregate]struct{} // aggregates of running batches
	turns  claim.Turns                  // of the kinds of due work
}

func (q *queue) add(ds []*delivery) {
	if q.ds = append(q.ds, ds...); q.faults.Reorder {
		q.reverse()
	}
}

// reverse turns the queue round, but for the order within each aggregate.
func (q *queue) reverse() {
	slices.SortStableFunc(q.ds, func(a, b *delivery) int {
		return cmp.Compare(b.Event.AggregateType+"/"+b.Event.AggregateID, a.Event.AggregateType+"/"+a.Event.AggregateID)
	})
}

// count is how many deliveries of a kind are in the queue.
func (q *queue) count(kind claim.Kind) (n int) {
	for _, d := range q.ds {
		if d.kind == kind {
			n++
		}
	}
	return n
}

// take removes the next batch of at most size deliveries from the queue and marks its aggregates busy. Each kind of due
// work has its turn, whatever the queue holds of the others. While the circuit is half-open, what has run before comes
// last: it is the worse probe.
//
// All of a batch may share a transaction, as parts says, and probes says that the circuit is half-open.
func (q *queue) take(size int, parts *flow.PartSize, probes bool) []*delivery {
	const neverRan = claim.All &^ (1<<claim.Retries | 1<<claim.Orphans)
	var kinds claim.Kinds
	for _, d := range q.ds {
		kinds |= claim.Of(d.kind)
	}
	if probes {
		if batch := q.takeTurn(kinds&neverRan, size, parts); len(batch) > 0 {
			return batch
		}
	}
	return q.takeTurn(kinds, size, parts)
}

// takeTurn is take for some kinds.
func (q *queue) takeTurn(kinds claim.Kinds, size int, parts *flow.PartSize) []*delivery {
	for {
		kind, ok := q.turns.Next(kinds)
		if !ok {
			return nil
		}
		if batch := q.takeOf(kind, size, parts); len(batch) > 0 {
			q.turns.Take(kind)
			return batch
		}
		kinds = kinds.Without(kind)
	}
}

// takeOf is take for one kind. Of what runs again it takes as many as share a transaction. If most of them are refused each time,
// because they wait for others, they would take half of all the time from these.
func (q *queue) takeOf(kind claim.Kind, size int, parts *flow.PartSize) []*delivery {
	var batch, rest []*delivery
	passed := make(map[store.Aggregate]int64) // the first event of the aggregate that stays
	mine := make(map[store.Aggregate]int64)   // the last one that the batch has
	isLate := false                           // whether one follows a later one of its aggregate
	for i, d := range q.ds {
		if len(batch) == size {
			rest = append(rest, q.ds[i:]...)
			break
		}
		key := d.aggregate()
		_, busy := q.busy[key]
		first, behind := passed[key]
		if behind && !d.isDirect() && d.Event.OutboxID < first { // what stays could not run before it
			behind = false
		}
		fits := len(batch) == 0 || q.joins(batch[0], d, parts)
		if _, beside := mine[key]; beside && q.c.IsExternalBatch(d.Event.Type) {
			busy = true // the first of the two may fail alone
		}
		if d.kind != kind || !fits || (!q.c.Config.Unordered && (busy || behind)) {
			if first == 0 || d.Event.OutboxID < first {
				passed[key] = d.Event.OutboxID
			}
			rest = append(rest, d)
			continue
		}
		isLate, mine[key] = isLate || d.Event.OutboxID < mine[key], d.Event.OutboxID
		if batch = append(batch, d); len(batch) == 1 && kind == claim.Retries {
			size = parts.Limit(d.group(), size)
		}
	}
	if len(batch) == 0 {
		return nil
	}
	// One that was put back, and claimed again, is behind later ones. The question of the order finds all of a batch marked.
	if isLate {
		slices.SortStableFunc(batch, func(a, b *delivery) int { return cmp.Compare(a.Event.OutboxID, b.Event.OutboxID) })
	}
	for key := range mine {
		q.busy[key] = struct{}{}
	}
	q.ds = rest
	return batch
}

// joins tells whether two deliveries may be in one batch.
func (q *queue) joins(a, b *delivery, parts *flow.PartSize) bool {
	return a.isSuspect() == b.isSuspect() && q.c.Joins(a.Event.Type, b.Event.Type) && parts.Joins(a.group(), b.group())
}
