package engine

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/engine/budget"
	"github.com/bluecone-go/bluecone/internal/engine/delivery"
	"github.com/bluecone-go/bluecone/internal/engine/health"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

const (
	// backfillPage is how many past events a step reads, and so at most gives to a consumer.
	backfillPage = 500
	// backfillEvery is when a backfill is looked at again that has nothing to do now, and first when handlers have enough to do.
	backfillEvery = 100 * time.Millisecond
	// backfillSlowest is when it is looked at again at the latest: a look counts deliveries, which slow handlers should not pay for
	// all the time. The wait doubles, so that handlers wait for a page no longer than they took for the last one.
	backfillSlowest = 2 * time.Second
)

// backfills give consumers of this process the past that their StartFrom asks for: page by page, in the order in which it was saved,
// and no faster than their handlers take it. A step is one transaction under the lock of the operation's row, so that of several
// instances one does it, and one that dies leaves nothing behind.
type backfills struct {
	cfg       *Config
	consumers []*handler.Consumer
	roster    *registry.Roster
	lanes     *delivery.Lanes
	budget    *budget.Transactions
	outage    *health.Outage
	rows      store.Backfills

	seen atomic.Int64 // events, so far
}

// run goes on until stop is closed. While no backfill is open it asks the database nothing.
func (b *backfills) run(stop <-chan struct{}) {
	wait := backfillEvery
	for {
		ctx, cancel := context.WithTimeout(context.Background(), b.cfg.Lease)
		did, err := b.step(ctx)
		if err != nil {
			b.cfg.Logger.Log(ctx, b.outage.Level(ctx, err), "past events could not be given to a consumer; the next beat tries again",
				telemetry.Err, err)
		}
		cancel()
		switch {
		case did.given && err == nil:
			wait = time.Millisecond
		case did.heldBack:
			wait = min(max(2*wait, backfillEvery), backfillSlowest)
		default:
			wait = backfillEvery
		}
		next := time.NewTimer(wait)
		select {
		case <-stop:
			next.Stop()
			return
		case <-next.C:
		}
	}
}

// stepped is what a step has done: past events were given to a consumer, or held back because its handlers have enough to do.
type stepped struct{ given, heldBack bool }

// step does a page for each consumer of which a backfill is open.
func (b *backfills) step(ctx context.Context) (did stepped, err error) {
	for _, c := range b.consumers {
		if c.Config.StartFrom.IsZero() || !b.roster.IsFilled(c.Key) {
			continue
		}
		waiting, err := b.rows.Waiting(ctx, b.cfg.DB, c.Key, backfillPage)
		if err != nil {
			return did, err
		}
		if waiting >= backfillPage/2 {
			did.heldBack = true
			continue
		}
		seen, err := b.page(ctx, c)
		if err != nil {
			return did, err
		}
		if seen == 0 {
			continue
		}
		did.given = true
		b.seen.Add(int64(seen))
		if err := b.lanes.Retry(ctx, []string{c.Key}); err != nil {
			return did, err
		}
	}
	return did, nil
}

// page gives a consumer its next past events, and tells how many it has looked at.
func (b *backfills) page(ctx context.Context, c *handler.Consumer) (seen int, err error) {
	defer b.budget.Turn()()
	var changes []settle.Change
	err = store.InTx(ctx, b.cfg.DB, b.cfg.Dialect, b.cfg.Statements, func(ctx context.Context, tx bun.Tx) error {
		seen, changes = 0, nil
		f, ok, err := b.rows.Lock(ctx, tx, c.Key)
		if err != nil || !ok {
			return err
		}
		past, err := b.rows.Past(ctx, tx, f, backfillPage)
		if err != nil {
			return err
		}
		step := store.BackfillStep{Reached: f.UpTo, IsOver: true}
		if len(past) == backfillPage {
			step = store.BackfillStep{Reached: past[len(past)-1].OutboxID}
		}
		wanted := slices.DeleteFunc(slices.Clone(past), func(e store.PastEvent) bool {
			return c.Handler(e.EventType) == nil || e.SavedAt.Before(f.Since)
		})
		ready, inHand, err := b.ready(ctx, tx, wanted)
		if err != nil {
			return err
		}
		if inHand != 0 { // go on with it when it is settled
			step = store.BackfillStep{Reached: inHand - 1}
			past = slices.DeleteFunc(past, func(e store.PastEvent) bool { return e.OutboxID >= inHand })
		}
		if step.Given, changes, err = b.give(ctx, tx, c.Key, wanted, ready); err != nil {
			return err
		}
		seen = len(past)
		step.Other = seen - step.Given
		return b.rows.Save(ctx, tx, f.ID, step)
	})
	if err != nil {
		return 0, err
	}
	b.cfg.Meter.Count(ctx, changes...)
	return seen, nil
}

// ready locks events, and answers those that were delivered to others, up to one that an instance has in hand: whoever claimed that
// one may not have known the consumer, and what it is settled as tells. What is new gets to the consumer by itself, because who
// claims it reads the registry after its lock.
func (b *backfills) ready(ctx context.Context, tx bun.Tx, events []store.PastEvent) (ready []store.LockedEvent, inHand int64, err error) {
	if len(events) == 0 {
		return nil, 0, nil
	}
	ids := make([]string, len(events))
	for i, e := range events {
		ids[i] = e.EventID
	}
	locked, err := b.cfg.Settler.Lock(ctx, tx, ids)
	if err != nil {
		return nil, 0, err
	}
	for _, e := range locked {
		switch settle.Status(e.Status) {
		case settle.Leased:
			return ready, e.ID, nil
		case settle.Sent, settle.Failed, settle.Dead:
			ready = append(ready, e)
		}
	}
	return ready, 0, nil
}

// give makes deliveries of those of the ready events that the consumer has never had.
func (b *backfills) give(
	ctx context.Context, tx bun.Tx, key string, events []store.PastEvent, ready []store.LockedEvent,
) (given int, changes []settle.Change, err error) {
	if len(ready) == 0 {
		return 0, nil, nil
	}
	ids := make([]string, len(ready))
	for i, e := range ready {
		ids[i] = e.EventID
	}
	had, err := b.cfg.Log.Existing(ctx, tx, key, ids)
	if err != nil {
		return 0, nil, err
	}
	ready = slices.DeleteFunc(ready, func(e store.LockedEvent) bool { _, ok := had[e.EventID]; return ok })
	of := make(map[int64]store.Delivery, len(events))
	for _, e := range events {
		e.Consumer = key
		of[e.OutboxID] = e.Delivery
	}
	ds := make([]store.Delivery, len(ready))
	for i, e := range ready {
		ds[i] = of[e.ID]
	}
	if err := b.cfg.Log.Defer(ctx, tx, ds, 0); err != nil {
		return 0, nil, err
	}
	changes, err = b.cfg.Settler.RollUpIn(ctx, tx, ready)
	return len(ds), changes, err
}
