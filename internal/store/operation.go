package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// Operations changes registered consumers and deliveries for operators. It is safe for concurrent use.
type Operations struct{ d dialect.Dialect }

// NewOperations returns the statements in the words of a database.
func NewOperations(d dialect.Dialect) Operations { return Operations{d} }

// KeyOf is the key of a registered consumer that is named by its key or its name, and false if there is none. There are as many
// rows as consumers: it reads them all.
func (p Operations) KeyOf(ctx context.Context, idb bun.IDB, consumer string) (key string, known bool, err error) {
	keys, err := readTexts(idb.QueryContext(ctx, "SELECT name FROM bc_consumer WHERE name = ? OR display_name = ?"+
		" ORDER BY CASE WHEN name = ? THEN 0 ELSE 1 END, seen_at DESC LIMIT 1",
		consumer, consumer, consumer))
	if err != nil || len(keys) == 0 {
		return "", false, err
	}
	return keys[0], true, nil
}

// IsRegistered reports whether there is a consumer of that key, by primary key.
func (p Operations) IsRegistered(ctx context.Context, idb bun.IDB, key string) (bool, error) {
	var n int
	err := idb.QueryRowContext(ctx, "SELECT COUNT(*) FROM bc_consumer WHERE name = ?", key).Scan(&n)
	return n > 0, err
}

// IsReplayable reports whether a consumer's past events may be run again, by primary key.
func (p Operations) IsReplayable(ctx context.Context, idb bun.IDB, key string) (bool, error) {
	var may int
	err := idb.QueryRowContext(ctx, "SELECT COALESCE(MAX(replayable), 0) FROM bc_consumer WHERE name = ?", key).Scan(&may)
	return may > 0, err
}

// PauseConsumer pauses a consumer for a while, by primary key.
func (p Operations) PauseConsumer(ctx context.Context, tx bun.IDB, key string, pause time.Duration, by, reason string) error {
	_, err := tx.ExecContext(ctx, "UPDATE bc_consumer SET paused_until = "+p.d.After+", paused_by = ?, pause_reason = ? WHERE name = ?",
		dialect.Micro(pause), by, reason, key)
	return err
}

// ResumeConsumer ends a pause, by primary key, and reports whether there was one.
func (p Operations) ResumeConsumer(ctx context.Context, tx bun.IDB, key string) (bool, error) {
	return hasChanged(tx.ExecContext(ctx, "UPDATE bc_consumer SET paused_until = NULL, paused_by = NULL, pause_reason = NULL"+
		" WHERE name = ? AND paused_until IS NOT NULL", key))
}

// RetireConsumers removes consumers, and the event types that they take, from the registry, by primary key.
func (p Operations) RetireConsumers(ctx context.Context, tx bun.IDB, keys []string) error {
	if _, err := tx.ExecContext(ctx, "DELETE FROM bc_consumer WHERE name IN (?)", bun.List(keys)); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, "DELETE FROM bc_consumer_type WHERE consumer_name IN (?)", bun.List(keys))
	return err
}

// RetireTypes removes event types from those that instances have announced for a consumer, by primary key, and tells how many.
func (p Operations) RetireTypes(ctx context.Context, tx bun.IDB, key string, eventTypes []string) (int64, error) {
	res, err := tx.ExecContext(ctx, "DELETE FROM bc_consumer_type WHERE consumer_name = ? AND event_type IN (?)", key, bun.List(eventTypes))
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// LockTypes locks the row of a consumer, by primary key, and answers the list of event types in it, as JSON.
func (p Operations) LockTypes(ctx context.Context, tx bun.IDB, key string) (list string, err error) {
	err = tx.QueryRowContext(ctx, "SELECT "+shortTypes(p.d)+" FROM bc_consumer WHERE name = ?"+p.d.ForUpdate, key).Scan(&list)
	return list, err
}

// SetTypes writes the list of event types, as JSON, into the row of a consumer, by primary key.
func (p Operations) SetTypes(ctx context.Context, tx bun.IDB, key, list string) error {
	_, err := tx.ExecContext(ctx, "UPDATE bc_consumer SET event_types = ? WHERE name = ?", list, key)
	return err
}

// DeliveryChange is what becomes of deliveries: PENDING or FAILED, to run again with all their attempts before them, or SKIPPED or
// DEAD.
type DeliveryChange struct {
	To    string
	Delay time.Duration // until it is due, if it is to run again
	Why   string        // for people, if it is not
}

// set are the columns that the change sets, and their values.
func (c DeliveryChange) set(d dialect.Dialect) (string, []any) {
	if c.To == "PENDING" || c.To == "FAILED" {
		return "status = ?, attempts = 0, first_run_at = NULL, next_retry_at = " + d.After, []any{c.To, dialect.Micro(c.Delay)}
	}
	return "status = ?, next_retry_at = NULL, error_message = ?", []any{c.To, c.Why}
}

// ChangeDeliveries changes those deliveries of an event that are in one of the states, of the consumers, or of all if none are
// named, and tells whose they are. It looks without a lock first, by uk_event_consumer, and then locks by the primary key what it has
// found: MySQL would wait for a row that a running handler has locked, whatever its state, and the caller has locked the event.
func (p Operations) ChangeDeliveries(
	ctx context.Context, tx bun.Tx, eventID string, consumers, states []string, c DeliveryChange,
) ([]string, error) {
	where, args := "event_id = ? AND status IN (?)", []any{eventID, bun.List(states)}
	if len(consumers) > 0 {
		where, args = where+" AND consumer_name IN (?)", append(args, bun.List(consumers))
	}
	ids, err := readIDs(tx.QueryContext(ctx, "SELECT id FROM "+deliveryTable+" WHERE "+where, args...))
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	changed, err := readTexts(tx.QueryContext(ctx, "SELECT e.consumer_name FROM "+p.d.Keyed(deliveryTable)+
		" WHERE e.id IN (?) AND e.status IN (?) ORDER BY e.id"+p.d.ForUpdate, bun.List(ids), bun.List(states)))
	if err != nil || len(changed) == 0 {
		return nil, err
	}
	set, values := c.set(p.d)
	_, err = tx.ExecContext(ctx, "UPDATE "+deliveryTable+" SET "+set+", started = 0, locked_by = NULL, lock_version = lock_version + 1"+
		", updated_at = "+p.d.Now+" WHERE event_id = ? AND consumer_name IN (?)", append(slices.Clone(values), eventID, bun.List(changed))...)
	return changed, err
}

// TakesType reports whether any instance takes an event type for a consumer, by primary key.
func (p Operations) TakesType(ctx context.Context, idb bun.IDB, key, eventType string) (bool, error) {
	var n int
	err := idb.QueryRowContext(ctx, "SELECT COUNT(*) FROM bc_consumer_type WHERE consumer_name = ? AND event_type = ?",
		key, eventType).Scan(&n)
	return n > 0, err
}

// IsRunning reports whether a delivery of an event is leased, by uk_event_consumer.
func (p Operations) IsRunning(ctx context.Context, idb bun.IDB, eventID string) (bool, error) {
	var n int
	err := idb.QueryRowContext(ctx, "SELECT COUNT(CASE WHEN status = 'PROCESSING' THEN 1 END) FROM "+deliveryTable+" WHERE event_id = ?",
		eventID).Scan(&n)
	if err != nil {
		return false, fmt.Errorf("look for deliveries that run: %w", err)
	}
	return n > 0, nil
}

// AddSkipped gives the delivery of an event a row, SKIPPED, if it has none, by primary key. The name is the key of a consumer, or
// that of its replays.
func (p Operations) AddSkipped(ctx context.Context, tx bun.IDB, id int64, name string) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO "+deliveryTable+
		" (tenant_id, consumer_name, event_id, event_type, status, outbox_id, aggregate_type, aggregate_id, next_retry_at) "+
		"SELECT tenant_id, ?, event_id, event_type, 'SKIPPED', id, aggregate_type, aggregate_id, NULL"+
		" FROM "+eventTable+" WHERE id = ?"+p.unlessThere(), name, id)
	return err
}

// SkipRegistered gives each consumer that takes the type of an event a SKIPPED delivery, unless it has one, by primary key, and tells
// whether it gave any.
func (p Operations) SkipRegistered(ctx context.Context, tx bun.IDB, id int64, why string) (did bool, err error) {
	did, err = hasChanged(tx.ExecContext(ctx, "INSERT INTO "+deliveryTable+
		" (tenant_id, consumer_name, event_id, event_type, status, outbox_id, aggregate_type, aggregate_id, error_message) "+
		"SELECT e.tenant_id, t.consumer_name, e.event_id, e.event_type, 'SKIPPED', e.id, e.aggregate_type, e.aggregate_id, ?"+
		" FROM "+eventTable+" e JOIN bc_consumer_type t ON t.event_type = e.event_type WHERE e.id = ?"+p.unlessThere(), why, id))
	if err != nil {
		return false, fmt.Errorf("skip deliveries: %w", err)
	}
	return did, nil
}

// unlessThere ends an INSERT of deliveries from a SELECT that leaves those alone that exist.
func (p Operations) unlessThere() string {
	if p.d.Name == "mysql" {
		return " ON DUPLICATE KEY UPDATE " + deliveryTable + ".consumer_name = " + deliveryTable + ".consumer_name"
	}
	return p.d.Ignore("consumer_name,event_id")
}
