package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/dialect"
	due "github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/instance"
	"github.com/bluecone-go/bluecone/internal/schedule"
)

// PublisherConfig configures a [Publisher]. The zero value works.
type PublisherConfig struct {
	// BatchSize is the most events one claim takes (bluecone.outbox.batch-size), but in a backlog:
	// there it takes five times as many, up to 500, if the consumers have room. Default: 100.
	BatchSize int
	// MaxInHand is how many bytes of payloads this process claims before it has delivered them, but for one event, which may
	// be larger; and as many again for deliveries from the consume log, such as retries. Default: 16 MiB.
	MaxInHand int
	// Cron is when the publisher looks at everything whether or not a hint says so
	// (bluecone.outbox.publisher-cron). Saving in this process wakes it within
	// milliseconds; this is the safety net. Default: "0/10 * * * * ?", every 10 s.
	Cron string
	// Poll is how often it looks for events of other processes, retries that have
	// fallen due and leases that have expired. While it has something to do it looks every
	// 250 ms, unless Poll is shorter: a backlog starves nothing that falls due. Default: 1 s.
	Poll time.Duration
	// Lease is how long events are leased; running ones are renewed at a third.
	// It is how long the events of a dead instance wait. Default: 30 s.
	Lease time.Duration
	// DrainTimeout is how long running handlers may finish after Run's context has
	// ended. Default: 30 s.
	DrainTimeout time.Duration
	// UnroutableGrace is the age after which an event without any consumer is
	// reported, and how long a delivery may wait for an instance that knows the
	// schema version of its event before that is reported. Default: 1 min.
	UnroutableGrace time.Duration
	// Retention removes what was delivered long enough ago, for as long as the publisher runs: once in the whole deployment,
	// so set it alike on all instances. A negative Keep turns it off. A Retention of this outbox that [NewRetention] has made
	// is used instead of the zero value; together with another value it is an error of Run.
	// Default: on, with the defaults of [RetentionConfig]: 7 days.
	Retention RetentionConfig
	// Notify, on PostgreSQL, lets every [Outbox.Save] of this process notify all publishers that have Notify set, also those of
	// other instances, with its commit (NOTIFY), and lets this publisher listen. Then events of other instances, and those of
	// transactions whose commit bun does not see, do not wait for Poll. PostgreSQL lets transactions that notify commit one after
	// the other: 16 writers on a disk saved a fifth of what they save without (docs/measurements/notify.md). The publisher keeps
	// one connection of the pool, which has to be pgx's, and lead to the server itself, not to a pooler; where it is not, a warning
	// says so, and Poll finds the events. [NewPublisher] refuses it for other databases, and for a pool of one connection.
	// Default: false.
	Notify bool
}

func (c PublisherConfig) withDefaults() PublisherConfig {
	set := func(v *time.Duration, def time.Duration) {
		if *v == 0 {
			*v = def
		}
	}
	if c.BatchSize == 0 {
		c.BatchSize = 100
	}
	if c.MaxInHand == 0 {
		c.MaxInHand = defaultInHand
	}
	if c.Cron == "" {
		c.Cron = "0/10 * * * * ?"
	}
	set(&c.Poll, time.Second)
	set(&c.Lease, 30*time.Second)
	set(&c.DrainTimeout, 30*time.Second)
	set(&c.UnroutableGrace, time.Minute)
	return c
}

func (c PublisherConfig) validate() error {
	var errs []error
	if c.BatchSize < 0 || c.BatchSize > dialect.MostIDs {
		errs = append(errs, fmt.Errorf("outbox.PublisherConfig.BatchSize is %d: it must be between 1 and %d (0 means 100)", c.BatchSize,
			dialect.MostIDs))
	}
	if c.MaxInHand < 0 {
		errs = append(errs, fmt.Errorf("outbox.PublisherConfig.MaxInHand is %d: it must not be negative (0 means 16 MiB)", c.MaxInHand))
	}
	if c.Cron != "" {
		if _, err := schedule.Parse(c.Cron); err != nil {
			errs = append(errs, fmt.Errorf("outbox.PublisherConfig.Cron: %w", err))
		}
	}
	if err := c.Retention.validate(); err != nil {
		errs = append(errs, fmt.Errorf("outbox.PublisherConfig.Retention: %w", err))
	}
	for _, f := range []struct {
		name     string
		v, least time.Duration
	}{
		{"Poll", c.Poll, time.Millisecond},
		{"Lease", c.Lease, 100 * time.Millisecond},
		{"DrainTimeout", c.DrainTimeout, time.Millisecond},
		{"UnroutableGrace", c.UnroutableGrace, 0},
	} {
		if f.v != 0 && f.v < f.least {
			errs = append(errs, fmt.Errorf("outbox.PublisherConfig.%s is %v: it must be at least %v (0 means the default)", f.name, f.v, f.least))
		}
	}
	return errors.Join(errs...)
}

// Publisher brings committed events to the consumers of a bus.
type Publisher struct {
	ob    *Outbox
	bus   *bus.Bus
	cfg   PublisherConfig
	cron  schedule.Spec
	name  string // unique among those that run, with a number for every further publisher of this process
	owner string // of leases: the name, and which run of it this is

	sessions atomic.Int32 // open ones: Run and RunOnce may be at work at a time
	tables   atomic.Bool  // they were seen to be those of this release
	handover *due.Handover

	retention *Retention // nil if it is off
}

// NewPublisher returns a publisher from ob to the consumers of b, which have to work on the same pool. All mistakes, those
// in cfg and those in everything that was registered with b, are reported at once, each with its name.
func NewPublisher(ob *Outbox, b *bus.Bus, cfg PublisherConfig) (*Publisher, error) {
	if ob == nil || b == nil {
		return nil, errors.New("outbox.NewPublisher: the outbox and the bus must not be nil: NewPublisher(ob, b, outbox.PublisherConfig{}) " +
			"with ob, err := outbox.New(db, outbox.Config{}) and b := bus.New(db, bus.Config{})")
	}
	if err := errors.Join(b.Err(), sameDatabase(ob, b), cfg.validate(), ob.notify.check(cfg)); err != nil {
		return nil, fmt.Errorf("outbox.NewPublisher: %w", err)
	}
	cfg = cfg.withDefaults()
	cron, err := schedule.Parse(cfg.Cron)
	if err != nil {
		return nil, fmt.Errorf("outbox.PublisherConfig.Cron: %w", err)
	}
	p := &Publisher{ob: ob, bus: b, cfg: cfg, cron: cron, handover: due.NewHandover()}
	if cfg.Retention.Keep >= 0 {
		if p.retention, err = newRetention(ob, cfg.Retention); err != nil {
			return nil, fmt.Errorf("outbox.NewPublisher: %w", err)
		}
	}
	ob.notify.use(cfg)
	p.name = ob.here.name(ob.cfg.Instance)
	p.owner = instance.Run(p.name)
	return p, nil
}

// sameDatabase refuses a bus whose consumers work elsewhere: their mark and their effect would not be where the event is. It
// compares pools: whether two of them lead to one database only the database could tell, and nobody asks it before Run.
func sameDatabase(ob *Outbox, b *bus.Bus) error {
	if b.WorksIn(ob.db) {
		return nil
	}
	return errors.New("the bus and the outbox work on different pools: give both the same *bun.DB, outbox.New(db, outbox.Config{}) and " +
		"bus.New(db, bus.Config{}); " +
		"two pools are refused even if both are of one database, because nothing here can tell")
}

// Run publishes until ctx ends, then drains and returns nil. While the database cannot be
// reached it says so once and keeps trying. It returns an error if the tables are not those of
// this release when it starts (run migrations.Up before), if something was registered with the bus
// after the first publisher had started, or if the drain time was not enough for the handlers that ran. It removes what was
// delivered long enough ago, too: see PublisherConfig.Retention.
func (p *Publisher) Run(ctx context.Context) error {
	if err := p.bus.Err(); err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	retention, err := p.retentionToRun()
	if err != nil {
		return err
	}
	s := p.open()
	wake := make(chan struct{}, 1)
	p.ob.here.subscribe(p, func() { signal(wake) })
	defer p.ob.unseen.unsubscribe(p)
	if err := s.enroll(ctx); err != nil {
		closed := s.close()
		if ctx.Err() != nil {
			return closed // it ended before the database came back
		}
		return errors.Join(err, closed)
	}
	p.ob.logger.InfoContext(ctx, "publisher runs", "instance", p.owner, "consumers", describe(s.consumers))
	s.succeedPredecessor(ctx)
	s.background.Go(func() { s.keepAlive(ctx) })
	s.background.Go(func() { s.heartbeat().Run(ctx, s.stop, s.signs) })
	defer s.gauges().Register(context.WithoutCancel(ctx), s.signs)()
	if retention != nil {
		s.background.Go(func() { _ = retention.Run(ctx) }) // it says by itself what fails, and always returns nil
	}
	p.ob.here.took(p, true)
	endListening := p.ob.notify.listen(ctx, p.cfg, wake)
	s.loop(ctx, wake)
	endListening()
	p.ob.here.took(p, false)
	err = s.close()
	p.ob.logger.InfoContext(context.WithoutCancel(ctx), "publisher stopped", "instance", p.owner, "drained", err == nil)
	if late := p.bus.Err(); late != nil {
		return errors.Join(fmt.Errorf("outbox: %w", late), err)
	}
	return err
}

// retentionToRun is the retention that runs beside the publisher, or nil: if the program has made one by itself, that one is
// the policy of the program, and the default must not remove what it keeps.
func (p *Publisher) retentionToRun() (*Retention, error) {
	switch {
	case !p.ob.here.hasRetention():
		return p.retention, nil
	case p.cfg.Retention == RetentionConfig{} || p.retention == nil:
		return nil, nil //nolint:nilnil // none is no error
	}
	return nil, errors.New("outbox.PublisherConfig.Retention is set, and outbox.NewRetention has made another retention of this outbox: " +
		"leave one of them out, because both would remove the same events by different rules")
}

// Report says what one [Publisher.RunOnce] did.
type Report struct {
	Claimed int `json:"claimed"` // events claimed
	Retried int `json:"retried"` // deliveries run from the retry queues
}

// RunOnce publishes what is due now, retries included, waits for its deliveries, and returns. It leaves alone what must
// wait for an event that another instance has in hand, or for one that has failed, and delivers everything else, however
// much that is: also what is saved meanwhile, and what had to wait for its own deliveries.
func (p *Publisher) RunOnce(ctx context.Context) (Report, error) {
	if err := p.bus.Err(); err != nil {
		return Report{}, fmt.Errorf("outbox: %w", err)
	}
	s := p.open()
	err := s.checkTables(ctx)
	if err == nil {
		err = s.once(ctx)
	}
	closed := s.close()
	return Report{Claimed: int(s.claimed.Load()), Retried: int(s.rollUps.Deliveries())}, errors.Join(err, closed)
}

// PublisherJob is the durable code of the publisher in lists of jobs.
const PublisherJob = "outbox_publisher"

// Schedule is the code of the publisher and the cron expression of its safety net.
func (p *Publisher) Schedule() (code, cron string) { return PublisherJob, p.cfg.Cron }

// RunNow is [Publisher.RunOnce] with its report by name.
func (p *Publisher) RunNow(ctx context.Context) (counts map[string]int64, err error) {
	r, err := p.RunOnce(ctx)
	return map[string]int64{"claimed": int64(r.Claimed), "retried": int64(r.Retried)}, err
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
