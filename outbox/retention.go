package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
	rows, err := o.db.QueryContext(ctx, "SELECT id, event_id, lock_version, CASE WHEN created_at >= "+o.d.After+" THEN 2 WHEN status = 'SENT' AND COALESCE(sent_at, created_at) < "+o.d.After+" THEN 1 ELSE 0 END FROM "+table+
		" WHERE id > ? ORDER BY id LIMIT ?", -dialect.Micro(r.cfg.Keep), -dialect.Micro(r.cfg.Keep), after, r.cfg.Batch)
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

// remove deletes, or archives, events with their deliveries and attempts, all by primary key.
func (r *Retention) remove(ctx context.Context, tx bun.Tx, events []expiredEvent) error {
	ids, pairs := make([]string, len(events)), make([]dialect.Pair, len(events))
	for i, e := range events {
		ids[i], pairs[i] = e.eventID, e.pair
	}
	for _, t := range []struct{ name, archived string }{{"bc_delivery_attempt", ""}, {"bc_event_consume_log", archivedDelivery}} {
		rows, err := r.pairs(ctx, tx, t.name, ids)
		if err != nil {
			return err
		}
		if err := r.move(ctx, tx, t.name, t.archived, rows); err != nil {
			return err
		}
	}
	return r.move(ctx, tx, table, archivedEvent, pairs)
}

// pairs reads the primary keys of the events' rows in another table.
func (r *Retention) pairs(ctx context.Context, tx bun.Tx, from string, eventIDs []string) ([]dialect.Pair, error) {
	rows, err := tx.QueryContext(ctx, "SELECT id FROM "+from+" WHERE event_id IN (?) ORDER BY id", bun.List(eventIDs))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", from, err)
	}
	defer rows.Close()
	var pairs []dialect.Pair
	for rows.Next() {
		var p dialect.Pair
		if err := rows.Scan(&p.ID); err != nil {
			return nil, fmt.Errorf("read %s: %w", from, err)
		}
		pairs = append(pairs, p)
	}
	return pairs, rows.Err()
}

// move removes rows, after copying them to the archive if they have one and it is wanted.
func (r *Retention) move(ctx context.Context, tx bun.Tx, from, archived string, rows []dialect.Pair) error {
	if len(rows) == 0 {
		return nil
	}
	named := r.ob.d.Pairs(rows)
	if archived != "" && r.cfg.Archive {
		columns := "e." + strings.ReplaceAll(archived, ", ", ", e.")
		if _, err := tx.ExecContext(ctx, "INSERT INTO "+from+"_archive ("+archived+") SELECT "+columns+" FROM "+named+" JOIN "+from+" e ON e.id = t.id"); err != nil {
			return fmt.Errorf("archive %s: %w", from, err)
		}
	}
	del := "DELETE FROM " + from + " WHERE id IN (SELECT t.id FROM " + named + ")"
	if r.ob.d.Name == "mysql" {
		del = "DELETE e FROM " + named + " STRAIGHT_JOIN " + from + " e ON e.id = t.id"
	}
	if _, err := tx.ExecContext(ctx, del); err != nil {
		return fmt.Errorf("remove from %s: %w", from, err)
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
