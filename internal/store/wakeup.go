package store

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// wakeMost is how many deliveries of an aggregate one that ends wakes at most: they wake those behind them.
const wakeMost = 100

// WakeNext makes the next waiting deliveries of the same aggregates due at once, after the given ones have ended. They take
// the place of their age: behind all that is due, they would wait for a backlog that is younger than they are, and with them
// whatever waits for them. It tells how many it has woken.
func (o Order) WakeNext(ctx context.Context, idb bun.IDB, consumers []string, ended ...Delivery) (woken int, err error) {
	last := make(map[Aggregate]int64, len(ended))
	for _, d := range ended {
		last[d.Aggregate()] = max(last[d.Aggregate()], d.OutboxID)
	}
	heads := slices.Sorted(maps.Values(last))
	for _, consumer := range consumers {
		for chunk := range slices.Chunk(heads, dialect.MostIDs) {
			n, err := o.wake(ctx, idb, consumer, chunk)
			if err != nil {
				return woken, fmt.Errorf("consume log: wake deliveries of %s: %w", consumer, err)
			}
			woken += n
		}
	}
	return woken, nil
}

func (o Order) wake(ctx context.Context, idb bun.IDB, consumer string, heads []int64) (woken int, err error) {
	waiting, err := o.Sleeping(ctx, idb, consumer, heads, wakeMost)
	if err != nil || len(waiting) == 0 {
		return 0, err
	}
	return len(waiting), o.wakeUp(ctx, idb, waiting)
}

// wakeOpen asks again, after the claim, about what it has put off for long, and wakes what may run. What was in the way may
// have ended between the question and the COMMIT: the instance that ended it has not seen that a delivery sleeps behind it.
func (o Order) wakeOpen(ctx context.Context, idb bun.IDB, g Gate, asleep []Leased) (woken int, err error) {
	asked := make([]Asked, len(asleep))
	for i, d := range asleep {
		asked[i] = Asked{Event: dialect.Pair{ID: d.OutboxID}, Aggregate: d.Aggregate()}
	}
	answers, err := o.Ask(ctx, idb, g, asked)
	if err != nil {
		return 0, err
	}
	var open []int64
	for _, d := range asleep {
		if a := answers[d.OutboxID]; a == MayRun || a == Gone {
			open = append(open, d.ID)
		}
	}
	if len(open) == 0 {
		return 0, nil
	}
	return len(open), o.wakeUp(ctx, idb, open)
}

// wakeUp makes deliveries that wait due, at the place of their age. It finds them by their primary key.
func (o Order) wakeUp(ctx context.Context, idb bun.IDB, ids []int64) error {
	due := "CASE WHEN e.created_at < " + o.d.Now + " THEN e.created_at ELSE " + o.d.Now + " END" // a clock may have been ahead
	_, err := idb.ExecContext(ctx, o.d.UpdateIDs(deliveryTable, dialect.Pairs(ids), "next_retry_at = "+due, "e.status = 'PENDING'"))
	return err
}
