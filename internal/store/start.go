package store

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/prepared"
)

// Starts are notes, each by a commit of its own, that handlers are about to run. If the process dies then, the instance that
// takes the deliveries over runs each of them alone, for any of them may have killed the process. Leased rows are found by
// their primary key.
type Starts struct {
	db    *bun.DB
	d     dialect.Dialect
	stmts *prepared.Statements
}

// Start notes that the handlers of leased deliveries are about to run.
func (s Starts) Start(ctx context.Context, owner string, ds []Leased) error {
	pairs := pairsOf(ds)
	exec, query, args := s.db.ExecContext, s.d.UpdateIDs(deliveryTable, pairs, "started = 1", leasedBy), []any{owner}
	if ids, version := sameVersion(pairs); ids != nil {
		exec, args = s.stmts.On(s.db).ExecContext, []any{ids, version, owner}
		query = "UPDATE " + s.d.Keyed(deliveryTable) + " SET started = 1 WHERE " + dialect.Under + " AND " + leasedBy
	}
	if _, err := exec(ctx, query, args...); err != nil {
		return fmt.Errorf("consume log: note that deliveries start: %w", err)
	}
	return nil // the transaction that marks them SUCCESS finds out which leases are lost
}

// StartCounted is [Starts.Start] for a delivery that runs alone. It counts the attempt before its outcome is known: if the
// delivery kills one process after the other, its attempts are used up in the end. A repeated call counts once. It
// reports [ErrLeaseLost] if the lease is lost.
func (s Starts) StartCounted(ctx context.Context, owner string, d Leased) error {
	const set = "attempts = attempts + 1, started = 2, first_run_at = COALESCE(first_run_at, "
	_, err := s.db.ExecContext(ctx, s.d.UpdateIDs(deliveryTable, []dialect.Pair{d.pair()}, set+s.d.Now+"), updated_at = "+s.d.Now,
		leasedBy+" AND e.started < 2"), owner)
	if err != nil {
		return fmt.Errorf("consume log: note that the delivery of event %s starts: %w", d.EventID, err)
	}
	still, err := held(ctx, s.db, s.d, owner, []Leased{d}, "")
	if err == nil && len(still) == 0 {
		err = fmt.Errorf("event %s for %s: %w", d.EventID, d.Consumer, ErrLeaseLost)
	}
	if err != nil {
		return fmt.Errorf("consume log: note that the delivery of event %s starts: %w", d.EventID, err)
	}
	return nil
}

// Begin inserts PROCESSING rows of one consumer's deliveries that are about to run and that have
// no row yet, because their handlers have no transaction. It returns their leases by event id. Those that are
// missing have a row already.
func (s Starts) Begin(ctx context.Context, ds []Delivery, owner string, lease time.Duration) (map[string]Leased, error) {
	return s.beginAs(ctx, ds, owner, lease, started)
}

// BeginCounted is [Starts.Begin] for a delivery that a process that has died may have started: this run is counted.
func (s Starts) BeginCounted(ctx context.Context, d Delivery, owner string, lease time.Duration) (map[string]Leased, error) {
	return s.beginAs(ctx, []Delivery{d}, owner, lease, counted)
}

func (s Starts) beginAs(ctx context.Context, ds []Delivery, owner string, lease time.Duration, as int) (map[string]Leased, error) {
	begins, attempts, first := slices.Clone(ds), 0, "NULL"
	if as == counted {
		attempts, first = 1, s.d.Now
	}
	for i := range begins {
		begins[i].Attempts = attempts
	}
	quoted := string(s.db.Dialect().AppendString(nil, owner))
	more := ", 'PROCESSING', " + after(s.d, lease) + ", " + quoted + ", 1, " + strconv.Itoa(as) + ", " + first
	_, err := s.db.ExecContext(ctx, insertInto+", status, next_retry_at, locked_by, lock_version, started, first_run_at) "+
		valuesOf(s.db.Dialect(), begins, more)+s.d.Ignore(uniqueEvent))
	if err != nil {
		return nil, fmt.Errorf("consume log: begin deliveries: %w", err)
	}
	begun, err := s.begun(ctx, begins, owner)
	if err != nil {
		return nil, fmt.Errorf("consume log: begin deliveries: %w", err)
	}
	return begun, nil
}

// begun reads the leases that Begin has made, by uk_event_consumer. The status stands outside the WHERE: inside, PostgreSQL
// without statistics would choose the index over states.
func (s Starts) begun(ctx context.Context, ds []Delivery, owner string) (map[string]Leased, error) {
	ids, of := make([]string, len(ds)), make(map[string]Delivery, len(ds))
	for i, d := range ds {
		ids[i], of[d.EventID] = d.EventID, d
	}
	rows, err := s.stmts.On(s.db).QueryContext(ctx, "SELECT id, event_id, "+
		"CASE WHEN status = 'PROCESSING' AND locked_by = ? AND lock_version = 1 THEN 1 ELSE 0 END FROM "+
		deliveryTable+" WHERE consumer_name = ? AND event_id IN (?)", owner, ds[0].Consumer, ids)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := make(map[string]Leased, len(ds))
	for rows.Next() {
		var row Leased
		var eventID string
		var mine int
		if err := rows.Scan(&row.ID, &eventID, &mine); err != nil {
			return nil, err
		}
		if mine == 1 {
			row.Delivery, row.Version, row.Before = of[eventID], 1, Pending
			row.Attempts = 1
			out[eventID] = row
		}
	}
	return out, rows.Err()
}
