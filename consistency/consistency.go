// Package consistency finds facts that lost their event, and saves it.
//
// # Contract
//
// A [Check] declares "state S implies event E": it finds the facts of its window whose
// event is missing, builds the full event from the business rows, and saves it under its
// deterministic id. One fact whose repair fails, or panics, does not keep the others from theirs.
// A repair that is repeated, or that races with the late original, saves nothing twice, and consumers
// recognise the event whichever way it came. It leaves a row in the audit log, in the same transaction.
//
// Facts younger than the grace time are left alone: their transaction may still be open.
// When a run has repaired as many as it may, by all its checks together, it stops and raises an alert: so many
// missing events are a fault that repairs would only hide. The job runs once in the whole
// deployment.
package consistency

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/uptrace/bun"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/bluecone-go/bluecone/internal/contain"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/schedule"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/text"
)

// JobCode is the durable name of the consistency job.
const JobCode = "order_asset_consistency"

// ErrTooManyRepairs means that a run stopped at Config.MaxRepairs. The checks that were to follow did not run.
var ErrTooManyRepairs = errors.New("the limit of repairs per run is reached: find out why so many events are missing, " +
	"then run the check again")

// Config configures a [Consistency]. The zero value works.
type Config struct {
	// Cron is when the checks run (bluecone.scheduler.consistency-check-cron).
	// Default: "0 0 */2 * * ?", every 2 h.
	Cron string
	// ScanWindow is how far back a check looks that does not say
	// (bluecone.consistency.scan-window-hours). Default: 24 h.
	ScanWindow time.Duration
	// Grace is how young a fact may be without its event: longer than the longest
	// business transaction. Default: 5 min.
	Grace time.Duration
	// Retention is how long the outbox keeps delivered events. A longer window would find
	// events missing that were merely cleaned up, and is an error. Default: 0, not checked.
	Retention time.Duration
	// MaxRepairs is after how many repairs, by all its checks together, a run stops and raises an alert. Default: 100.
	MaxRepairs int
	// Batch is how many facts are read in one query. Default: 200.
	Batch int
	// ReportOnly finds and reports, and repairs nothing. Default: false.
	ReportOnly bool
	// Timeout ends one run. Default: 30 min.
	Timeout time.Duration
	// Instance names this process in leases and in the history, at most 64 bytes.
	// Default: host name, process id and a random part.
	Instance string
	// Logger receives one line per repair. Default: slog.Default().
	Logger *slog.Logger
	// TracerProvider makes the job's spans. Default: the global provider.
	TracerProvider trace.TracerProvider
	// MeterProvider makes the instruments. Default: the global provider.
	MeterProvider metric.MeterProvider
}

func (c Config) withDefaults() Config {
	if c.Cron == "" {
		c.Cron = "0 0 */2 * * ?"
	}
	if c.MaxRepairs == 0 {
		c.MaxRepairs = 100
	}
	if c.Batch == 0 {
		c.Batch = 200
	}
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{{&c.ScanWindow, 24 * time.Hour}, {&c.Grace, 5 * time.Minute}, {&c.Timeout, 30 * time.Minute}} {
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
			errs = append(errs, fmt.Errorf("consistency.Config.Cron: %w", err))
		}
	}
	if len(c.Instance) > 64 {
		errs = append(errs, fmt.Errorf("consistency.Config.Instance %q has %d bytes: the limit is 64", c.Instance, len(c.Instance)))
	}
	for name, n := range map[string]int{"MaxRepairs": c.MaxRepairs, "Batch": c.Batch} {
		if n < 0 {
			errs = append(errs, fmt.Errorf("consistency.Config.%s is %d: it must not be negative", name, n))
		}
	}
	for name, d := range map[string]time.Duration{
		"ScanWindow": c.ScanWindow, "Grace": c.Grace, "Retention": c.Retention,
		"Timeout": c.Timeout,
	} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("consistency.Config.%s is %v: it must not be negative", name, d))
		}
	}
	return errors.Join(errs...)
}

// Consistency runs its checks when they are due.
type Consistency struct {
	db                *bun.DB
	d                 dialect.Dialect
	cfg               Config
	checks            []Checker
	jobs              *schedule.Runner
	missing, repaired metric.Int64Counter
}

// New returns a runner of the checks. All mistakes are reported at once.
func New(db *bun.DB, cfg Config, checks ...Checker) (*Consistency, error) {
	err := cfg.validate()
	if db == nil {
		err = errors.Join(fmt.Errorf("consistency.New: %w", dialect.ErrNil), err)
	}
	cfg = cfg.withDefaults()
	seen := make(map[string]bool)
	for _, c := range checks {
		err = errors.Join(err, c.validate(cfg))
		if seen[c.name()] {
			err = errors.Join(err, fmt.Errorf("consistency: two checks have the name %q", c.name()))
		}
		seen[c.name()] = true
	}
	if err != nil {
		return nil, err
	}
	s := &Consistency{db: db, cfg: cfg, checks: checks}
	if s.d, err = dialect.Of(db); err != nil {
		return nil, err
	}
	if s.missing, err = telemetry.Counter(cfg.MeterProvider, "consistency.event.missing", "Facts found without their event."); err != nil {
		return nil, err
	}
	if s.repaired, err = telemetry.Counter(cfg.MeterProvider, "consistency.event.repaired", "Missing events that a check saved."); err != nil {
		return nil, err
	}
	s.jobs, err = s.schedule()
	return s, err
}

func (s *Consistency) schedule() (*schedule.Runner, error) {
	spec, err := schedule.Parse(s.cfg.Cron)
	if err != nil {
		return nil, err
	}
	return schedule.New(s.db, schedule.Config{
		Instance: s.cfg.Instance, Logger: s.cfg.Logger, TracerProvider: s.cfg.TracerProvider, MeterProvider: s.cfg.MeterProvider,
	},
		schedule.Job{Code: JobCode, Spec: spec, Timeout: s.cfg.Timeout, Run: s.runChecks})
}

// Run runs the checks whenever the job is due, until ctx ends.
func (s *Consistency) Run(ctx context.Context) error {
	for _, c := range s.checks {
		telemetry.Zero(ctx, []string{"check", c.name()}, s.missing, s.repaired)
	}
	return s.jobs.Run(ctx)
}

// Schedule is the durable code of the job and its cron expression.
func (s *Consistency) Schedule() (code, cron string) { return JobCode, s.cfg.Cron }

// RunNow runs all checks at once and tells what they did, by name.
func (s *Consistency) RunNow(ctx context.Context) (counts map[string]int64, err error) {
	rep, err := s.jobs.RunNow(ctx, JobCode)
	return rep.Counts, err
}

// Lacks tells which facts of a business key have lost their event, as keys by the name of the
// check. Only checks with [Check.Of] can say; it reads and repairs nothing.
func (s *Consistency) Lacks(ctx context.Context, key string) (map[string][]string, error) {
	lacks := make(map[string][]string)
	for _, c := range s.checks {
		keys, err := c.lacks(ctx, s.db, key)
		if err != nil {
			return nil, fmt.Errorf("consistency: %s: look for %s: %w", c.name(), text.Quote(key), err)
		}
		if len(keys) > 0 {
			lacks[c.name()] = keys
		}
	}
	return lacks, nil
}

// Report holds the result of each check by its name.
type Report map[string]Result

// pass is one run of the job: which checks it wants, what they found, and how many repairs they have made.
type pass struct {
	only     []string // empty means all
	report   Report
	repaired int
}

type passKey struct{}

// RunOnce runs the named checks at once, or all of them. It answers schedule.ErrBusy while the job is at
// work already.
func (s *Consistency) RunOnce(ctx context.Context, names ...string) (Report, error) {
	if err := s.known(names); err != nil {
		return nil, err
	}
	p := &pass{only: names, report: make(Report)}
	_, err := s.jobs.RunNow(context.WithValue(ctx, passKey{}, p), JobCode)
	return p.report, err
}

// known demands that there are checks of these names.
func (s *Consistency) known(names []string) error {
	for _, n := range names {
		if !slices.ContainsFunc(s.checks, func(c Checker) bool { return c.name() == n }) {
			return fmt.Errorf("consistency: there is no check %q", n)
		}
	}
	return nil
}

// runChecks is the job.
func (s *Consistency) runChecks(ctx context.Context) (schedule.Counts, error) {
	p, ok := ctx.Value(passKey{}).(*pass)
	if !ok {
		p = &pass{report: make(Report)}
	}
	total, errs := schedule.Counts{"found": 0, "repaired": 0, "failed": 0}, []error(nil)
	for _, c := range s.checks {
		if len(p.only) > 0 && !slices.Contains(p.only, c.name()) {
			continue
		}
		var result Result
		err := contain.Call("it", func() error { return c.run(ctx, s, p, &result) })
		p.report[c.name()] = result
		total["found"] += int64(result.Found)
		total["repaired"] += int64(result.Repaired)
		total["failed"] += int64(result.Failed)
		if err != nil {
			errs = append(errs, fmt.Errorf("consistency: %s: %w", c.name(), err))
			s.cfg.Logger.ErrorContext(ctx, "consistency check failed", "check", c.name(), telemetry.Err, text.Error(err))
			contain.Log(ctx, s.cfg.Logger, err, "check", c.name())
		}
		if errors.Is(err, ErrTooManyRepairs) {
			break
		}
	}
	return total, errors.Join(errs...)
}
