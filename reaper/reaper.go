// Package reaper releases business locks that have outlived their time to live: a frozen
// balance, a locked coupon, a reserved seat.
//
// # Contract
//
// Age alone never releases a lock. A lock belongs to an aggregate, such as an order, and to a
// consumer, whose deliveries make and settle it. The reaper leaves it alone while an event of the
// aggregate is not fanned out yet, or the consumer's delivery of one is unfinished: a paid order in
// backoff keeps its freeze. So is a past event that a backfill still has to give to the consumer.
// What other consumers have not done does not matter. A DEAD delivery does not hold a lock for ever:
// after a second, longer limit the lock is reported and, if the task says so, released.
//
// A lock is released in one transaction. First the [Owner] locks the aggregate's row and says whether
// the lock may go. Then the reaper asks about events: whoever saves an event of the aggregate holds the
// same row lock, so none can commit until the release has. Then the task gives the lock back by a guarded
// update ("WHERE status = 'FROZEN'"), which counts only if it changed exactly one row.
//
// Errors are never swallowed, and one bad lock, or one for which a task panics, does not keep the
// others from being released. Every release leaves a row in the audit log, in the same transaction. The job runs once in the whole
// deployment.
//
// The package imports nothing of the outbox: whoever can answer [Events] will do.
package reaper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"time"

	"github.com/uptrace/bun"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/schedule"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// JobCode is the durable name of the reaper's job.
const JobCode = "lock_timeout_reaper"

// Events answers how many events of an aggregate (tenant 0 for none) are unfinished for a consumer, and how many
// deliveries of them to it wait for an operator. *outbox.Outbox does.
type Events interface {
	OpenEvents(ctx context.Context, idb bun.IDB, tenantID int64, aggregateType, aggregateID, consumer string) (waiting, dead int, err error)
}

// Config configures a [Reaper]. The zero value works.
type Config struct {
	// Cron is when it looks (bluecone.scheduler.lock-timeout-reaper-cron).
	// Default: "0 */5 * * * ?", every 5 min.
	Cron string
	// LockTimeout is the time to live of a lock whose task does not say
	// (bluecone.asset.lock-timeout-minutes). Default: 30 min.
	LockTimeout time.Duration
	// DeadTimeout is after how long a lock that only DEAD deliveries hold is reported. Default: 24 h.
	DeadTimeout time.Duration
	// Batch is how many locks are looked at in one query. Default: 100.
	Batch int
	// Timeout ends one run. Default: 5 min.
	Timeout time.Duration
	// Instance names this process in leases and in the history, at most 64 bytes.
	// Default: host name, process id and a random part.
	Instance string
	// Logger receives one line per released lock. Default: slog.Default().
	Logger *slog.Logger
	// TracerProvider makes the job's spans. Default: the global provider.
	TracerProvider trace.TracerProvider
	// MeterProvider makes the instruments. Default: the global provider.
	MeterProvider metric.MeterProvider
}

func (c Config) withDefaults() Config {
	if c.Cron == "" {
		c.Cron = "0 */5 * * * ?"
	}
	if c.Batch == 0 {
		c.Batch = 100
	}
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{{&c.LockTimeout, 30 * time.Minute}, {&c.DeadTimeout, 24 * time.Hour}, {&c.Timeout, 5 * time.Minute}} {
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.Cron != "" {
		if _, err := schedule.Parse(c.Cron); err != nil {
			errs = append(errs, fmt.Errorf("reaper.Config.Cron: %w", err))
		}
	}
	if len(c.Instance) > 64 {
		errs = append(errs, fmt.Errorf("reaper.Config.Instance %q has %d bytes: the limit is 64", c.Instance, len(c.Instance)))
	}
	if c.Batch < 0 {
		errs = append(errs, fmt.Errorf("reaper.Config.Batch is %d: it must not be negative", c.Batch))
	}
	for name, d := range map[string]time.Duration{"LockTimeout": c.LockTimeout, "DeadTimeout": c.DeadTimeout, "Timeout": c.Timeout} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("reaper.Config.%s is %v: it must not be negative", name, d))
		}
	}
	return errors.Join(errs...)
}

// Reaper runs its tasks when they are due.
type Reaper struct {
	db       *bun.DB
	d        dialect.Dialect
	events   Events
	cfg      Config
	tasks    []Task
	jobs     *schedule.Runner
	released metric.Int64Counter
}

// New returns a reaper of the tasks' locks. All mistakes are reported at once.
func New(db *bun.DB, events Events, cfg Config, tasks ...Task) (*Reaper, error) {
	err := cfg.validate()
	if db == nil {
		err = errors.Join(fmt.Errorf("reaper.New: %w", dialect.ErrNil), err)
	}
	if v := reflect.ValueOf(events); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		err = errors.Join(err, errors.New("reaper.New: events is nil: give it the outbox, of outbox.New(db, outbox.Config{})"))
	}
	seen := make(map[string]bool)
	for _, t := range tasks {
		err = errors.Join(err, t.validate())
		if seen[t.Name] {
			err = errors.Join(err, fmt.Errorf("reaper: two tasks have the name %q", t.Name))
		}
		seen[t.Name] = true
	}
	err = errors.Join(err, validateOwners(tasks))
	if err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	r := &Reaper{db: db, events: events, cfg: cfg, tasks: tasks}
	if r.d, err = dialect.Of(db); err != nil {
		return nil, err
	}
	if r.released, err = telemetry.Counter(cfg.MeterProvider, "reaper.lock.released",
		"Business locks released because they had outlived their time to live."); err != nil {
		return nil, err
	}
	spec, err := schedule.Parse(cfg.Cron)
	if err != nil {
		return nil, err
	}
	r.jobs, err = schedule.New(db, schedule.Config{
		Instance: cfg.Instance, Logger: cfg.Logger, TracerProvider: cfg.TracerProvider, MeterProvider: cfg.MeterProvider,
	},
		schedule.Job{Code: JobCode, Spec: spec, Timeout: cfg.Timeout, Run: func(ctx context.Context) (schedule.Counts, error) {
			report, err := r.reap(ctx)
			return report.counts(), err
		}})
	return r, err
}

// Run looks for expired locks whenever the job is due, until ctx ends.
func (r *Reaper) Run(ctx context.Context) error {
	for _, t := range r.tasks {
		telemetry.Zero(ctx, []string{"task", t.Name}, r.released)
	}
	return r.jobs.Run(ctx)
}

// Schedule is the durable code of the job and its cron expression.
func (r *Reaper) Schedule() (code, cron string) { return JobCode, r.cfg.Cron }

// RunNow looks at once and tells what it did, by name.
func (r *Reaper) RunNow(ctx context.Context) (counts map[string]int64, err error) {
	rep, err := r.jobs.RunNow(ctx, JobCode)
	return rep.Counts, err
}

// RunOnce looks at once. It answers schedule.ErrBusy while the job is at work already.
func (r *Reaper) RunOnce(ctx context.Context) (Report, error) {
	rep, err := r.jobs.RunNow(ctx, JobCode)
	return reportOf(rep.Counts), err
}
