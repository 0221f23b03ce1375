package alert

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/uptrace/bun"
	"go.opentelemetry.io/otel/metric"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/schedule"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/text"
	"github.com/bluecone-go/bluecone/outbox"
)

// Alerter looks for what is wrong and tells it to its sinks.
type Alerter struct {
	db           *bun.DB
	cfg          Config
	book         *book
	jobs         *schedule.Runner
	sent, failed metric.Int64Counter
	now          func() time.Time // this machine's clock, which is under suspicion
}

// Report is what one look came to.
type Report struct {
	Found  int64 `json:"found"`  // conditions that hold
	Sent   int64 `json:"sent"`   // messages that sinks have accepted
	Failed int64 `json:"failed"` // messages that wait for another attempt
}

// New returns an alerter of the deployment that works on ob. All mistakes are reported at once.
func New(db *bun.DB, ob *outbox.Outbox, cfg Config) (*Alerter, error) {
	if db == nil || ob == nil {
		return nil, errors.New("alert.New: db and the outbox must not be nil: make the outbox by outbox.New(db, outbox.Config{})")
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Instance == "" {
		cfg.Instance = ob.Instance()
	}
	cfg = cfg.withDefaults()
	d, err := dialect.Of(db)
	if err != nil {
		return nil, err
	}
	a := &Alerter{db: db, cfg: cfg, now: time.Now, book: &book{db: db, d: d, sql: store.NewAlerts(d), cfg: cfg}}
	if a.sent, err = telemetry.Counter(cfg.MeterProvider, "alert.sent", "Alert messages that a sink has accepted."); err != nil {
		return nil, err
	}
	if a.failed, err = telemetry.Counter(cfg.MeterProvider, "alert.failed",
		"Attempts at alert messages that a sink did not accept."); err != nil {
		return nil, err
	}
	spec, err := schedule.Parse(cfg.Cron)
	if err != nil {
		return nil, err
	}
	a.jobs, err = schedule.New(db, schedule.Config{
		Instance: cfg.Instance, Logger: cfg.Logger, TracerProvider: cfg.TracerProvider,
		MeterProvider: cfg.MeterProvider,
	},
		schedule.Job{Code: JobCode, Spec: spec, Timeout: 5 * time.Minute, Quiet: true, Run: a.turn})
	return a, err
}

// Run looks whenever it is due, until ctx ends. Any number of instances may run it.
func (a *Alerter) Run(ctx context.Context) error {
	defer a.gauge(context.WithoutCancel(ctx))()
	for _, r := range a.cfg.Routes {
		telemetry.Zero(ctx, []string{"sink", r.Name}, a.sent, a.failed)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.watchClock(ctx)
	}()
	err := a.jobs.Run(ctx)
	<-done
	return err
}

// RunOnce looks at once, and sends what is due. It answers schedule.ErrBusy while the job is at work already.
func (a *Alerter) RunOnce(ctx context.Context) (Report, error) {
	err := a.checkClock(ctx)
	rep, e := a.jobs.RunNow(ctx, JobCode)
	return Report{Found: rep.Counts["found"], Sent: rep.Counts["sent"], Failed: rep.Counts["failed"]}, errors.Join(err, e)
}

// turn is the job: look, record, tell. What cannot be looked at must not keep back what waits.
func (a *Alerter) turn(ctx context.Context) (schedule.Counts, error) {
	l := look{db: a.db, d: a.book.d, cfg: a.cfg}
	found, err := l.all(ctx)
	if err == nil {
		found = urgent(found)
		if err = a.book.observe(ctx, found); err == nil {
			err = a.book.resolve(ctx)
		}
	}
	sent, failed, e := a.deliver(ctx)
	lost, e2 := a.book.clean(ctx)
	if lost > 0 {
		a.cfg.Logger.ErrorContext(ctx, "alert messages that no sink has accepted are given up", telemetry.Count, lost)
	}
	return schedule.Counts{"found": int64(len(found)), "sent": sent, "failed": failed}, errors.Join(err, e, e2)
}

// clockBeat is how often an instance looks at its own clock.
const clockBeat = 30 * time.Second

// watchClock looks at the clock of this instance, which no other can see.
func (a *Alerter) watchClock(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(clockBeat + rand.N(time.Second)):
		}
		if err := a.checkClock(ctx); err != nil && ctx.Err() == nil {
			a.cfg.Logger.WarnContext(ctx, "the clock could not be compared; it is tried again in a moment", telemetry.Err, text.Error(err))
		}
	}
}

// clockOffset is how far the database's clock is before this machine's, and how long it took to ask.
func (a *Alerter) clockOffset(ctx context.Context) (offset, trip time.Duration, err error) {
	var micros int64
	before := a.now()
	if err := a.db.QueryRowContext(ctx, "SELECT "+a.book.d.Micros(a.book.d.Now)).Scan(&micros); err != nil {
		return 0, 0, fmt.Errorf("alert: read the database's clock: %w", err)
	}
	trip = a.now().Sub(before)
	return time.UnixMicro(micros).Sub(before.Add(trip / 2)), trip, nil
}

func (a *Alerter) checkClock(ctx context.Context) error {
	limit := a.cfg.Limits.ClockOffset
	if limit < 0 {
		return nil
	}
	offset, trip, err := a.clockOffset(ctx)
	if err != nil || offset.Abs() <= limit+trip {
		return err
	}
	return a.book.observe(ctx, []signal{{
		rule: RuleClock, subject: a.cfg.Instance, count: 1,
		says: fmt.Sprintf("the clock of the instance %s and the database's are %v apart", a.cfg.Instance, offset.Abs().Round(time.Millisecond)),
	}})
}

const (
	gaugeFiring  = "alert.firing"
	gaugeWaiting = "alert.waiting_age"
)

// gauge makes the gauges readable while the alerter runs.
func (a *Alerter) gauge(ctx context.Context) (stop func()) {
	unregister, err := telemetry.Gauges(a.cfg.MeterProvider, a.measure,
		telemetry.Gauge{Name: gaugeFiring, Help: "Alerts that are firing, by rule; 0 under no rule if there are none.", Unit: "{alert}"},
		telemetry.Gauge{Name: gaugeWaiting, Help: "Age of the oldest alert message that its sink has not accepted.", Unit: "s"},
	)
	if err != nil {
		a.cfg.Logger.WarnContext(ctx, "the gauges of the alerts are not available", telemetry.Err, err)
		return func() {}
	}
	return func() {
		if err := unregister(); err != nil {
			a.cfg.Logger.WarnContext(ctx, "the gauges of the alerts could not be unregistered", telemetry.Err, err)
		}
	}
}

// measure reads both gauges.
func (a *Alerter) measure(ctx context.Context, set func(name string, v float64, kv ...string)) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	wait, err := a.book.sql.LongestWait(ctx, a.db)
	if err != nil {
		return fmt.Errorf("alert: measure what waits: %w", err)
	}
	set(gaugeWaiting, wait.Seconds())
	set(gaugeFiring, 0, "rule", "", "level", "")
	firing, err := a.book.sql.CountFiring(ctx, a.db)
	if err != nil {
		return fmt.Errorf("alert: measure what fires: %w", err)
	}
	for _, f := range firing {
		set(gaugeFiring, float64(f.Count), "rule", f.Rule, "level", f.Level)
	}
	return nil
}
