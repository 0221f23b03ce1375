package claim

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
)

const (
	// mostAggregatesWoken is how many aggregates one look wakes: the others look again by themselves.
	mostAggregatesWoken = 50
	// MostWoken is how many deliveries of an aggregate one that ends wakes at most, where a batch takes several of an aggregate: they
	// wake those behind them.
	MostWoken = 100
)

// WakeNext makes the next waiting deliveries of the same aggregates due at once, so many of each, after the given ones have ended. It
// tells how many it has woken. A look costs one statement for each consumer, and two more if it finds any.
func WakeNext(ctx context.Context, idb bun.IDB, order store.Order, consumers []string, most int, ended ...store.Delivery,
) (woken int, err error) {
	last := make(map[store.Aggregate]int64, len(ended))
	for _, d := range ended {
		last[d.Aggregate()] = max(last[d.Aggregate()], d.OutboxID)
	}
	heads := slices.Sorted(maps.Values(last))
	for _, consumer := range consumers {
		for chunk := range slices.Chunk(heads, dialect.MostIDs) {
			n, err := wake(ctx, idb, order, consumer, chunk, most)
			if err != nil {
				return woken, fmt.Errorf("consume log: wake deliveries of %s: %w", consumer, err)
			}
			woken += n
		}
	}
	return woken, nil
}

// wake wakes what comes next in the aggregates of the heads, one event of each.
func wake(ctx context.Context, idb bun.IDB, order store.Order, consumer string, heads []int64, most int) (woken int, err error) {
	putOff, err := order.PutOffIn(ctx, idb, consumer, heads)
	if err != nil || len(putOff) == 0 {
		return 0, err
	}
	ids, err := order.Behind(ctx, idb, consumer, putOff[:min(len(putOff), mostAggregatesWoken)], most)
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	return len(ids), order.WakeUp(ctx, idb, ids)
}
