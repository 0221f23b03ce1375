package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// AgedQuery says which deliveries have failed for too long.
type AgedQuery struct {
	Consumer string        // its key
	Types    []string      // of their events
	Owner    string        // the instance that leases them
	Lease    time.Duration // how long
	Age      time.Duration // they have run for the first time so long ago
	Limit    int           // at most so many
}

// Aged is a delivery that has failed for too long.
type Aged struct {
	Leased
	Error string // of its last run
}

// ClaimAged leases deliveries of one consumer that are due, and have failed for too long. It walks along idx_consumer_due,
// over those that have failed. It does not ask for their order: they are to be ended, not to run.
func (l Leases) ClaimAged(ctx context.Context, q AgedQuery) (aged []Aged, err error) {
	err = l.InTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		aged = nil
		ds, err := l.selectWaiting(ctx, tx, "consumer_name = ? AND status = ?"+inDueIndex+" AND next_retry_at <= "+l.d.Now+
			" AND first_run_at <= "+l.d.After+" AND event_type IN (?) ORDER BY next_retry_at, id LIMIT ?"+l.d.SkipLocked,
			q.Consumer, string(Failed), -dialect.Micro(q.Age), q.Types, q.Limit)
		if err != nil || len(ds) == 0 {
			return err
		}
		errs, err := l.lastErrors(ctx, tx, ds)
		if err != nil {
			return err
		}
		if err := l.LeaseLocked(ctx, tx, q.Owner, q.Lease, ds); err != nil {
			return err
		}
		for _, d := range ds {
			aged = append(aged, Aged{d, errs[d.ID]})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("consume log: claim deliveries of %s that are too old: %w", q.Consumer, err)
	}
	return aged, nil
}

// lastErrors are the errors of deliveries by the ids of their rows, found by their primary key.
func (l Leases) lastErrors(ctx context.Context, tx bun.Tx, ds []Leased) (map[int64]string, error) {
	ids := make([]int64, len(ds))
	for i, d := range ds {
		ids[i] = d.ID
	}
	rows, err := tx.QueryContext(ctx, "SELECT e.id, e.error_message FROM "+l.d.Keyed(deliveryTable)+" WHERE e.id IN (?)", bun.List(ids))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := make(map[int64]string, len(ds))
	for rows.Next() {
		var id int64
		var text sql.NullString
		if err := rows.Scan(&id, &text); err != nil {
			return nil, err
		}
		found[id] = text.String
	}
	return found, rows.Err()
}
