package outbox

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/instance"
	"github.com/bluecone-go/bluecone/internal/schedule"
)

// PublisherConfig configures a [Publisher]. The zero value works.
type PublisherConfig struct {
	// BatchSize is the most events one claim takes (the demo's key is bluecone.outbox.batch-size), but in a backlog:
	// there it takes five times as many, up to 500, if the consumers have room. At most 999. Default: 100.
	BatchSize int
	// MaxInFlightBytes is how many bytes of payloads this process claims before it has delivered them, but for one event, which may
	// be larger; and as many again for deliveries from the consume log, such as retries. Default: 16 MiB.
	MaxInFlightBytes int
	// Cron is when the publisher looks at everything whether or not a hint says so
	// (the demo's key is bluecone.outbox.publisher-cron). Saving in this process wakes it within
	// milliseconds; this is the safety net. Default: "0/10 * * * * ?", every 10 s.
	Cron string
	// Poll is how often it looks for events of other processes, retries that have
	// fallen due and leases that have expired. While it has something to do it looks every
	// 250 ms, unless Poll is shorter: a backlog starves nothing that falls due. At least 1 ms. Default: 1 s.
	Poll time.Duration
	// Lease is how long events are leased; running ones are renewed at a third.
	// It is how long the events of a dead instance wait. At least 100 ms. Default: 30 s.
	Lease time.Duration
	// DrainTimeout is how long running handlers may finish after Run's context has
	// ended. At least 1 ms. Default: 30 s.
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
	if c.MaxInFlightBytes == 0 {
		c.MaxInFlightBytes = defaultInFlightBytes
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
	if c.MaxInFlightBytes < 0 {
		errs = append(errs, fmt.Errorf("outbox.PublisherConfig.MaxInFlightBytes is %d: it must not be negative (0 means 16 MiB)",
			c.MaxInFlightBytes))
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
	ob     *Outbox
	bus    *bus.Bus
	cfg    PublisherConfig
	engine *engine.Engine

	retention *Retention // nil if it is off
}

// NewPublisher returns a publisher from ob to the consumers of b, which have to work on the same pool. All mistakes, those
// in cfg and those in everything that was registered with b, are reported at once, each with its name.
func NewPublisher(ob *Outbox, b *bus.Bus, cfg PublisherConfig) (*Publisher, error) {
	if ob == nil || b == nil {
		return nil, errors.New("outbox.NewPublisher: the outbox and the bus must not be nil: NewPublisher(ob, b, outbox.PublisherConfig{}) " +
			"with ob, err := outbox.New(db, outbox.Config{}) and b := bus.New(db, bus.Config{})")
	}
	if err := errors.Join(b.Err(), sameDatabase(ob, b), hasPast(ob, b), cfg.validate(), ob.notify.check(cfg)); err != nil {
		return nil, fmt.Errorf("outbox.NewPublisher: %w", err)
	}
	cfg = cfg.withDefaults()
	cron, err := schedule.Parse(cfg.Cron)
	if err != nil {
		return nil, fmt.Errorf("outbox.PublisherConfig.Cron: %w", err)
	}
	name := ob.here.name(ob.cfg.Instance)
	p := &Publisher{ob: ob, bus: b, cfg: cfg, engine: engine.New(engine.Config{
		DB: ob.db, Dialect: ob.d, Statements: ob.stmts, Log: ob.log, Handlers: handler.Of(b), Settler: ob.settler, Meter: ob.meter,
		Malformed: ob.malformed, Metrics: ob.metrics, Logger: ob.logger, Quoting: ob.quoting,
		Identity: engine.Identity{Instance: ob.cfg.Instance, Name: name, Owner: instance.Run(name)},
		Limits: engine.Limits{
			BatchSize: cfg.BatchSize, MaxBytes: cfg.MaxInFlightBytes, Poll: cfg.Poll, Cron: cron, Lease: cfg.Lease,
			DrainTimeout: cfg.DrainTimeout, UnroutableGrace: cfg.UnroutableGrace,
		},
	})}
	if cfg.Retention.Keep >= 0 {
		if p.retention, err = newRetention(ob, cfg.Retention); err != nil {
			return nil, fmt.Errorf("outbox.NewPublisher: %w", err)
		}
	}
	ob.notify.use(cfg)
	return p, nil
}

// sameDatabase refuses a bus whose consumers work elsewhere: their mark and their effect would not be where the event is. It
// compares pools: whether two of them lead to one database only the database could tell, and nobody asks it before Run.
func sameDatabase(ob *Outbox, b *bus.Bus) error {
	if handler.Of(b).WorksIn(ob.db) {
		return nil
	}
	return errors.New("the bus and the outbox work on different pools: give both the same *bun.DB, outbox.New(db, outbox.Config{}) and " +
		"bus.New(db, bus.Config{}); " +
		"two pools are refused even if both are of one database, because nothing here can tell")
}

// hasPast refuses a consumer that wants the past of an outbox that keeps none.
func hasPast(ob *Outbox, b *bus.Bus) error {
	var errs []error
	for _, c := range handler.Of(b).ByName() {
		if ob.cfg.DeleteSent && !c.Config.StartFrom.IsZero() {
			errs = append(errs, fmt.Errorf("the consumer %s has a ConsumerConfig.StartFrom, and outbox.Config.DeleteSent leaves no past: "+
				"leave one of them out", c.Name))
		}
	}
	return errors.Join(errs...)
}

// Run publishes until ctx ends, then drains and returns nil. While the database cannot be
// reached it says so once and keeps trying. It returns an error if the tables are not those of
// this release when it starts (run migrations.Up before), if something was registered with the bus
// after the first publisher had started, if the program closes the *bun.DB while it runs, or if the drain time was not enough for the
// handlers that ran. It removes what was delivered long enough ago, too: see PublisherConfig.Retention.
func (p *Publisher) Run(ctx context.Context) error {
	if err := p.bus.Err(); err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	retention, err := p.retentionToRun()
	if err != nil {
		return err
	}
	p.ob.here.subscribe(p)
	defer p.ob.unseen.unsubscribe(p)
	err = p.engine.Run(ctx, func(ctx context.Context) {
		defer p.ob.notify.listen(ctx, p.cfg, p.engine.Wake)()
		if retention != nil {
			_ = retention.Run(ctx) // it says by itself what fails, and always returns nil
		}
		<-ctx.Done()
	})
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
// wait for an event that another instance has leased, or for one that has failed, and delivers everything else, however
// much that is: also what is saved meanwhile, and what had to wait for its own deliveries.
//
// The errors are those of [Publisher.Run], and here also those of the database: RunOnce does not wait until it answers again. When
// ctx ends, RunOnce drains, and returns what it has done, with the error of ctx.
func (p *Publisher) RunOnce(ctx context.Context) (Report, error) {
	if err := p.bus.Err(); err != nil {
		return Report{}, fmt.Errorf("outbox: %w", err)
	}
	claimed, retried, err := p.engine.Once(ctx)
	return Report{Claimed: claimed, Retried: retried}, err
}

// PublisherJob is the durable code of the publisher in lists of jobs.
const PublisherJob = "outbox_publisher"

// Schedule is the code of the publisher and the cron expression of its safety net.
func (p *Publisher) Schedule() (code, cron string) { return PublisherJob, p.cfg.Cron }

// RunNow is [Publisher.RunOnce] with its report by name, and with its errors.
func (p *Publisher) RunNow(ctx context.Context) (counts map[string]int64, err error) {
	r, err := p.RunOnce(ctx)
	return map[string]int64{"claimed": int64(r.Claimed), "retried": int64(r.Retried)}, err
}

// publishers are those of this process.
type publishers struct {
	mu         sync.Mutex
	made       int
	subscribed map[*Publisher]struct{} // those whose Run has begun
	wasRun     bool                    // Run of one of them was called
	cleans     bool                    // the program has made a retention by itself
}

func newPublishers() publishers {
	return publishers{subscribed: make(map[*Publisher]struct{})}
}

// name is the instance name, with a number for every further publisher of this process.
func (h *publishers) name(instance string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.made++
	if h.made == 1 {
		return instance
	}
	suffix := "#" + strconv.Itoa(h.made)
	return instance[:min(len(instance), 64-len(suffix))] + suffix
}

// subscribe has a publisher woken after every commit of this process, until unsubscribe.
func (h *publishers) subscribe(p *Publisher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.subscribed[p], h.wasRun = struct{}{}, true
}

func (h *publishers) unsubscribe(p *Publisher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.subscribed, p)
}

// ownRetention notes that the program has made a retention by itself.
func (h *publishers) ownRetention() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cleans = true
}

func (h *publishers) hasRetention() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cleans
}

// any reports whether Run of a publisher has begun and not ended.
func (h *publishers) any() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.subscribed) > 0
}

// Publishing reports whether a publisher of this outbox takes events in this process now, and whether one should: one
// should as soon as [Publisher.Run] has been called. A publisher whose context has ended drains, and takes none.
func (o *Outbox) Publishing() (running, expected bool) {
	o.here.mu.Lock()
	defer o.here.mu.Unlock()
	for p := range o.here.subscribed {
		running = running || p.engine.IsTaking()
	}
	return running, o.here.wasRun
}
