package schedule

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/uptrace/bun"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/instance"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/text"
)

// Counts is what a run did, by name, such as "released": 3.
type Counts map[string]int64

// Job is a piece of work that is due at times.
type Job struct {
	Code    string        // durable name, the key of its lease
	Spec    Spec          // when it is due
	Timeout time.Duration // ends its context
	Quiet   bool          // its good runs are logged at DEBUG only
	Run     func(ctx context.Context) (Counts, error)
}

// Report is what one run came to.
type Report struct {
	Job      string        `json:"job"`
	Counts   Counts        `json:"counts"`
	Duration time.Duration `json:"durationNs"`
	Error    string        `json:"error,omitempty"`
}

// ErrBusy means that the job is running already, here or in another instance.
var ErrBusy = errors.New("the job is running already")

// Config configures a [Runner]. The zero value works.
type Config struct {
	Instance       string       // Default: instance.Name().
	Logger         *slog.Logger // Default: slog.Default().
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	Lease          time.Duration // how long the lease of a dead instance lasts. Default: 1 min.
}

// Runner runs jobs.
type Runner struct {
	db     *bun.DB
	sql    store.Jobs
	cfg    Config
	tracer trace.Tracer
	runs   metric.Int64Counter
	jobs   map[string]Job
}

// New returns a runner of the jobs. Two jobs of the same code are an error.
func New(db *bun.DB, cfg Config, jobs ...Job) (*Runner, error) {
	d, err := dialect.Of(db)
	if err != nil {
		return nil, err
	}
	if cfg.Instance == "" {
		cfg.Instance = instance.Name()
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Lease == 0 {
		cfg.Lease = time.Minute
	}
	r := &Runner{db: db, sql: store.NewJobs(d), cfg: cfg, tracer: telemetry.Tracer(cfg.TracerProvider), jobs: make(map[string]Job)}
	if r.runs, err = telemetry.Counter(cfg.MeterProvider, "scheduler.runs", "Runs of scheduled jobs, by how they ended."); err != nil {
		return nil, err
	}
	for _, j := range jobs {
		if _, ok := r.jobs[j.Code]; ok {
			return nil, fmt.Errorf("schedule: two jobs have the code %s", j.Code)
		}
		r.jobs[j.Code] = j
	}
	return r, nil
}

// Run runs each job when it is due until ctx ends, waits for those that run, and returns nil.
func (r *Runner) Run(ctx context.Context) error {
	defer r.gauge(context.WithoutCancel(ctx))()
	for code := range r.jobs {
		for _, status := range []string{"SUCCESS", "FAILED"} {
			telemetry.Zero(ctx, []string{"jobCode", code, telemetry.Status, status}, r.runs)
		}
	}
	var wg sync.WaitGroup
	for _, j := range r.jobs {
		wg.Go(func() { r.loop(ctx, j) })
	}
	wg.Wait()
	return nil
}

// maxWait bounds a sleep, so that a run that everybody missed, or that another clock
// thinks due, is noticed.
const maxWait = 30 * time.Second

// awaySay is for how long the database may be away before a job says so: the publisher does at once.
const awaySay = time.Minute

func (r *Runner) loop(ctx context.Context, j Job) {
	var away time.Time
	said, told := false, false
	for ctx.Err() == nil {
		due, wait, err := r.nextDueInTime(ctx, j, !told)
		told = told || err == nil
		switch {
		case err != nil && ctx.Err() == nil:
			if away.IsZero() {
				away = time.Now()
			}
			if !said && time.Since(away) > awaySay {
				said = true
				r.cfg.Logger.WarnContext(ctx, "the database does not answer as it should; the job keeps waiting for its due time", "job", j.Code,
					telemetry.Err, err)
			}
			wait = 5 * time.Second
		case err == nil:
			away, said = time.Time{}, false
		}
		if due != nil {
			_, err := r.run(ctx, j, *due, false)
			if err != nil && !errors.Is(err, ErrBusy) {
				r.cfg.Logger.ErrorContext(ctx, "job failed", "job", j.Code, telemetry.Err, text.Error(err))
			}
			wait = time.Second
		}
		select {
		case <-time.After(min(wait, maxWait) + rand.N(50*time.Millisecond)):
		case <-ctx.Done():
		}
	}
}

// nextDueInTime is [Runner.nextDue] that does not wait for a silent database. At first it also tells the others when the job is due.
func (r *Runner) nextDueInTime(ctx context.Context, j Job, isFirst bool) (due *time.Time, wait time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	if due, wait, err = r.nextDue(ctx, j); err == nil && isFirst {
		err = r.sql.SetCron(ctx, r.db, j.Code, j.Spec.String())
	}
	return due, wait, err
}

// nextDue tells, by the database's clock, whether the job is due (and since when), or how
// long it is until then.
func (r *Runner) nextDue(ctx context.Context, j Job) (due *time.Time, wait time.Duration, err error) {
	if err := r.ensure(ctx, j.Code); err != nil {
		return nil, 0, err
	}
	is, err := r.sql.LastDue(ctx, r.db, j.Code)
	if err != nil {
		return nil, 0, fmt.Errorf("schedule: %s: %w", j.Code, err)
	}
	next := j.Spec.Next(time.UnixMicro(is.LastDue))
	current := time.UnixMicro(is.Now).UTC()
	if next.After(current) {
		return nil, next.Sub(current), nil
	}
	return &current, 0, nil // once, however many times it was missed
}

// ensure makes the job's row; a new job is first due at its next time, not at once.
func (r *Runner) ensure(ctx context.Context, code string) error {
	exists, err := r.sql.Exists(ctx, r.db, code)
	if err == nil && !exists {
		err = r.sql.Add(ctx, r.db, code)
	}
	if err != nil {
		return fmt.Errorf("schedule: %s: %w", code, err)
	}
	return nil
}

// RunNow runs a job at once, out of turn. It answers [ErrBusy] while the job runs elsewhere.
func (r *Runner) RunNow(ctx context.Context, code string) (Report, error) {
	j, ok := r.jobs[code]
	if !ok {
		return Report{}, fmt.Errorf("schedule: there is no job %q", code)
	}
	if err := r.ensure(ctx, code); err != nil {
		return Report{}, err
	}
	return r.run(ctx, j, time.Time{}, true)
}
