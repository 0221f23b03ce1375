package store

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// LockedEvent is what the outbox says of an event whose row the transaction has locked.
type LockedEvent struct {
	ID                 int64
	EventID, EventType string
	Status             string
}

// LockEvents locks the rows of those of the events that exist, by uk_event_id, and answers them in the order of their ids.
func (s Settling) LockEvents(ctx context.Context, tx bun.Tx, eventIDs []string) ([]LockedEvent, error) {
	query := "SELECT id, event_id, event_type, status FROM " + eventTable + " WHERE event_id IN (?) ORDER BY id" + s.d.ForUpdate
	rows, err := s.stmts.On(tx).QueryContext(ctx, query, eventIDs)
	if err != nil {
		return nil, fmt.Errorf("lock events: %w", err)
	}
	defer rows.Close()
	var events []LockedEvent
	for rows.Next() {
		var e LockedEvent
		if err := rows.Scan(&e.ID, &e.EventID, &e.EventType, &e.Status); err != nil {
			return nil, fmt.Errorf("lock events: %w", err)
		}
		events = append(events, e)
	}
	return events, rows.Err()
}

// SetStatus gives events, whose rows the transaction has locked, a status that follows from their deliveries, by primary key.
func (s Settling) SetStatus(ctx context.Context, tx bun.IDB, ids []int64, status string) error {
	set := "last_error = (" + lastError + "), sent_at = NULL"
	if status == "SENT" {
		set = "last_error = NULL, sent_at = " + s.d.Now
	}
	set = "status = ?, " + set + ", next_retry_at = NULL, lock_version = lock_version + 1, updated_at = " + s.d.Now
	if _, err := tx.ExecContext(ctx, s.d.UpdateIDs(eventTable, dialect.Pairs(ids), set, "1 = 1"), status); err != nil {
		return fmt.Errorf("roll up events: %w", err)
	}
	return nil
}

// Delete deletes events whose rows the transaction has locked, by primary key.
func (s Settling) Delete(ctx context.Context, tx bun.IDB, ids []int64) error {
	if _, err := tx.ExecContext(ctx, s.d.DeleteIDs(eventTable, dialect.Pairs(ids), "1 = 1")); err != nil {
		return fmt.Errorf("delete events: %w", err)
	}
	return nil
}

// FailedButNotWaiting lists FAILED events none of whose deliveries waits, at most so many, by idx_status_next_retry: what a
// crash between two transactions leaves.
func (s Settling) FailedButNotWaiting(ctx context.Context, idb bun.IDB, most int) ([]string, error) {
	ids, err := readTexts(idb.QueryContext(ctx, "SELECT e.event_id FROM "+eventTable+" e"+
		" WHERE e.status = 'FAILED' AND e.status <> 'SENT' AND NOT EXISTS (SELECT 1 FROM "+deliveryTable+" l "+
		"WHERE l.event_id = e.event_id AND l.status IN ('PENDING', 'FAILED', 'PROCESSING')) ORDER BY e.next_retry_at, e.id LIMIT ?", most))
	if err != nil {
		return nil, fmt.Errorf("look for FAILED events of which nothing waits: %w", err)
	}
	return ids, nil
}

// DateEvents makes events due that wait for a time that they do not have, by idx_status_next_retry.
func (s Settling) DateEvents(ctx context.Context, tx bun.Tx) error {
	return s.date(ctx, tx, eventTable, "status IN ('SCHEDULED', 'DISPATCHING') AND status <> 'SENT' AND next_retry_at IS NULL")
}

// MostDated is for how many consumers [Settling.DateDeliveries] looks at the places of three states in an index: with
// thousands MariaDB makes a table of the list, and reads the history.
const MostDated = 300

// DateDeliveries does the same for the deliveries of at most [MostDated] consumers, by idx_consumer_due.
func (s Settling) DateDeliveries(ctx context.Context, tx bun.Tx, consumers []string) error {
	return s.date(ctx, tx, deliveryTable, "consumer_name IN (?)"+
		" AND status IN ('PENDING', 'FAILED', 'PROCESSING') AND status <> 'SUCCESS' AND next_retry_at IS NULL", bun.List(consumers))
}

// date leaves rows alone that somebody is writing: a delivery that runs would hold it up for as long as its handler takes.
func (s Settling) date(ctx context.Context, tx bun.Tx, table, where string, args ...any) error {
	var ids []int64
	err := tx.NewRaw("SELECT id FROM "+table+" WHERE "+where+s.d.SkipLocked, args...).Scan(ctx, &ids)
	if err == nil && len(ids) > 0 {
		_, err = tx.ExecContext(ctx, "UPDATE "+table+" SET next_retry_at = "+s.d.Now+" WHERE id IN (?)", bun.List(ids))
	}
	if err != nil {
		return fmt.Errorf("give rows a time: %w", err)
	}
	return nil
}

// missed reads how many rows fewer than were meant a statement has changed: 0 where a driver does not tell.
func missed(meant int) func(res sql.Result, err error) (int, error) {
	return func(res sql.Result, err error) (int, error) {
		if err != nil {
			return 0, err
		}
		if n, err := res.RowsAffected(); err == nil {
			return max(meant-int(n), 0), nil
		}
		return 0, nil
	}
}
