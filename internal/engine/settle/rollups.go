package settle

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/bluecone-go/bluecone/internal/engine/budget"
	"github.com/bluecone-go/bluecone/internal/engine/health"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// RollUps bring events up to date whose retried deliveries have ended, those of many workers together. It is safe for concurrent
// use.
type RollUps struct {
	settler *Settler
	meter   *Meter
	budget  *budget.Transactions
	outage  *health.Outage
	limit   time.Duration // how long one may take
	calls   *Coalescer
	ended   atomic.Int64
}

// NewRollUps returns roll-ups that may take so long each.
func NewRollUps(settler *Settler, meter *Meter, budget *budget.Transactions, outage *health.Outage, limit time.Duration) *RollUps {
	return &RollUps{settler: settler, meter: meter, budget: budget, outage: outage, limit: limit, calls: NewCoalescer()}
}

// Ended brings events up to date, by this caller or another, after one of their retried deliveries has ended.
func (r *RollUps) Ended(ctx context.Context, eventIDs []string) {
	r.ended.Add(int64(len(eventIDs)))
	r.calls.Do(eventIDs, func(eventIDs []string) {
		ctx, cancel := context.WithTimeout(ctx, r.limit)
		defer cancel()
		for ids := range slices.Chunk(eventIDs, RollUpBatch) {
			if err := r.budget.Write(ctx, func() error { return r.rollUp(ctx, ids) }); err != nil {
				r.meter.logger.Log(ctx, r.outage.Level(ctx, err), "the status of events could not be brought up to date; the sweep does it",
					telemetry.EventID, ids[0], telemetry.Count, len(ids), telemetry.Err, err)
			}
		}
	})
}

func (r *RollUps) rollUp(ctx context.Context, eventIDs []string) error {
	changes, err := r.settler.RollUp(ctx, eventIDs)
	r.meter.Count(ctx, changes...)
	return err
}

// Deliveries is how many retried deliveries have ended.
func (r *RollUps) Deliveries() int64 { return r.ended.Load() }
