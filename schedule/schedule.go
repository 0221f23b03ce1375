package schedule

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/uptrace/bun"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/bluecone-go/bluecone/internal/dialect"
	engine "github.com/bluecone-go/bluecone/internal/schedule"
)

// ErrBusy means that a job is at work already, here or in another instance.
var ErrBusy = engine.ErrBusy

// Job is one job of this process, which can be run out of turn.
type Job interface {
	// Schedule is the durable name of the job and its cron expression, in UTC.
	Schedule() (code, cron string)
	// RunNow runs it once and answers what it did, by name, such as "released": 3. The error is [ErrBusy] while it runs elsewhere.
	RunNow(ctx context.Context) (counts map[string]int64, err error)
}

// Config configures a [Schedule]. The zero value works.
type Config struct {
	// Timeout ends the context of one run of a job. Negative means no limit. Default: 1 h.
	Timeout time.Duration
	// Instance names this process in leases and in the history, at most 64 bytes.
	// Default: host name, process id and a random part.
	Instance string
	// Logger receives one line per run. Default: slog.Default().
	Logger *slog.Logger
	// TracerProvider makes the spans of runs. Default: the global provider.
	TracerProvider trace.TracerProvider
	// MeterProvider makes the instruments. Default: the global provider.
	MeterProvider metric.MeterProvider
}

// Schedule has jobs, and runs them when they are due. It is safe for concurrent use.
type Schedule struct {
	db  *bun.DB
	cfg Config

	mu       sync.Mutex
	jobs     []engine.Job
	mistakes []error
	runner   *engine.Runner // from the first run on: no job can be added any more
	late     chan struct{}  // closed when somebody tries
}

// New returns a schedule without jobs on the database, whose tables migrations.Up makes. At most one configuration may be
// given. Mistakes are collected: see [Schedule.Err].
func New(db *bun.DB, cfg ...Config) *Schedule {
	s := &Schedule{db: db, late: make(chan struct{})}
	if db == nil {
		s.mistakes = append(s.mistakes, fmt.Errorf("schedule.New: %w", dialect.ErrNil))
	}
	switch len(cfg) {
	case 0:
	case 1:
		s.cfg = cfg[0]
	default:
		s.mistakes = append(s.mistakes, fmt.Errorf("schedule.New: there are %d configurations: give one", len(cfg)))
	}
	if n := len(s.cfg.Instance); n > maxName {
		s.mistakes = append(s.mistakes, fmt.Errorf("schedule.Config.Instance %q has %d bytes: the limit is %d", s.cfg.Instance, n, maxName))
	}
	if s.cfg.Timeout == 0 {
		s.cfg.Timeout = time.Hour
	}
	return s
}

// names of jobs are in the database, in metrics and in shells.
var names = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// Add adds a job. The name is durable: a job that is renamed is another job, with a history of its own. It has letters,
// digits, points, hyphens and underscores, at most 64, and is none of the library's own jobs. The cron expression has five
// fields, or six with seconds first, in UTC; "@hourly" and the like are taken too. A job that is new is first due at its
// next turn. Count what fn does with [Count].
//
// Mistakes (a name that is not valid, is taken, or is the library's; a cron expression that cannot be parsed or never comes;
// an fn that is nil) are collected, so that Add can be chained: [Schedule.Run] returns all of them and starts nothing.
// A job that is added after the first run ends Run with an error.
func (s *Schedule) Add(name, cron string, fn func(ctx context.Context) error) *Schedule {
	s.mu.Lock()
	defer s.mu.Unlock()
	spec, err := engine.Parse(cron)
	before := len(s.mistakes)
	say := func(format string, args ...any) {
		s.mistakes = append(s.mistakes, fmt.Errorf("schedule: the job %q "+format, append([]any{name}, args...)...))
	}
	switch {
	case len(name) > maxName || !names.MatchString(name):
		say(`has a name that is not valid: use at most %d letters, digits, ".", "-" and "_", such as "coupons.expire"`, maxName)
	case slices.Contains(engine.Reserved(), name):
		say("has the name of one of the library's own jobs: choose another one")
	case slices.ContainsFunc(s.jobs, func(j engine.Job) bool { return j.Code == name }):
		say("is added twice: a name stands for one job")
	}
	if err != nil {
		say("cannot have its schedule: %w", err)
	}
	if fn == nil {
		say("has no function: give a func(ctx context.Context) error")
	}
	if s.runner != nil {
		say("is added too late: add all jobs before the first run")
		select {
		case <-s.late:
		default:
			close(s.late)
		}
	}
	if len(s.mistakes) == before {
		s.jobs = append(s.jobs, engine.Job{Code: name, Spec: spec, Timeout: max(s.cfg.Timeout, 0), Run: counted(fn)})
	}
	return s
}

// Err is everything that is wrong with the jobs, or nil.
func (s *Schedule) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.mistakes...)
}

// Run runs each job when it is due until ctx ends, waits for those that run, and returns nil. If the jobs have mistakes it
// returns them, all at once, and runs nothing.
func (s *Schedule) Run(ctx context.Context) error {
	r, err := s.open()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-s.late:
			cancel()
		case <-ctx.Done():
		}
	}()
	err = r.Run(ctx)
	cancel()
	<-watched
	return errors.Join(err, s.Err())
}

// RunNow runs a job at once, out of turn, and answers what it has counted. The error is [ErrBusy] while the job runs
// elsewhere, and that of the job itself when it fails. A name that was not added is an error. While the jobs have mistakes
// ([Schedule.Err]) RunNow returns these, and runs nothing.
func (s *Schedule) RunNow(ctx context.Context, name string) (counts map[string]int64, err error) {
	r, err := s.open()
	if err != nil {
		return nil, err
	}
	rep, err := r.RunNow(ctx, name)
	return rep.Counts, err
}

// open returns what runs the jobs. From now on no job can be added.
func (s *Schedule) open() (*engine.Runner, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := errors.Join(s.mistakes...); err != nil || s.runner != nil {
		return s.runner, err
	}
	r, err := engine.New(s.db, engine.Config{
		Instance: s.cfg.Instance, Logger: s.cfg.Logger, TracerProvider: s.cfg.TracerProvider, MeterProvider: s.cfg.MeterProvider,
	}, s.jobs...)
	if err == nil {
		s.runner = r
	}
	return r, err
}

// Jobs are those that were added so far, for ops.Config.Jobs.
func (s *Schedule) Jobs() []Job {
	s.mu.Lock()
	defer s.mu.Unlock()
	jobs := make([]Job, 0, len(s.jobs))
	for _, j := range s.jobs {
		jobs = append(jobs, job{s, j})
	}
	return jobs
}

// Crons are the cron expressions of the jobs that were added so far, by name, for alert.Config.Jobs.
func (s *Schedule) Crons() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	crons := make(map[string]string)
	for _, j := range s.jobs {
		crons[j.Code] = j.Spec.String()
	}
	return crons
}

// job is one of a schedule.
type job struct {
	s *Schedule
	j engine.Job
}

// Schedule is the name and the cron expression.
func (j job) Schedule() (code, cron string) { return j.j.Code, j.j.Spec.String() }

// RunNow runs it out of turn.
func (j job) RunNow(ctx context.Context) (map[string]int64, error) { return j.s.RunNow(ctx, j.j.Code) }

// tally is what a run has counted so far.
type tally struct {
	mu     sync.Mutex
	counts engine.Counts
}

type tallyKey struct{}

// Count adds n to what the job of ctx has done, by name, such as "expired": 12. The history shows the sums, on the console too.
// Outside a job it does nothing.
func Count(ctx context.Context, name string, n int64) {
	t, ok := ctx.Value(tallyKey{}).(*tally)
	if !ok {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts[name] += n
}

// counted lets fn count. What it has counted before an error counts.
func counted(fn func(ctx context.Context) error) func(ctx context.Context) (engine.Counts, error) {
	return func(ctx context.Context) (engine.Counts, error) {
		t := &tally{counts: engine.Counts{}}
		err := fn(context.WithValue(ctx, tallyKey{}, t))
		t.mu.Lock()
		defer t.mu.Unlock()
		return maps.Clone(t.counts), err
	}
}
