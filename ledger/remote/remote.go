// Package remote runs the handlers of a bus on what a ledger delivers: a module that has left the monolith registers its handlers as
// before, and gets its events by calls.
//
// What handlers with a transaction do happens exactly once: their transaction also writes a row into the consume log of the service's
// own database ("local log"), so an event that comes again, because its acknowledgement was lost, is only acknowledged. What handlers
// of bus.OnExternal do happens at least once, and a consumer that has lost its lease is told so by the end of its context ("ledger
// only"): see docs/guides/idempotent-handlers.md.
package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/spi"
	"github.com/bluecone-go/bluecone/ledger"
)

// Config configures the consumers of a process.
type Config struct {
	// Consumers are the keys of those that get their events from the ledger. Default: all of the bus.
	Consumers []string
	// Max is how many deliveries a consumer has in flight at most, 1 to 500. Default: 100.
	Max int
	// Wait is how long one Fetch waits for deliveries, at most 60 s. Default: 30 s.
	Wait time.Duration
	// Heartbeat is how often the lease of what is in flight is renewed: less than half of the ledger's --lease. Default: 5 s.
	Heartbeat time.Duration
	// Drain is how long Run goes on, when its context has ended, with what is in flight. Default: 20 s.
	Drain time.Duration
	// Logger receives what goes wrong, never a payload. Default: slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Max = cmp.Or(c.Max, 100)
	c.Wait = cmp.Or(c.Wait, 30*time.Second)
	c.Heartbeat = cmp.Or(c.Heartbeat, 5*time.Second)
	c.Drain = cmp.Or(c.Drain, 20*time.Second)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.Max < 1 || c.Max > 500 {
		errs = append(errs, fmt.Errorf("remote.Config.Max is %d: it must be between 1 and 500 (0 means 100)", c.Max))
	}
	if c.Wait < time.Second || c.Wait > time.Minute {
		errs = append(errs, fmt.Errorf("remote.Config.Wait is %v: it must be between 1 s and 60 s (0 means 30 s)", c.Wait))
	}
	if c.Heartbeat < 0 || c.Heartbeat > 30*time.Second {
		errs = append(errs, fmt.Errorf("remote.Config.Heartbeat is %v: it must be at most 30 s (0 means 5 s)", c.Heartbeat))
	}
	if c.Drain < 0 {
		errs = append(errs, fmt.Errorf("remote.Config.Drain is %v: it must not be negative (0 means 20 s)", c.Drain))
	}
	return errors.Join(errs...)
}

// Runner runs the deliveries of a process. It is a bus.Runner.
type Runner struct {
	cfg     Config
	bus     *bus.Bus
	client  *ledger.Client
	runners []*spi.PulledConsumer
}

// Consumer feeds the registrations of b by Fetch and Ack of a ledger: bus.Run runs what it returns. The handlers are those that a
// publisher would call; at the ledger a consumer has the name that it has there, its key, so it goes on where publishers stopped.
// Order, retries, DEAD and pauses are the ledger's: of a consumer's configuration Key, Concurrency, Batch, Rate, Timeout and
// MaxAge count here.
// With a Rate a consumer has no more in flight than starts within a second.
// An answer bus.RetryAfter or bus.Unavailable, and an error that says that the other side was not reached, as a publisher sees it, keeps
// the delivery here, with its lease, until its time has come, and does not count. When its first run here was as long ago as MaxAge, it
// is DEAD. When the process ends, it comes again as soon as its lease has ended.
// Messages have no OutboxID, StoreID and CreatedAt, which the ledger does not tell.
//
// All mistakes, those in cfg and those in what was registered, are returned at once. Nothing can be registered afterwards.
func Consumer(b *bus.Bus, client *ledger.Client, cfg Config) (*Runner, error) {
	if b == nil || client == nil {
		return nil, errors.New("remote.Consumer: the bus and the client must not be nil: make them by bus.New and ledger.NewClient")
	}
	cfg = cfg.withDefaults()
	if err := errors.Join(b.Err(), cfg.validate()); err != nil {
		return nil, fmt.Errorf("remote.Consumer: %w", err)
	}
	r := &Runner{cfg: cfg, bus: b, client: client}
	wanted := slices.Clone(cfg.Consumers)
	for _, c := range spi.PulledConsumers(b) {
		if len(cfg.Consumers) == 0 || slices.Contains(cfg.Consumers, c.Key()) {
			r.runners = append(r.runners, c)
			wanted = slices.DeleteFunc(wanted, func(key string) bool { return key == c.Key() })
		}
	}
	switch {
	case len(wanted) > 0:
		return nil, fmt.Errorf("remote.Config.Consumers: the bus has no consumer with the key %q", wanted[0])
	case len(r.runners) == 0:
		return nil, errors.New("remote.Consumer: the bus has no consumer")
	}
	return r, nil
}

// Run fetches, handles and acknowledges until ctx ends; then it fetches nothing more, ends what it has in flight, and returns nil. It
// waits for a ledger or a database that is away. It returns an error at the start if the ledger refuses a consumer, or if the database
// has no consume log.
func (r *Runner) Run(ctx context.Context) error {
	for _, c := range r.runners {
		if err := c.Check(ctx); err != nil {
			return fmt.Errorf("remote: %w", err)
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, c := range r.runners {
		g.Go(func() error { return newPuller(r, c).run(ctx) })
	}
	return g.Wait()
}
