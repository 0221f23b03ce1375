// Package backfill gives new consumers the past that they ask for.
//
// A consumer with StartFrom that is registered for the first time gets past events page by page, in the order in which they were
// saved. It gets the next page when its handlers have done most of the one before.
package backfill

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/budget"
	"github.com/bluecone-go/bluecone/internal/engine/delivery"
	"github.com/bluecone-go/bluecone/internal/engine/health"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

const (
	// pageSize is how many past events a step reads, and so at most gives to a consumer.
	pageSize = 500
	// lookEvery is when a backfill is looked at again that has nothing to do now, and first when handlers have enough to do.
	lookEvery = 100 * time.Millisecond
	// lookSlowest is when it is looked at again at the latest: a look counts deliveries, which slow handlers should not pay for
	// all the time. The wait doubles, so that handlers wait for a page no longer than they took for the last one.
	lookSlowest = 2 * time.Second
)

// Config is what [Backfills] work with.
type Config struct {
	DB         *bun.DB
	Dialect    dialect.Dialect
	Statements *prepared.Statements
	Log        store.Log
	Logger     *slog.Logger

	Consumers []*handler.Consumer // of this process
	Limit     time.Duration       // how long a step may take

	Settler *settle.Settler
	Meter   *settle.Meter
	Roster  *registry.Roster // it says of which consumers a backfill is open
	Lanes   *delivery.Lanes  // they are told of the deliveries
	Budget  *budget.Transactions
	Outage  *health.Outage
}

// Backfills give consumers of this process the past that their StartFrom asks for: page by page, in the order in which it was saved,
// and no faster than their handlers take it. A step is one transaction under the lock of the operation's row, so that of several
// instances one does it, and one that dies leaves nothing behind.
type Backfills struct {
	cfg  Config
	rows store.Backfills

	seen atomic.Int64 // events, so far
}

// New returns those of one run of a publisher. They have given nothing yet.
func New(cfg Config) *Backfills { return &Backfills{cfg: cfg, rows: store.NewBackfills(cfg.Dialect)} }

// Seen is how many past events were looked at.
func (b *Backfills) Seen() int64 { return b.seen.Load() }

// Run gives pages, and goes on until stop is closed. While no backfill is open it asks the database nothing.
func (b *Backfills) Run(stop <-chan struct{}) {
	wait := lookEvery
	for {
		ctx, cancel := context.WithTimeout(context.Background(), b.cfg.Limit)
		did, err := b.Step(ctx)
		if err != nil {
			b.cfg.Logger.Log(ctx, b.cfg.Outage.Level(ctx, err), "past events could not be given to a consumer; it is tried again in a moment",
				telemetry.Err, err)
		}
		cancel()
		switch {
		case did.IsGiven && err == nil:
			wait = time.Millisecond
		case did.IsHeldBack:
			wait = min(max(2*wait, lookEvery), lookSlowest)
		default:
			wait = lookEvery
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

// Result is what a step has done.
type Result struct {
	IsGiven    bool // past events were looked at, and given to the consumers that take them
	IsHeldBack bool // they were held back, because the handlers of a consumer have enough to do
}

// Step gives a page to each consumer of which a backfill is open.
func (b *Backfills) Step(ctx context.Context) (did Result, err error) {
	for _, c := range b.cfg.Consumers {
		if !b.cfg.Roster.IsFilled(c.Key) { // a release that asks for no past finishes what one before it has begun
			continue
		}
		waiting, err := b.rows.Waiting(ctx, b.cfg.DB, c.Key, pageSize)
		if err != nil {
			return did, err
		}
		if waiting >= pageSize/2 {
			did.IsHeldBack = true
			continue
		}
		seen, err := b.page(ctx, c)
		if err != nil {
			return did, err
		}
		if seen == 0 {
			continue
		}
		did.IsGiven = true
		b.seen.Add(int64(seen))
		if err := b.cfg.Lanes.Retry(ctx, []string{c.Key}); err != nil {
			return did, err
		}
	}
	return did, nil
}

// page gives a consumer its next past events, and tells how many it has looked at.
func (b *Backfills) page(ctx context.Context, c *handler.Consumer) (seen int, err error) {
	over, err := b.cfg.Budget.Acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer over()
	var changes []settle.Change
	err = store.InTx(ctx, b.cfg.DB, b.cfg.Dialect, b.cfg.Statements, func(ctx context.Context, tx bun.Tx) error {
		seen, changes = 0, nil
		f, ok, err := b.rows.Lock(ctx, tx, c.Key)
		if err != nil || !ok {
			return err
		}
		past, err := b.rows.Past(ctx, tx, f, pageSize)
		if err != nil {
			return err
		}
		step := store.BackfillStep{Reached: f.UpTo, IsOver: true}
		if len(past) == pageSize {
			step = store.BackfillStep{Reached: past[len(past)-1].OutboxID}
		}
		wanted := slices.DeleteFunc(slices.Clone(past), func(e store.PastEvent) bool {
			return c.Handler(e.EventType) == nil || e.SavedAt.Before(f.Since)
		})
		ready, inFlight, err := b.ready(ctx, tx, wanted)
		if err != nil {
			return err
		}
		if inFlight != 0 { // go on with it when it is settled
			step = store.BackfillStep{Reached: inFlight - 1}
			past = slices.DeleteFunc(past, func(e store.PastEvent) bool { return e.OutboxID >= inFlight })
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

// ready locks events, and answers those that were delivered to others, up to one that an instance has in flight: whoever claimed that
// one may not have known the consumer, and what it is settled as tells. What is new gets to the consumer by itself, because who
// claims it reads the registry after its lock.
func (b *Backfills) ready(ctx context.Context, tx bun.Tx, events []store.PastEvent) (ready []store.LockedEvent, inFlight int64, err error) {
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
func (b *Backfills) give(
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
