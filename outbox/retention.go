package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/schedule"
)

const auditTable = "bc_audit_log"

// RetentionJob is the durable name of the retention's job.
const RetentionJob = "outbox_retention"

// RetentionConfig configures a [Retention]. The zero value works.
type RetentionConfig struct {
	// Keep is how long delivered events and their consume log rows are kept. For as long
	// a repeated event is recognised. It must be longer than any process may be frozen: one that
	// wakes up later finds its event gone, and says so by a DEAD delivery. At least a minute;
	// negative keeps them for ever. Default: 7 days.
	Keep time.Duration
	// Archive moves them to the _archive tables instead of deleting them. Default: false.
	Archive bool
	// KeepAudit is how long rows of the audit log are kept: what operators did, and why. At least a
	// day, because bulk operations look there for what they have done; negative keeps them for
	// ever. Default: 365 days.
	KeepAudit time.Duration
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
	if c.KeepAudit == 0 {
		c.KeepAudit = 365 * 24 * time.Hour
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
	if c.KeepAudit > 0 && c.KeepAudit < 24*time.Hour {
		errs = append(errs, fmt.Errorf("outbox.RetentionConfig.KeepAudit is %v: bulk operations need the last day", c.KeepAudit))
	}
	if c.Cron != "" {
		if _, err := schedule.Parse(c.Cron); err != nil {
			errs = append(errs, fmt.Errorf("outbox.RetentionConfig.Cron: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Retention removes delivered events that are old enough, and what the audit log has kept for long enough. Events that are not SENT, the
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
	r.jobs, err = schedule.New(ob.db, schedule.Config{Instance: ob.cfg.Instance, Logger: ob.logger, TracerProvider: ob.cfg.TracerProvider, MeterProvider: ob.cfg.MeterProvider},
		schedule.Job{Code: RetentionJob, Spec: spec, Timeout: r.cfg.Timeout, Run: r.clean})
	return r, err
}

// Run cleans up whenever the job is due, until ctx ends.
func (r *Retention) Run(ctx context.Context) error { return r.jobs.Run(ctx) }

// Schedule is the durable code of the job and its cron expression.
func (r *Retention) Schedule() (code, cron string) { return RetentionJob, r.cfg.Cron }

// RunNow cleans up at once and tells what it did, by name.
func (r *Retention) RunNow(ctx context.Context) (counts map[string]int64, err error) {
	rep, err := r.jobs.RunNow(ctx, RetentionJob)
	return rep.Counts, err
}

// ErrRetentionBusy means that the job is at work already, here or in another instance.
var ErrRetentionBusy = schedule.ErrBusy

// RunOnce cleans up at once and tells how many events went. It answers [ErrRetentionBusy] while
// the job is at work already.
func (r *Retention) RunOnce(ctx context.Context) (removed int64, err error) {
	rep, err := r.jobs.RunNow(ctx, RetentionJob)
	return rep.Counts["removed"], err
}

// clean removes in small transactions by primary key, which never make a claim wait.
func (r *Retention) clean(ctx context.Context) (schedule.Counts, error) {
	counts := schedule.Counts{"removed": 0, "audit": 0}
	if r.cfg.KeepAudit > 0 {
		if err := r.forget(ctx, counts); err != nil {
			return counts, err
		}
	}
	if r.cfg.Keep < 0 {
		return counts, nil
	}
	err := r.walk(ctx, r.expired, counts)
	if err == nil && r.ob.cfg.DeleteSent {
		err = r.walk(ctx, r.traces, counts)
	}
	return counts, err
}

// forget removes what the audit log has kept for long enough, the oldest first.
func (r *Retention) forget(ctx context.Context, counts schedule.Counts) error {
	for ctx.Err() == nil {
		rows, err := r.pairs(ctx, r.ob.db, "SELECT id FROM "+auditTable+" WHERE created_at < "+r.ob.d.After+" ORDER BY created_at, id LIMIT ?", -dialect.Micro(r.cfg.KeepAudit), r.cfg.Batch)
		if err == nil && len(rows) > 0 {
			_, err = r.ob.db.ExecContext(ctx, r.ob.d.DeleteIDs(auditTable, rows, "1 = 1"))
		}
		if err != nil {
			return fmt.Errorf("outbox: retention of the audit log: %w", err)
		}
		if counts["audit"] += int64(len(rows)); len(rows) < r.cfg.Batch {
			return nil
		}
	}
	return context.Cause(ctx)
}

// walk removes what a page finder finds, page by page.
func (r *Retention) walk(ctx context.Context, find func(ctx context.Context, after int64) ([]expiredEvent, int64, error), counts schedule.Counts) error {
	var after int64
	for ctx.Err() == nil {
		events, last, err := find(ctx, after)
		if err != nil {
			return err
		}
		if err := r.removeAll(ctx, events, counts); err != nil {
			return err
		}
		if last == after {
			return nil
		}
		after = last
	}
	return context.Cause(ctx)
}

func (r *Retention) removeAll(ctx context.Context, events []expiredEvent, counts schedule.Counts) error {
	if len(events) == 0 {
		return nil
	}
	if err := r.ob.inTx(ctx, func(ctx context.Context, tx bun.Tx) error { return r.remove(ctx, tx, events) }); err != nil {
		return fmt.Errorf("outbox: retention: %w", err)
	}
	counts["removed"] += int64(len(events))
	return nil
}

type expiredEvent struct {
	pair    dialect.Pair // no id: the event's row has gone before
	eventID string
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

// remove deletes, or archives, events with their deliveries and attempts, all by primary key.
func (r *Retention) remove(ctx context.Context, tx bun.Tx, events []expiredEvent) error {
	ids, pairs := make([]string, len(events)), make([]dialect.Pair, 0, len(events))
	for i, e := range events {
		ids[i] = e.eventID
		if e.pair.ID != 0 {
			pairs = append(pairs, e.pair)
		}
	}
	for _, t := range []struct{ name, archived string }{{"bc_delivery_attempt", ""}, {"bc_event_consume_log", archivedDelivery}} {
		rows, err := r.pairs(ctx, tx, "SELECT id FROM "+t.name+" WHERE event_id IN (?) ORDER BY id", bun.List(ids))
		if err != nil {
			return fmt.Errorf("read %s: %w", t.name, err)
		}
		if err := r.move(ctx, tx, t.name, t.archived, rows); err != nil {
			return err
		}
	}
	return r.move(ctx, tx, table, archivedEvent, pairs)
}

// pairs reads primary keys.
func (*Retention) pairs(ctx context.Context, idb bun.IDB, query string, args ...any) ([]dialect.Pair, error) {
	rows, err := idb.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var pairs []dialect.Pair
	for rows.Next() {
		var p dialect.Pair
		if err := rows.Scan(&p.ID); err != nil {
			return nil, err
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
		"retry_count, max_retry_count, next_retry_at, locked_by, lock_version, last_error, created_at, updated_at, sent_at, trace_id"
	archivedDelivery = "id, tenant_id, consumer_name, event_id, event_type, status, idempotency_key, consume_result, error_message, outbox_id, aggregate_type, " +
		"aggregate_id, attempts, next_retry_at, locked_by, lock_version, consumed_at, created_at, updated_at, started, first_run_at"
)
