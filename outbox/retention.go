package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/schedule"
)

// RetentionJob is the durable name of the retention's job.
const RetentionJob = "outbox_retention"

// RetentionConfig configures a [Retention]. The zero value works.
type RetentionConfig struct {
	// Keep is how long delivered events and their consume log rows are kept. For as long
	// a repeated event is recognised. Negative keeps them for ever. Default: 7 days.
	Keep time.Duration
	// Archive moves them to the _archive tables instead of deleting them. Default: false.
	Archive bool
	// Batch is how many events go in one transaction. Default: 500.
	Batch int
	// Cron is when it runs. Default: "0 */10 * * * ?", every 10 min.
	Cron string
	// Timeout ends one run; the next goes on where it stopped. Default: 5 min.
	Timeout time.Duration
}

func (c RetentionConfig) withDefaults() RetentionConfig {
	if c.Keep == 0 {
		c.Keep = 7 * 24 * time.Hour
	}
	if c.Batch == 0 {
		c.Batch = 500
	}
	if c.Cron == "" {
		c.Cron = "0 */10 * * * ?"
	}
	if c.Timeout == 0 {
		c.Timeout = 5 * time.Minute
	}
	return c
}

func (c RetentionConfig) validate() error {
	var errs []error
	if c.Batch < 0 || c.Batch > 1000 {
		errs = append(errs, fmt.Errorf("outbox.RetentionConfig.Batch is %d: it must be between 1 and 1000 (0 means 500)", c.Batch))
	}
	if c.Timeout < 0 {
		errs = append(errs, fmt.Errorf("outbox.RetentionConfig.Timeout is %v: it must not be negative", c.Timeout))
	}
	if c.Keep > 0 && c.Keep < time.Minute {
		errs = append(errs, fmt.Errorf("outbox.RetentionConfig.Keep is %v: less than a minute would forget events that may still be repeated", c.Keep))
	}
	if c.Cron != "" {
		if _, err := schedule.Parse(c.Cron); err != nil {
			errs = append(errs, fmt.Errorf("outbox.RetentionConfig.Cron: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Retention removes delivered events that are old enough. Events that are not SENT, the
// DEAD ones above all, stay until somebody decides.
type Retention struct {
	ob   *Outbox
	cfg  RetentionConfig
	jobs *schedule.Runner
}

// NewRetention returns the retention of ob. All mistakes in cfg are reported at once.
func NewRetention(ob *Outbox, cfg RetentionConfig) (*Retention, error) {
	if ob == nil {
		return nil, errors.New("outbox.NewRetention: the outbox is nil")
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	r := &Retention{ob: ob, cfg: cfg.withDefaults()}
	spec, err := schedule.Parse(r.cfg.Cron)
	if err != nil {
		return nil, err
	}
	r.jobs, err = schedule.New(ob.db, schedule.Config{Instance: ob.cfg.Instance, Logger: ob.logger, TracerProvider: ob.cfg.TracerProvider},
		schedule.Job{Code: RetentionJob, Spec: spec, Timeout: r.cfg.Timeout, Run: r.clean})
	return r, err
}

// Run cleans up whenever the job is due, until ctx ends.
func (r *Retention) Run(ctx context.Context) error { return r.jobs.Run(ctx) }

// RunOnce cleans up at once and tells how many events went. It answers an error while
// another instance is at it.
func (r *Retention) RunOnce(ctx context.Context) (removed int64, err error) {
	rep, err := r.jobs.RunNow(ctx, RetentionJob)
	return rep.Counts["removed"], err
}

// clean removes in small transactions by primary key, which never make a claim wait.
func (r *Retention) clean(ctx context.Context) (schedule.Counts, error) {
	counts := schedule.Counts{"removed": 0}
	if r.cfg.Keep < 0 {
		return counts, nil
	}
	var after int64
	for ctx.Err() == nil {
		events, last, err := r.expired(ctx, after)
		if err != nil {
			return counts, err
		}
		if len(events) > 0 {
			if err := r.ob.inTx(ctx, func(ctx context.Context, tx bun.Tx) error { return r.remove(ctx, tx, events) }); err != nil {
				return counts, fmt.Errorf("outbox: retention: %w", err)
			}
		}
		counts["removed"] += int64(len(events))
		if last == after {
			return counts, nil
		}
		after = last
	}
	return counts, context.Cause(ctx)
}

type expiredEvent struct {
	pair    dialect.Pair
	eventID string
}

// expired reads a page of the oldest events, and those of them that may go. It walks the
// primary key and ends at the first event that is too young, whatever its state.
func (r *Retention) expired(ctx context.Context, after int64) (events []expiredEvent, last int64, err error) {
	o := r.ob
	rows, err := o.db.QueryContext(ctx, "SELECT id, event_id, lock_version, CASE WHEN status = 'SENT' AND COALESCE(sent_at, created_at) < "+o.d.After+" THEN 1 ELSE 0 END FROM "+table+
		" WHERE id > ? AND created_at < "+o.d.After+" ORDER BY id LIMIT ?", -dialect.Micro(r.cfg.Keep), after, -dialect.Micro(r.cfg.Keep), r.cfg.Batch)
	if err != nil {
		return nil, after, fmt.Errorf("outbox: retention: %w", err)
	}
	defer rows.Close() //nolint:errcheck // read only
	last = after
	for rows.Next() {
		var e expiredEvent
		var old int
		if err := rows.Scan(&e.pair.ID, &e.eventID, &e.pair.Version, &old); err != nil {
			return nil, after, fmt.Errorf("outbox: retention: %w", err)
		}
		last = e.pair.ID
		if old == 1 {
			events = append(events, e)
		}
	}
	return events, last, rows.Err()
}

// remove deletes, or archives, events with their deliveries and attempts.
func (r *Retention) remove(ctx context.Context, tx bun.Tx, events []expiredEvent) error {
	ids, pairs := make([]string, len(events)), make([]dialect.Pair, len(events))
	for i, e := range events {
		ids[i], pairs[i] = e.eventID, e.pair
	}
	var outboxIDs []int64
	for _, p := range pairs {
		outboxIDs = append(outboxIDs, p.ID)
	}
	if r.cfg.Archive {
		for _, t := range []struct{ table, columns, key string }{{table, archivedEvent, "id"}, {"bc_event_consume_log", archivedDelivery, "event_id"}} {
			args := any(bun.List(outboxIDs))
			if t.key == "event_id" {
				args = bun.List(ids)
			}
			_, err := tx.ExecContext(ctx, "INSERT INTO "+t.table+"_archive ("+t.columns+") SELECT "+t.columns+" FROM "+t.table+" WHERE "+t.key+" IN (?)", args)
			if err != nil {
				return fmt.Errorf("archive %s: %w", t.table, err)
			}
		}
	}
	for _, stmt := range []string{"DELETE FROM bc_delivery_attempt WHERE event_id IN (?)", "DELETE FROM bc_event_consume_log WHERE event_id IN (?)"} {
		if _, err := tx.ExecContext(ctx, stmt, bun.List(ids)); err != nil {
			return fmt.Errorf("remove deliveries: %w", err)
		}
	}
	del := "DELETE FROM " + table + " WHERE id IN (SELECT t.id FROM " + r.ob.d.Pairs(pairs) + ")"
	if r.ob.d.Name == "mysql" {
		del = "DELETE e FROM " + r.ob.d.Pairs(pairs) + " STRAIGHT_JOIN " + table + " e ON e.id = t.id"
	}
	if _, err := tx.ExecContext(ctx, del); err != nil {
		return fmt.Errorf("remove events: %w", err)
	}
	return nil
}

// The columns that the archive shares with the tables.
const (
	archivedEvent = "id, tenant_id, store_id, aggregate_type, aggregate_id, event_type, event_id, event_payload, event_metadata, schema_version, status, " +
		"retry_count, max_retry_count, next_retry_at, locked_by, lock_version, last_error, created_at, updated_at, sent_at"
	archivedDelivery = "id, tenant_id, consumer_name, event_id, event_type, status, idempotency_key, consume_result, error_message, outbox_id, aggregate_type, " +
		"aggregate_id, attempts, next_retry_at, locked_by, lock_version, consumed_at, created_at, updated_at"
)
