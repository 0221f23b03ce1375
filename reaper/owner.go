package reaper

import (
	"context"
	"errors"
	"fmt"

	"github.com/uptrace/bun"
)

// Owner speaks for the aggregates that locks belong to, such as orders.
//
// Tasks that have the same Owner give the locks of an aggregate up together: when one has outlived its time to live and
// may go, the others go with it, in one transaction, unless something holds them.
type Owner struct {
	// Guard locks the row of the aggregate in tx ("SELECT … FOR UPDATE", nothing on SQLite), and tells whether its
	// locks may be released. A transaction that saves an event of the aggregate must hold that row lock, as package outbox asks for
	// anyway. The reaper asks about events after Guard has returned.
	Guard func(ctx context.Context, tx bun.Tx, a Aggregate) (release bool, err error)
	// Released is called in the same transaction after locks of the aggregate have been released. It may change the
	// aggregate, and save an event: an order whose locks are gone is given up here. It may be nil.
	Released func(ctx context.Context, tx bun.Tx, a Aggregate) error
}

// validateOwners refuses tasks that share an owner and cannot list the locks of one aggregate.
func validateOwners(tasks []Task) error {
	count := make(map[*Owner]int)
	for _, t := range tasks {
		count[t.Owner]++
	}
	var errs []error
	for _, t := range tasks {
		if t.Owner != nil && count[t.Owner] > 1 && t.Of == nil {
			errs = append(errs, fmt.Errorf("reaper.Task %s: Of is nil: a task that shares its Owner must list the locks of an aggregate", t.Name))
		}
	}
	return errors.Join(errs...)
}
