package claim

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/store"
)

// keepClaimable keeps, in id order, the rows, locked by the transaction, that may be worked on here: it drops those whose
// aggregate has an earlier event that is NEW or leased, unless that one is locked too or leased by this instance. It
// looks after the rows are locked. So two instances never work on two events of one aggregate.
func (c *Claimer) keepClaimable(ctx context.Context, tx bun.Tx, rows []eventrow.Row) ([]eventrow.Row, error) {
	slices.SortFunc(rows, func(a, b eventrow.Row) int { return cmp.Compare(a.OutboxID, b.OutboxID) })
	locked, heads := make([]int64, len(rows)), make(map[store.Aggregate]int64, len(rows))
	for i, r := range rows {
		locked[i] = r.OutboxID
		if _, ok := heads[eventrow.AggregateOf(r)]; !ok {
			heads[eventrow.AggregateOf(r)] = r.OutboxID
		}
	}
	found, err := c.order.LookAround(ctx, tx, c.lease.Owner, slices.Sorted(maps.Values(heads)), locked, slices.ContainsFunc(rows, isLate))
	if err != nil {
		return nil, err
	}
	around := make(map[store.Aggregate]*store.Around, len(heads))
	for aggregate, head := range heads {
		w := found[head]
		around[aggregate] = &w
	}
	kept := make([]eventrow.Row, 0, len(rows))
	for _, r := range rows {
		w := around[eventrow.AggregateOf(r)]
		free, err := c.isFree(ctx, tx, r, *w)
		if err != nil {
			return nil, err
		}
		if !free { // nor are those behind it
			w.First = cmp.Or(min(w.First, r.OutboxID), r.OutboxID)
			continue
		}
		kept = append(kept, r)
	}
	return kept, nil
}

// isFree tells whether nothing is in the way of an event. One that was delayed or has
// been claimed once already, must not pass a later event that an instance works on, this one included, or is claiming
// right now: every claim in an aggregate locks its first event.
func (c *Claimer) isFree(ctx context.Context, tx bun.Tx, r eventrow.Row, w store.Around) (bool, error) {
	late := isLate(r)
	switch {
	case w.First != 0 && w.First <= r.OutboxID, late && w.LastLeased > r.OutboxID:
		return false, nil
	case w.First == 0, !late:
		return true, nil
	}
	return c.order.Probe(ctx, tx, w.First)
}

// isLate reports whether an event was delayed, or has been claimed already.
func isLate(r eventrow.Row) bool { return r.LockVersion > 0 }
