// Package ops is what operators can see and do: one API that the web console, the command line and
// your own programs share.
//
// # Contract
//
// Reading never disturbs the engine: every statement uses an index, pages are read by key, counts
// stop at [CountCap], and no list carries payloads. An [Ops] has at most Config.Queries statements
// of a reader under way, each of which ends after Config.Timeout. Identical reads share one answer
// for a second.
//
// Every write takes an [Operation], who and why, leaves a row in the audit log in the same
// transaction, and is safe to repeat. What changes many events is a bulk operation: it runs in the
// background at its own pace, on whichever instance is alive, and can be watched and canceled.
//
// The package asks for no permission: whoever calls it decides who may. It shows no secrets.
package ops

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/doctor"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/kind"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/outbox"
	"github.com/bluecone-go/bluecone/schedule"
)

// Operation is who intervenes, and why. Both go into the audit log.
type Operation = outbox.Operation

// ErrNotFound means that there is nothing of that id or name, or nothing in a state that allows
// the operation.
var ErrNotFound = outbox.ErrNotFound

// ErrUnknown means that there is nothing of that id or name at all. An error that is ErrUnknown is ErrNotFound, too.
var ErrUnknown = kind.ErrUnknown

// ErrInFlight means that an instance is delivering the event at this moment: try again when that has ended. It is an [ErrNotFound], too.
var ErrInFlight = outbox.ErrInFlight

// ErrNotReplayable means that no instance has the consumer as bus.ConsumerConfig.Replayable.
var ErrNotReplayable = outbox.ErrNotReplayable

// Job is a scheduled job of this process, which can be run out of turn. *reaper.Reaper, *consistency.Consistency,
// *outbox.Retention and *outbox.Publisher are Jobs, and so are those of schedule.Schedule.Jobs.
type Job = schedule.Job

// Checks answers which events a business key lacks. *consistency.Consistency does.
type Checks interface {
	// Lacks names, per check, the facts of the key whose event is missing.
	Lacks(ctx context.Context, key string) (map[string][]string, error)
}

// Config configures an [Ops]. The zero value works.
type Config struct {
	// Jobs are those of this process. Others can only be asked for. Default: none.
	Jobs []Job
	// Publishable are the event types that may be published by hand, a value of each. Default: none.
	Publishable []bus.Event
	// Sections add the modules' own views to a story. Default: none.
	Sections []Section
	// Checks say which event a business key lacks, for the diagnosis. Default: none.
	Checks Checks
	// TenantSections says that Sections and Checks heed [CallerOf] of their context. Otherwise a caller who is limited to
	// some tenants gets stories without them. Default: false.
	TenantSections bool
	// Personal are fields that hold personal data: names, such as "phone", which are hidden at any depth, and JSON paths,
	// such as "user.phone" or "items.name" (a path goes through arrays), whatever the case of their letters. They are
	// hidden in every payload, consume result and metadata. So are the fields with the struct tag `bus:"pii"` of every
	// type that has a handler in this process or is Publishable. Default: none.
	Personal []string
	// TraceURL makes the link to a trace in your tracing system. Default: none, no links.
	TraceURL func(traceID string) string
	// Doctor says what the database has to be fit for. Default: its defaults.
	Doctor doctor.Config
	// Queries is the most statements of readers under way at a time. Default: 2.
	Queries int
	// Timeout ends a statement of a reader. Default: 2 s.
	Timeout time.Duration
	// StuckAfter is how long an event may be in flight, or a delivery at its
	// handler, before the diagnosis calls it stuck. Default: 5 min.
	StuckAfter time.Duration
	// Logger receives one line per write. Default: slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Queries == 0 {
		c.Queries = defaultQueries
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.StuckAfter == 0 {
		c.StuckAfter = 5 * time.Minute
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.Queries < 0 || c.Timeout < 0 || c.StuckAfter < 0 {
		errs = append(errs, fmt.Errorf("ops.Config: Queries is %d, Timeout %v and StuckAfter %v: they must not be negative", c.Queries, c.Timeout,
			c.StuckAfter))
	}
	seen := make(map[string]bool)
	for i, j := range c.Jobs {
		if j == nil {
			errs = append(errs, fmt.Errorf("ops.Config.Jobs[%d] is nil", i))
			continue
		}
		code, _ := j.Schedule()
		if seen[code] {
			errs = append(errs, fmt.Errorf("ops.Config.Jobs: two jobs have the code %s", code))
		}
		seen[code] = true
	}
	return errors.Join(append(errs, c.checkPublishable())...)
}

func (c Config) checkPublishable() error {
	var errs []error
	first := make(map[string]int)
	for i, e := range c.Publishable {
		if e == nil {
			errs = append(errs, fmt.Errorf("ops.Config.Publishable[%d] is nil: give a value of the event type, such as order.Paid{}", i))
			continue
		}
		if j, twice := first[e.EventType()]; twice {
			errs = append(errs, fmt.Errorf("ops.Config.Publishable: %T and %T are both %q, and only one can be published under it: name each "+
				"event type once, "+
				"such as Publishable: []bus.Event{%T{}}", c.Publishable[j], e, e.EventType(), e))
			continue
		}
		first[e.EventType()] = i
	}
	return errors.Join(errs...)
}

// Ops reads and steers a deployment. It is safe for concurrent use.
type Ops struct {
	ob  *outbox.Outbox
	cfg Config

	access    *access
	acts      *acts
	search    *searcher
	overviews *overviews
	jobs      *jobs
	manual    *manuals
	bulks     *bulks
	examiner  examiner
}

// New returns the operations of the deployment that works on ob, in db. All mistakes are reported at once.
func New(db *bun.DB, ob *outbox.Outbox, cfg Config) (*Ops, error) {
	var missing []error
	if db == nil {
		missing = append(missing, fmt.Errorf("ops.New: %w", dialect.ErrNil))
	}
	if ob == nil {
		missing = append(missing, errors.New("ops.New: the outbox is nil: make it by outbox.New(db, outbox.Config{})"))
	}
	if err := errors.Join(missing...); err != nil {
		return nil, err
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	d, err := dialect.Of(db)
	if err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	cfg.TraceURL = containURL(cfg.TraceURL, cfg.Logger)
	o := &Ops{ob: ob, cfg: cfg, access: newAccess(db, d, cfg)}
	o.acts = &acts{db: db, d: d, access: o.access, log: cfg.Logger}
	o.search = &searcher{loader: newLoader(o.access, cfg), publishable: cfg.Publishable, timeout: cfg.Timeout}
	o.overviews = &overviews{access: o.access, stuckAfter: cfg.StuckAfter}
	o.examiner = examiner{access: o.access, cfg: cfg.Doctor, log: cfg.Logger}
	o.jobs = &jobs{access: o.access, acts: o.acts, here: cfg.Jobs}
	o.manual = &manuals{publishable: cfg.Publishable, ob: ob, acts: o.acts}
	o.bulks = &bulks{
		rows: store.NewBulkOperations(d), acts: o.acts, search: o.search, ob: ob, wake: make(chan struct{}, 1), timeout: cfg.Timeout,
	}
	return o, nil
}

// Run works on bulk operations and samples rates for [Ops.Overview], until ctx ends. Any number of
// instances may run it. It returns nil.
func (o *Ops) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { o.overviews.sampleRates(ctx, o.cfg.Logger) })
	wg.Go(func() { o.bulks.loop(ctx) })
	wg.Wait()
	return nil
}
