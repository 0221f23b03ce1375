package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/schedule"
	"github.com/bluecone-go/bluecone/internal/store"
)

// RetentionJob is the durable name of the retention's job.
const RetentionJob = "outbox_retention"

// RetentionConfig configures a [Retention]. The zero value works.
type RetentionConfig struct {
	// Keep is how long delivered events and their consume log rows are kept. For as long
	// a repeated event is recognised by them. It must be longer than any process may be frozen: one that
	// wakes up later finds its event gone, and says so by a DEAD delivery. At least a minute;
	// negative keeps them for ever. Default: 7 days.
	Keep time.Duration
	// KeepKeys is how long the ids of keyed events (bus.Keyed), and of what an inbox or the ledger has saved under a given id, are
	// kept after their events have been removed. For as long saving such an event again is a no-op. At least Keep, as long as that is
	// positive; negative keeps them for ever. Default: 90 days, or Keep if that is longer.
	KeepKeys time.Duration
	// Archive moves them to the _archive tables instead of deleting them. Default: false.
	Archive bool
	// KeepAudit is how long rows of the audit log are kept: what operators did, and why. At least a
	// day, because bulk operations look there for what they have done; negative keeps them for
	// ever. Default: 365 days.
	KeepAudit time.Duration
	// Batch is how many events go in one transaction, at most 1000. Default: 500.
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
	if c.KeepKeys == 0 {
		c.KeepKeys = max(90*24*time.Hour, c.Keep)
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
		errs = append(errs, fmt.Errorf("outbox.RetentionConfig.Keep is %v: less than a minute would forget events that may still be "+
			"repeated", c.Keep))
	}
	if keep := c.withDefaults().Keep; c.KeepKeys > 0 && c.KeepKeys < keep {
		errs = append(errs, fmt.Errorf("outbox.RetentionConfig.KeepKeys is %v: it must not be shorter than Keep, which is %v, for who "+
			"repeats an event while it is kept may do so later", c.KeepKeys, keep))
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

// Retention removes delivered events that are old enough, and what the audit log and the keys of removed events have been
// kept for long enough. Events that are not SENT, the DEAD ones above all, stay until somebody decides. Nothing else ever
// deletes rows of the consume log.
type Retention struct {
	ob   *Outbox
	cfg  RetentionConfig
	rows store.Removal
	jobs *schedule.Runner
}

// NewRetention returns a retention of ob for a program that wants to run it by itself. [Publisher.Run] removes what is old
// without it; once there is one, the publishers of ob leave it to that. All mistakes in cfg are reported at once.
func NewRetention(ob *Outbox, cfg RetentionConfig) (*Retention, error) {
	if ob == nil {
		return nil, errors.New("outbox.NewRetention: the outbox is nil: make it by outbox.New(db, outbox.Config{})")
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	r, err := newRetention(ob, cfg)
	if err == nil {
		ob.here.ownRetention()
	}
	return r, err
}

// newRetention is [NewRetention] of a configuration that is valid.
func newRetention(ob *Outbox, cfg RetentionConfig) (*Retention, error) {
	r := &Retention{ob: ob, cfg: cfg.withDefaults(), rows: store.NewRemoval(ob.d)}
	spec, err := schedule.Parse(r.cfg.Cron)
	if err != nil {
		return nil, err
	}
	r.jobs, err = schedule.New(ob.db, schedule.Config{
		Instance: ob.cfg.Instance, Logger: ob.logger, TracerProvider: ob.cfg.TracerProvider, MeterProvider: ob.cfg.MeterProvider,
	},
		schedule.Job{Code: RetentionJob, Spec: spec, Timeout: r.cfg.Timeout, Run: r.clean})
	return r, err
}

// Run cleans up whenever the job is due, until ctx ends, and always returns nil: a run that fails is logged, and its job is
// tried again at its next turn.
func (r *Retention) Run(ctx context.Context) error { return r.jobs.Run(ctx) }

// Schedule is the durable code of the job and its cron expression.
func (r *Retention) Schedule() (code, cron string) { return RetentionJob, r.cfg.Cron }

// RunNow cleans up at once and tells what it did, by name; with an error, what it had done until then. The error is
// schedule.ErrBusy while the job is at work already, that of ctx or of RetentionConfig.Timeout, or that of the database.
func (r *Retention) RunNow(ctx context.Context) (counts map[string]int64, err error) {
	rep, err := r.jobs.RunNow(ctx, RetentionJob)
	return rep.Counts, err
}

// RunOnce is [Retention.RunNow], and tells only how many events went.
func (r *Retention) RunOnce(ctx context.Context) (removed int64, err error) {
	rep, err := r.jobs.RunNow(ctx, RetentionJob)
	return rep.Counts["removed"], err
}

// clean removes in small transactions by primary key, which never make a claim wait.
func (r *Retention) clean(ctx context.Context) (schedule.Counts, error) {
	counts := schedule.Counts{"removed": 0, "audit": 0, "keys": 0}
	if r.cfg.KeepAudit > 0 {
		if err := r.forget(ctx, counts); err != nil {
			return counts, err
		}
	}
	if r.cfg.KeepKeys > 0 {
		if err := r.forgetKeys(ctx, counts); err != nil {
			return counts, err
		}
	}
	if r.cfg.Keep < 0 {
		return counts, nil
	}
	err := r.walk(ctx, r.rows.Sent, r.rows.LockSent, counts)
	if err == nil && r.ob.cfg.DeleteSent {
		err = r.walk(ctx, r.rows.Traces, r.rows.LockTraces, counts)
	}
	return counts, err
}

// forget removes what the audit log has kept for long enough, the oldest first.
func (r *Retention) forget(ctx context.Context, counts schedule.Counts) error {
	for ctx.Err() == nil {
		n, err := r.rows.ForgetAudit(ctx, r.ob.db, r.cfg.KeepAudit, r.cfg.Batch)
		if err != nil {
			return fmt.Errorf("outbox: retention of the audit log: %w", err)
		}
		if counts["audit"] += int64(n); n < r.cfg.Batch {
			return nil
		}
	}
	return context.Cause(ctx)
}

// forgetKeys removes the keys of events that went long enough ago, the oldest first.
func (r *Retention) forgetKeys(ctx context.Context, counts schedule.Counts) error {
	for ctx.Err() == nil {
		n, err := r.ob.keys.Forget(ctx, r.ob.db, dialect.Micro(r.cfg.KeepKeys), r.cfg.Batch)
		if err != nil {
			return fmt.Errorf("outbox: retention of the keys: %w", err)
		}
		if counts["keys"] += int64(n); n < r.cfg.Batch {
			return nil
		}
	}
	return context.Cause(ctx)
}

type (
	// pageOf finds a page of what may go, without any lock, and tells where it ends.
	pageOf func(ctx context.Context, idb bun.IDB, p store.Page) (events []store.OldEvent, last int64, err error)
	// lockOf locks a page, and keeps those that may still go. Their deliveries may be deleted under that lock.
	lockOf func(ctx context.Context, tx bun.Tx, events []store.OldEvent) ([]store.OldEvent, error)
)

// walk removes page by page.
func (r *Retention) walk(ctx context.Context, find pageOf, lock lockOf, counts schedule.Counts) error {
	var after int64
	for ctx.Err() == nil {
		events, last, err := find(ctx, r.ob.db, store.Page{After: after, Keep: r.cfg.Keep, Limit: r.cfg.Batch})
		if err != nil {
			return fmt.Errorf("outbox: retention: %w", err)
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
// again since the page was read stays, with all of its deliveries. A replay that comes later finds the event gone.
func (r *Retention) removeAll(ctx context.Context, events []store.OldEvent, lock lockOf, counts schedule.Counts) error {
	if len(events) == 0 {
		return nil
	}
	err := r.ob.keys.Mark(ctx, r.ob.db, store.OldEventIDs(events))
	if err == nil {
		err = r.ob.inTx(ctx, func(ctx context.Context, tx bun.Tx) (err error) {
			if events, err = lock(ctx, tx, events); err != nil || len(events) == 0 {
				return err
			}
			return r.rows.Remove(ctx, tx, events, r.cfg.Archive)
		})
	}
	if err != nil {
		return fmt.Errorf("outbox: retention: %w", err)
	}
	counts["removed"] += int64(len(events))
	return nil
}
