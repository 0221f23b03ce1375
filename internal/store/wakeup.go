package store

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

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
	return len(open), o.WakeUp(ctx, idb, open)
}

// WakeUp makes deliveries that wait due, by the ids of their rows, at the place of their age: behind all that is due, they would
// wait for a backlog that is younger than they are, and with them whatever waits for them. It finds them by their primary key.
func (o Order) WakeUp(ctx context.Context, idb bun.IDB, ids []int64) error {
	due := "CASE WHEN e.created_at < " + o.d.Now + " THEN e.created_at ELSE " + o.d.Now + " END" // a clock may have been ahead
	_, err := idb.ExecContext(ctx, o.d.UpdateIDs(deliveryTable, dialect.Pairs(ids), "next_retry_at = "+due, "e.status = 'PENDING'"))
	return err
}
