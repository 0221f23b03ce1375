package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// Removal finds, locks and removes what has been kept for long enough: events with their deliveries and attempts, and rows of
// the audit log. It is safe for concurrent use.
type Removal struct{ d dialect.Dialect }

// NewRemoval returns the statements in the words of a database.
func NewRemoval(d dialect.Dialect) Removal { return Removal{d} }

const (
	auditTable   = "bc_audit_log"
	attemptTable = "bc_delivery_attempt"
)

// ForgetAudit deletes up to limit rows of the audit log that are older than age, the oldest first, and tells how many.
// It finds them by idx_created_at.
func (r Removal) ForgetAudit(ctx context.Context, idb bun.IDB, age time.Duration, limit int) (int, error) {
	query := "SELECT id FROM " + auditTable + " WHERE created_at < " + r.d.After + " ORDER BY created_at, id LIMIT ?"
	rows, err := readIDs(idb.QueryContext(ctx, query, -dialect.Micro(age), limit))
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	_, err = idb.ExecContext(ctx, r.d.DeleteIDs(auditTable, dialect.Pairs(rows), "1 = 1"))
	return len(rows), err
}

// OldEvent is an event that may go.
type OldEvent struct {
	Pair    dialect.Pair // no id: the event's row has gone before
	EventID string
}

// OldEventIDs are the ids of events.
func OldEventIDs(events []OldEvent) []string {
	ids := make([]string, len(events))
	for i, e := range events {
		ids[i] = e.EventID
	}
	return ids
}

// Page is a page of the oldest rows of a table.
type Page struct {
	After int64         // the id after which it begins
	Keep  time.Duration // how old a row must be
	Limit int           // rows that are read
}

// Sent reads a page of the oldest events and tells where it ends, and answers those that are SENT for long enough. It walks
// the primary key and ends at the first event that is too young, whatever its state. One that was created in the future, by the
// database's clock, says nothing about those behind it: the walk goes on, and reads no more than all of these and the old ones.
func (r Removal) Sent(ctx context.Context, idb bun.IDB, p Page) (events []OldEvent, last int64, err error) {
	keep := -dialect.Micro(p.Keep)
	return readPage(ctx, idb, p, "SELECT id, event_id, lock_version, CASE WHEN created_at >= "+r.d.After+
		" AND created_at <= "+r.d.Now+" THEN 2 "+
		"WHEN status = 'SENT' AND COALESCE(sent_at, created_at) < "+r.d.After+" THEN 1 ELSE 0 END "+
		"FROM "+eventTable+" WHERE id > ? ORDER BY id LIMIT ?", keep, keep, p.After, p.Limit)
}

// Traces reads a page of the oldest deliveries, along the primary key, and answers the events that were deleted when they
// were SENT. It ends as [Removal.Sent] does.
func (r Removal) Traces(ctx context.Context, idb bun.IDB, p Page) (events []OldEvent, last int64, err error) {
	events, last, err = readPage(ctx, idb, p, "SELECT l.id, l.event_id, 0, CASE WHEN l.created_at > "+r.d.Now+" THEN 0 "+
		"WHEN l.created_at >= "+r.d.After+" THEN 2 WHEN l.status IN ('SUCCESS', 'SKIPPED')"+
		" AND NOT EXISTS (SELECT 1 FROM "+eventTable+" e WHERE e.event_id = l.event_id) THEN 1 ELSE 0 END "+
		"FROM "+deliveryTable+" l WHERE l.id > ? ORDER BY l.id LIMIT ?", -dialect.Micro(p.Keep), p.After, p.Limit)
	for i := range events {
		events[i].Pair = dialect.Pair{}
	}
	slices.SortFunc(events, func(a, b OldEvent) int { return strings.Compare(a.EventID, b.EventID) })
	return slices.Compact(events), last, err // one event has a delivery for each consumer
}

// readPage reads id, event id, version and a verdict, up to the first row that is too young.
func readPage(ctx context.Context, idb bun.IDB, p Page, query string, args ...any) (events []OldEvent, last int64, err error) {
	rows, err := idb.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, p.After, fmt.Errorf("read what is old: %w", err)
	}
	defer rows.Close()
	const removable, tooYoung = 1, 2
	last = p.After
	for rows.Next() {
		var e OldEvent
		var state int
		if err := rows.Scan(&e.Pair.ID, &e.EventID, &e.Pair.Version, &state); err != nil {
			return nil, p.After, fmt.Errorf("read what is old: %w", err)
		}
		if state == tooYoung {
			break
		}
		last = e.Pair.ID
		if state == removable {
			events = append(events, e)
		}
	}
	return events, last, rows.Err()
}

// LockSent locks events of a page of [Removal.Sent], and keeps those that are as they were. It waits for nobody: an event that
// somebody else has locked goes the next time. It goes by uk_event_id, as operators do: MySQL locks entries of that index too,
// and a transaction that locks the row first could deadlock with an operator's, which has locked the entry.
func (r Removal) LockSent(ctx context.Context, tx bun.Tx, events []OldEvent) ([]OldEvent, error) {
	rows, err := tx.QueryContext(ctx, "SELECT e.id, e.event_id, e.lock_version FROM "+r.d.ByEventID(eventTable)+
		" WHERE e.event_id IN (?) AND CASE WHEN e.status = 'SENT' THEN 1 END = 1"+r.d.SkipLocked, bun.List(OldEventIDs(events))) // as in heldBy
	if err != nil {
		return nil, fmt.Errorf("lock events: %w", err)
	}
	defer rows.Close()
	var same []OldEvent
	for rows.Next() {
		var e OldEvent
		if err := rows.Scan(&e.Pair.ID, &e.EventID, &e.Pair.Version); err != nil {
			return nil, fmt.Errorf("lock events: %w", err)
		}
		if slices.Contains(events, e) {
			same = append(same, e)
		}
	}
	slices.SortFunc(same, func(a, b OldEvent) int { return cmp.Compare(a.Pair.ID, b.Pair.ID) })
	return same, rows.Err()
}

// LockTraces locks the deliveries of events that have gone, by uk_event_consumer, and keeps the events of which all are done
// and that nobody has saved again. Nobody does from here on if their keys are marked.
func (r Removal) LockTraces(ctx context.Context, tx bun.Tx, events []OldEvent) ([]OldEvent, error) {
	ids := bun.List(OldEventIDs(events))
	if _, err := r.lockRows(ctx, tx, deliveryTable, ids); err != nil {
		return nil, err
	}
	const open = "SELECT DISTINCT CASE WHEN status IN ('SUCCESS', 'SKIPPED') THEN '' ELSE event_id END" +
		" FROM " + deliveryTable + " WHERE event_id IN (?)"
	needed, err := readTexts(tx.QueryContext(ctx, open, ids))
	if err != nil {
		return nil, fmt.Errorf("look at deliveries: %w", err)
	}
	again, err := readTexts(tx.QueryContext(ctx, "SELECT event_id FROM "+eventTable+" WHERE event_id IN (?)", ids))
	if err != nil {
		return nil, fmt.Errorf("look for events: %w", err)
	}
	needed = append(needed, again...)
	return slices.DeleteFunc(slices.Clone(events), func(e OldEvent) bool { return slices.Contains(needed, e.EventID) }), nil
}

// Remove deletes, or archives, locked events with their deliveries and attempts, all by primary key.
func (r Removal) Remove(ctx context.Context, tx bun.Tx, events []OldEvent, archive bool) error {
	ids, own := bun.List(OldEventIDs(events)), make([]dialect.Pair, 0, len(events))
	for _, e := range events {
		if e.Pair.ID != 0 {
			own = append(own, e.Pair)
		}
	}
	archivedEvents, archivedDeliveries := "", ""
	if archive {
		archivedEvents, archivedDeliveries = eventColumns, deliveryColumns
	}
	for _, t := range []struct{ name, archived string }{{attemptTable, ""}, {deliveryTable, archivedDeliveries}} {
		rows, err := r.lockRows(ctx, tx, t.name, ids)
		if err != nil {
			return err
		}
		if err := r.move(ctx, tx, t.name, t.archived, dialect.Pairs(rows)); err != nil {
			return err
		}
	}
	return r.move(ctx, tx, eventTable, archivedEvents, own)
}

// lockRows locks the rows of events in a table, by uk_event_consumer or idx_event_consumer, and answers their own ids.
func (r Removal) lockRows(ctx context.Context, tx bun.Tx, table string, eventIDs any) ([]int64, error) {
	rows, err := readIDs(tx.QueryContext(ctx, "SELECT id FROM "+table+" WHERE event_id IN (?) ORDER BY id"+r.d.ForUpdate, eventIDs))
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", table, err)
	}
	return rows, nil
}

// move removes rows, after copying these columns of them, if there are any, to the table's archive.
func (r Removal) move(ctx context.Context, tx bun.Tx, from, archived string, rows []dialect.Pair) error {
	if len(rows) == 0 {
		return nil
	}
	if archived != "" {
		columns := "e." + strings.ReplaceAll(archived, ", ", ", e.")
		query := "INSERT INTO " + from + "_archive (" + archived + ") SELECT " + columns +
			" FROM " + r.d.Keyed(from) + " WHERE " + dialect.IDs(rows)
		if _, err := tx.ExecContext(ctx, query); err != nil {
			return fmt.Errorf("archive %s: %w", from, err)
		}
	}
	if _, err := tx.ExecContext(ctx, r.d.DeleteIDs(from, rows, "1 = 1")); err != nil {
		return fmt.Errorf("remove from %s: %w", from, err)
	}
	return nil
}

// The columns that the archive shares with the tables.
const (
	eventColumns = "id, tenant_id, store_id, aggregate_type, aggregate_id, event_type, event_id, event_payload, event_metadata, " +
		"schema_version, status, retry_count, max_retry_count, next_retry_at, locked_by, lock_version, last_error, created_at, updated_at, " +
		"sent_at, trace_id, event_key"
	deliveryColumns = "id, tenant_id, consumer_name, event_id, event_type, status, idempotency_key, consume_result, error_message, " +
		"outbox_id, aggregate_type, aggregate_id, attempts, next_retry_at, locked_by, lock_version, consumed_at, created_at, updated_at, " +
		"started, first_run_at"
)
