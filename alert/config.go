package alert

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"regexp"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/bluecone-go/bluecone/internal/schedule"
)

// JobCode is the durable name of the alerter's job.
const JobCode = "alert"

// Route sends the messages of a level, and of those above it, to a sink.
type Route struct {
	Name  string // durable: messages that wait for the sink carry it
	Sink  Sink
	Least Level // Default: WARN, everything.
}

// Config configures an [Alerter]. The zero value works, and writes to the log.
type Config struct {
	// Routes are the sinks, and what each gets. Default: Log of Logger, everything.
	Routes []Route
	// Service and Environment name the deployment in every message. Default: none.
	Service string
	// Environment is "production", say. Default: none.
	Environment string
	// Limits are what is still all right. Default: see LimitsConfig.
	Limits LimitsConfig
	// Overrides are limits of some consumers and event types. Default: none.
	Overrides []OverrideConfig
	// Jobs are the cron expressions of jobs that are to run, by job code; an empty one is not watched.
	// Only a job that has been known to the database is missed. Default: the engine's own jobs at
	// their default times.
	Jobs map[string]string
	// Cron is when it looks. Default: "0/30 * * * * ?", every 30 s.
	Cron string
	// ResolveAfter is how long a condition must be gone to be over. Default: 90 s.
	ResolveAfter time.Duration
	// EscalateAfter is how long an alert of level WARN may last until it is CRITICAL; negative means
	// for ever. Default: 1 h.
	EscalateAfter time.Duration
	// RemindEvery is the pause until the first repetition; each further one is twice as long, up to
	// a day. Negative means that nothing is repeated. Default: 2 h.
	RemindEvery time.Duration
	// SendTimeout ends one call of a sink, at most 1 min. Default: 10 s.
	SendTimeout time.Duration
	// Keep is how long resolved alerts and sent messages are kept. A message that no sink has accepted
	// by then is given up, which is logged. Default: 30 days.
	Keep time.Duration
	// Link answers the address of the page that shows the matter, for the message. Default: none.
	Link func(n Notice) string
	// Runbook is the address to which "#" and the rule are added. Default: "docs/operations.md".
	Runbook string
	// Instance names this process in leases and in alerts about its clock.
	// Default: host name, process id and a random part.
	Instance string
	// Logger receives what goes wrong with the alerts themselves. Default: slog.Default().
	Logger *slog.Logger
	// TracerProvider makes the job's spans. Default: the global provider.
	TracerProvider trace.TracerProvider
	// MeterProvider makes the instruments. Default: the global provider.
	MeterProvider metric.MeterProvider
}

// LimitsConfig says how much of something is still all right. A negative value turns its rule off, but for FailureWindow, which must not
// be negative.
type LimitsConfig struct {
	// Dead is how many DEAD deliveries of one consumer and event type fire. Default: 1.
	Dead int64
	// OldestAge is the age of an event that no consumer has got yet. Default: 5 min.
	OldestAge time.Duration
	// LagAge is the age of a delivery that waits in a consumer's retry queue. Default: 15 min.
	LagAge time.Duration
	// FailureRatio is the share of a consumer's attempts that may fail within FailureWindow, from 0
	// to 1. Default: 0.5.
	FailureRatio float64
	// FailureWindow is the time over which attempts are counted. Default: 5 min.
	FailureWindow time.Duration
	// FailureLeast is the number of failed attempts below which a ratio says nothing. Default: 10.
	FailureLeast int64
	// Stalled is for how long nothing may be delivered while events are due. Default: 2 min.
	Stalled time.Duration
	// Unconsumed is the age of an event that nobody consumes, and for how long a delivery may wait for an instance
	// that knows the schema version of its event. Default: 5 min.
	Unconsumed time.Duration
	// Uncounted is the age of a delivery whose attempts do not count, because what the consumer calls
	// cannot be reached (its circuit is open) or its handler keeps returning bus.RetryAfter. Default: 5 min.
	Uncounted time.Duration
	// Paused is for how long an operator may have paused a consumer. Default: 1 h.
	Paused time.Duration
	// Unregistered is for how long nobody may work on what waits: no instance has the consumer that deliveries wait for, or runs
	// the replays that wait, or takes the type of deliveries that wait, or goes on with a backfill. A consumer that is paused, or
	// that nothing waits for, fires after a day, or after this if it is longer. Default: 10 min.
	Unregistered time.Duration
	// Reservation is for how long, after the end of its time to live, an event that was reserved in the ledger may be neither
	// confirmed nor canceled: its producer has not said what has become of it. Default: 2 min.
	Reservation time.Duration
	// JobLate is how much later than a whole missed turn a job may be. Default: 2 min.
	JobLate time.Duration
	// ClockOffset is how far the clock of an instance and that of the database may be apart. Default: 5 s.
	ClockOffset time.Duration
}

// OverrideConfig are other limits for a consumer, an event type, or both. Its zero limits are those of
// Config.Limits; the last override that fits wins. FailureWindow cannot be overridden.
type OverrideConfig struct {
	// Consumer is the name of the consumer. Default: every one.
	Consumer string
	// EventType is the type of the events. Rules that speak of a consumer as a whole (failure ratio,
	// paused, absent) ignore overrides that name one. Default: every one.
	EventType string
	// Limits are what is still all right for them. Default: none.
	Limits LimitsConfig
}

const (
	defaultRunbook = "docs/operations.md"
	reminderCap    = 24 * time.Hour
)

// knownJobs are the jobs of the engine with the times at which they run unless told otherwise.
func knownJobs() map[string]string {
	return map[string]string{
		"lock_timeout_reaper":     "0 */5 * * * ?",
		"order_asset_consistency": "0 0 */2 * * ?",
		"outbox_retention":        "0 */10 * * * ?",
	}
}

type orDefault struct {
	v   *time.Duration
	def time.Duration
}

func fill(list ...orDefault) {
	for _, d := range list {
		if *d.v == 0 {
			*d.v = d.def
		}
	}
}

func (c Config) withDefaults() Config {
	fill(orDefault{&c.ResolveAfter, 90 * time.Second}, orDefault{&c.EscalateAfter, time.Hour}, orDefault{&c.RemindEvery, 2 * time.Hour},
		orDefault{&c.SendTimeout, 10 * time.Second}, orDefault{&c.Keep, 30 * 24 * time.Hour})
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if len(c.Routes) == 0 {
		c.Routes = []Route{{Name: "log", Sink: Log(c.Logger)}}
	}
	if c.Cron == "" {
		c.Cron = "0/30 * * * * ?"
	}
	if c.Runbook == "" {
		c.Runbook = defaultRunbook
	}
	jobs := knownJobs()
	maps.Copy(jobs, c.Jobs)
	c.Jobs = jobs
	c.Limits = c.Limits.withDefaults()
	return c
}

func (l LimitsConfig) withDefaults() LimitsConfig {
	if l.Dead == 0 {
		l.Dead = 1
	}
	if l.FailureRatio == 0 {
		l.FailureRatio = 0.5
	}
	if l.FailureLeast == 0 {
		l.FailureLeast = 10
	}
	fill(orDefault{&l.OldestAge, 5 * time.Minute}, orDefault{&l.LagAge, 15 * time.Minute}, orDefault{&l.FailureWindow, 5 * time.Minute},
		orDefault{&l.Stalled, 2 * time.Minute}, orDefault{&l.Unconsumed, 5 * time.Minute}, orDefault{&l.Uncounted, 5 * time.Minute},
		orDefault{&l.Paused, time.Hour}, orDefault{&l.Unregistered, 10 * time.Minute}, orDefault{&l.JobLate, 2 * time.Minute},
		orDefault{&l.Reservation, 2 * time.Minute}, orDefault{&l.ClockOffset, 5 * time.Second})
	return l
}

// over puts those limits of o that are set in the place of l's.
func (l LimitsConfig) over(o LimitsConfig) LimitsConfig {
	if o.Dead != 0 {
		l.Dead = o.Dead
	}
	if o.FailureRatio != 0 {
		l.FailureRatio = o.FailureRatio
	}
	if o.FailureLeast != 0 {
		l.FailureLeast = o.FailureLeast
	}
	fill(orDefault{&o.OldestAge, l.OldestAge}, orDefault{&o.LagAge, l.LagAge}, orDefault{&o.Stalled, l.Stalled},
		orDefault{&o.Unconsumed, l.Unconsumed},
		orDefault{&o.Uncounted, l.Uncounted}, orDefault{&o.Paused, l.Paused}, orDefault{&o.Unregistered, l.Unregistered},
		orDefault{&o.JobLate, l.JobLate}, orDefault{&o.ClockOffset, l.ClockOffset}, orDefault{&o.Reservation, l.Reservation})
	o.Dead, o.FailureRatio, o.FailureLeast, o.FailureWindow = l.Dead, l.FailureRatio, l.FailureLeast, l.FailureWindow
	return o
}

// limits are those of a consumer and an event type; "" is none in particular.
func (c Config) limits(consumer, eventType string) LimitsConfig {
	l := c.Limits
	for _, o := range c.Overrides {
		if (o.Consumer == "" || o.Consumer == consumer) && (o.EventType == "" || o.EventType == eventType) {
			l = l.over(o.Limits)
		}
	}
	return l
}

var routeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

func (c Config) validate() error {
	var errs []error
	say := func(format string, args ...any) { errs = append(errs, fmt.Errorf("alert.Config."+format, args...)) }
	if c.Cron != "" {
		if _, err := schedule.Parse(c.Cron); err != nil {
			say("Cron: %w", err)
		}
	}
	for code, cron := range c.Jobs {
		if _, err := schedule.Parse(cron); cron != "" && err != nil {
			say("Jobs[%q]: %w", code, err)
		}
	}
	errs = append(errs, c.checkRoutes())
	for _, d := range []struct {
		name string
		v    time.Duration
	}{{"ResolveAfter", c.ResolveAfter}, {"SendTimeout", c.SendTimeout}, {"Keep", c.Keep}, {"Limits.FailureWindow", c.Limits.FailureWindow}} {
		if d.v < 0 {
			say("%s is %v: it must not be negative", d.name, d.v)
		}
	}
	if c.SendTimeout > time.Minute {
		say("SendTimeout is %v: the longest is 1 min", c.SendTimeout)
	}
	if len(c.Instance) > 64 {
		say("Instance %q has %d bytes: the limit is 64", c.Instance, len(c.Instance))
	}
	if _, err := url.Parse(c.Runbook); err != nil {
		say("Runbook %q is no address", c.Runbook)
	}
	errs = append(errs, ratio("alert.Config.Limits", c.Limits))
	for i, o := range c.Overrides {
		errs = append(errs, ratio(fmt.Sprintf("alert.Config.Overrides[%d].Limits", i), o.Limits))
		if o.Limits.FailureWindow != 0 {
			say("Overrides[%d].Limits.FailureWindow cannot be overridden: set Limits.FailureWindow", i)
		}
	}
	return errors.Join(errs...)
}

// checkRoutes reports what is wrong with the routes.
func (c Config) checkRoutes() error {
	var errs []error
	say := func(format string, args ...any) { errs = append(errs, fmt.Errorf("alert.Config."+format, args...)) }
	names := make(map[string]bool)
	for i, r := range c.Routes {
		switch {
		case !routeName.MatchString(r.Name):
			say("Routes[%d].Name is %q: it must be a plain word of at most 64 characters", i, r.Name)
		case names[r.Name]:
			say("Routes: two have the name %q", r.Name)
		}
		names[r.Name] = true
		if r.Sink == nil {
			say("Routes[%d].Sink is nil", i)
		}
		if r.Least != "" && r.Least != Warn && r.Least != Critical {
			say("Routes[%d].Least is %q: it must be WARN or CRITICAL", i, r.Least)
		}
	}
	return errors.Join(errs...)
}

func ratio(where string, l LimitsConfig) error {
	if l.FailureRatio > 1 {
		return fmt.Errorf("%s.FailureRatio is %v: it must be at most 1", where, l.FailureRatio)
	}
	return nil
}
