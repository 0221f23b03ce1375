package outbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/schedule"
)

type (
	// pageOf finds a page of what may go, without any lock, and tells where it ends.
	pageOf func(ctx context.Context, after int64) (events []expiredEvent, last int64, err error)
	// lockOf locks a page, and keeps those that may still go. Whoever holds the lock may delete their deliveries.
	lockOf func(ctx context.Context, tx bun.Tx, events []expiredEvent) ([]expiredEvent, error)
)

// walk removes page by page.
func (r *Retention) walk(ctx context.Context, find pageOf, lock lockOf, counts schedule.Counts) error {
	var after int64
	for ctx.Err() == nil {
		events, last, err := find(ctx, after)
		if err != nil {
			return err
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
func (r *Retention) removeAll(ctx context.Context, events []expiredEvent, lock lockOf, counts schedule.Counts) error {
	if len(events) == 0 {
		return nil
	}
	err := r.ob.keys.Mark(ctx, r.ob.db, eventIDsOf(events))
	if err == nil {
		err = r.ob.inTx(ctx, func(ctx context.Context, tx bun.Tx) (err error) {
			if events, err = lock(ctx, tx, events); err != nil || len(events) == 0 {
				return err
			}
			return r.remove(ctx, tx, events)
		})
	}
	if err != nil {
		return fmt.Errorf("outbox: retention: %w", err)
	}
	counts["removed"] += int64(len(events))
	return nil
}

type expiredEvent struct {
	pair    dialect.Pair // no id: the event's row has gone before
	eventID string
}

func eventIDsOf(events []expiredEvent) []string {
	ids := make([]string, len(events))
	for i, e := range events {
		ids[i] = e.eventID
	}
	return ids
}

// expired reads a page of the oldest events, and those of them that may go. It walks the
// primary key and ends at the first event that is too young, whatever its state.
func (r *Retention) expired(ctx context.Context, after int64) (events []expiredEvent, last int64, err error) {
	keep := -dialect.Micro(r.cfg.Keep)
	return r.page(ctx, after, "SELECT id, event_id, lock_version, CASE WHEN created_at >= "+r.ob.d.After+" THEN 2 WHEN status = 'SENT' AND COALESCE(sent_at, created_at) < "+r.ob.d.After+" THEN 1 ELSE 0 END FROM "+table+
		" WHERE id > ? ORDER BY id LIMIT ?", keep, keep, after, r.cfg.Batch)
}

// traces reads a page of the oldest deliveries whose events have been deleted when they were SENT.
func (r *Retention) traces(ctx context.Context, after int64) (events []expiredEvent, last int64, err error) {
	events, last, err = r.page(ctx, after, "SELECT l.id, l.event_id, 0, CASE WHEN l.created_at >= "+r.ob.d.After+" THEN 2 "+
		"WHEN l.status IN ('SUCCESS', 'SKIPPED') AND NOT EXISTS (SELECT 1 FROM "+table+" e WHERE e.event_id = l.event_id) THEN 1 ELSE 0 END "+
		"FROM bc_event_consume_log l WHERE l.id > ? ORDER BY l.id LIMIT ?", -dialect.Micro(r.cfg.Keep), after, r.cfg.Batch)
	for i := range events {
		events[i].pair = dialect.Pair{}
	}
	slices.SortFunc(events, func(a, b expiredEvent) int { return strings.Compare(a.eventID, b.eventID) })
	return slices.Compact(events), last, err // one event has a delivery for each consumer
}

// page reads id, event id, version and a verdict, up to the first row that is too young.
func (r *Retention) page(ctx context.Context, after int64, query string, args ...any) (events []expiredEvent, last int64, err error) {
	rows, err := r.ob.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, after, fmt.Errorf("outbox: retention: %w", err)
	}
	defer rows.Close()
	const removable, tooYoung = 1, 2
	last = after
	for rows.Next() {
		var e expiredEvent
		var state int
		if err := rows.Scan(&e.pair.ID, &e.eventID, &e.pair.Version, &state); err != nil {
			return nil, after, fmt.Errorf("outbox: retention: %w", err)
		}
		if state == tooYoung {
			break
		}
		last = e.pair.ID
		if state == removable {
			events = append(events, e)
		}
	}
	return events, last, rows.Err()
}

// lockSent locks events of a page, and keeps those that are as they were. It waits for nobody: an event that somebody else
// has locked goes the next time. It goes by uk_event_id, as operators do: MySQL locks entries of that index too, and whoever
// took the row first would meet an operator who has the entry.
func (r *Retention) lockSent(ctx context.Context, tx bun.Tx, events []expiredEvent) ([]expiredEvent, error) {
	hint := ""
	if r.ob.d.Name == "mysql" {
		hint = " FORCE INDEX (uk_event_id)"
	}
	rows, err := tx.QueryContext(ctx, "SELECT e.id, e.event_id, e.lock_version FROM "+table+" e"+hint+" WHERE e.event_id IN (?) AND CASE WHEN e.status = 'SENT' THEN 1 END = 1"+r.ob.d.SkipLocked, bun.List(eventIDsOf(events))) // as in heldBy
	if err != nil {
		return nil, fmt.Errorf("lock events: %w", err)
	}
	defer rows.Close()
	var same []expiredEvent
	for rows.Next() {
		var e expiredEvent
		if err := rows.Scan(&e.pair.ID, &e.eventID, &e.pair.Version); err != nil {
			return nil, fmt.Errorf("lock events: %w", err)
		}
		if slices.Contains(events, e) {
			same = append(same, e)
		}
	}
	slices.SortFunc(same, func(a, b expiredEvent) int { return cmp.Compare(a.pair.ID, b.pair.ID) })
	return same, rows.Err()
}

// lockTraces locks the deliveries of events that have gone, and keeps the events of which all are done and that nobody has
// saved again. Nobody does from here on: their keys are marked.
func (r *Retention) lockTraces(ctx context.Context, tx bun.Tx, events []expiredEvent) ([]expiredEvent, error) {
	ids := eventIDsOf(events)
	const open = "SELECT DISTINCT CASE WHEN status IN ('SUCCESS', 'SKIPPED') THEN '' ELSE event_id END FROM bc_event_consume_log WHERE event_id IN (?)"
	if _, err := r.pairs(ctx, tx, "SELECT id FROM bc_event_consume_log WHERE event_id IN (?) ORDER BY id"+r.ob.d.ForUpdate, bun.List(ids)); err != nil {
		return nil, fmt.Errorf("lock deliveries: %w", err)
	}
	needed, err := r.ob.strings(ctx, tx, open, bun.List(ids))
	if err != nil {
		return nil, fmt.Errorf("look at deliveries: %w", err)
	}
	again, err := r.ob.strings(ctx, tx, "SELECT event_id FROM "+table+" WHERE event_id IN (?)", bun.List(ids))
	if err != nil {
		return nil, fmt.Errorf("look for events: %w", err)
	}
	needed = append(needed, again...)
	return slices.DeleteFunc(slices.Clone(events), func(e expiredEvent) bool { return slices.Contains(needed, e.eventID) }), nil
}

// remove deletes, or archives, locked events with their deliveries and attempts, all by primary key.
func (r *Retention) remove(ctx context.Context, tx bun.Tx, events []expiredEvent) error {
	ids, pairs := eventIDsOf(events), make([]dialect.Pair, 0, len(events))
	for _, e := range events {
		if e.pair.ID != 0 {
			pairs = append(pairs, e.pair)
		}
	}
	for _, t := range []struct{ name, archived string }{{"bc_delivery_attempt", ""}, {"bc_event_consume_log", archivedDelivery}} {
		rows, err := r.pairs(ctx, tx, "SELECT id FROM "+t.name+" WHERE event_id IN (?) ORDER BY id"+r.ob.d.ForUpdate, bun.List(ids))
		if err != nil {
			return fmt.Errorf("lock %s: %w", t.name, err)
		}
		if err := r.move(ctx, tx, t.name, t.archived, rows); err != nil {
			return err
		}
	}
	return r.move(ctx, tx, table, archivedEvent, pairs)
}

// move removes rows, after copying them to the archive if they have one and it is wanted.
func (r *Retention) move(ctx context.Context, tx bun.Tx, from, archived string, rows []dialect.Pair) error {
	if len(rows) == 0 {
		return nil
	}
	if archived != "" && r.cfg.Archive {
		columns := "e." + strings.ReplaceAll(archived, ", ", ", e.")
		if _, err := tx.ExecContext(ctx, "INSERT INTO "+from+"_archive ("+archived+") SELECT "+columns+" FROM "+r.ob.d.Keyed(from)+" WHERE "+dialect.IDs(rows)); err != nil {
			return fmt.Errorf("archive %s: %w", from, err)
		}
	}
	if _, err := tx.ExecContext(ctx, r.ob.d.DeleteIDs(from, rows, "1 = 1")); err != nil {
		return fmt.Errorf("remove from %s: %w", from, err)
	}
	return nil
}

// The columns that the archive shares with the tables.
const (
	archivedEvent = "id, tenant_id, store_id, aggregate_type, aggregate_id, event_type, event_id, event_payload, event_metadata, schema_version, status, " +
		"retry_count, max_retry_count, next_retry_at, locked_by, lock_version, last_error, created_at, updated_at, sent_at, trace_id, event_key"
	archivedDelivery = "id, tenant_id, consumer_name, event_id, event_type, status, idempotency_key, consume_result, error_message, outbox_id, aggregate_type, " +
		"aggregate_id, attempts, next_retry_at, locked_by, lock_version, consumed_at, created_at, updated_at, started, first_run_at"
)
