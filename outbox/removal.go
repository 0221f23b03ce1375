package outbox

import (
	"context"
	"fmt"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/schedule"
	"github.com/bluecone-go/bluecone/internal/store"
)

type (
	// pageOf finds a page of what may go, without any lock, and tells where it ends.
	pageOf func(ctx context.Context, idb bun.IDB, p store.Page) (events []store.OldEvent, last int64, err error)
	// lockOf locks a page, and keeps those that may still go. Whoever holds the lock may delete their deliveries.
	lockOf func(ctx context.Context, tx bun.Tx, events []store.OldEvent) ([]store.OldEvent, error)
)

// walk removes page by page.
func (r *Retention) walk(ctx context.Context, find pageOf, lock lockOf, counts schedule.Counts) error {
	var after int64
	for ctx.Err() == nil {
		events, last, err := find(ctx, r.ob.db, store.Page{After: after, Keep: r.cfg.Keep, Limit: r.cfg.Batch})
		if err != nil {
			return fmt.Errorf("outbox: retention: %w", err)
		}
		if err := r.removeAll(ctx, events, lock, counts); err != nil {
			return err
		}
		if last == after {
			return nil
		}
		after = last
	}
	return context.Cause(ctx)
}

// removeAll removes a page in one transaction: locks first, then deliveries, then events. What an operator has opened
// again since the page was read stays, with all of its deliveries; who comes later finds it gone.
func (r *Retention) removeAll(ctx context.Context, events []store.OldEvent, lock lockOf, counts schedule.Counts) error {
	if len(events) == 0 {
		return nil
	}
	err := r.ob.keys.Mark(ctx, r.ob.db, store.OldEventIDs(events))
	if err == nil {
		err = r.ob.inTx(ctx, func(ctx context.Context, tx bun.Tx) (err error) {
			if events, err = lock(ctx, tx, events); err != nil || len(events) == 0 {
				return err
			}
			return r.rows.Remove(ctx, tx, events, r.cfg.Archive)
		})
	}
	if err != nil {
		return fmt.Errorf("outbox: retention: %w", err)
	}
	counts["removed"] += int64(len(events))
	return nil
}
