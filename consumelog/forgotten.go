package consumelog

import (
	"context"
	"fmt"
	"slices"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
)

// mostForgotten limits how many deliveries of a consumer are looked at, those first that would sleep for longest.
const mostForgotten = 10_000

// WakeForgotten makes due what sleeps although nothing is before it in its aggregate: a process may have died between the
// COMMIT of a delivery and the wake of the next. It tells how many it has woken.
func (l *Log) WakeForgotten(ctx context.Context, g Gate) (woken int, err error) {
	asleep, err := l.selectLeased(ctx, l.db, "consumer_name = ? AND status = 'PENDING'"+inDueIndex+" AND next_retry_at > "+l.d.After+" AND next_retry_at < "+l.d.Never+
		" ORDER BY next_retry_at DESC, id DESC LIMIT ?", g.Consumer, dialect.Micro(store.SoonAwake), mostForgotten)
	for chunk := range slices.Chunk(asleep, dialect.MostIDs) {
		var n int
		if n, err = l.wakeOpen(ctx, g, chunk); err != nil {
			break
		}
		woken += n
	}
	if err != nil {
		return woken, fmt.Errorf("consume log: wake deliveries of %s: %w", g.Consumer, err)
	}
	return woken, nil
}
