package bus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sort"
	"strings"

	"github.com/uptrace/bun"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/text"
)

// Config configures a [Bus]. The zero value works.
type Config struct {
	// Logger receives one line per outcome, never a payload. Default: slog.Default().
	Logger *slog.Logger
	// TracerProvider makes the consumer spans. Default: the global provider.
	TracerProvider trace.TracerProvider
	// MeterProvider makes the instruments. Default: the global provider.
	MeterProvider metric.MeterProvider
	// OnDeadLetter is called after a delivery has become DEAD and that is stored, from
	// several goroutines at a time. It should only raise an alert; a slow one
	// holds up its lane. Default: none (a DEAD delivery is always logged as an
	// error and counted).
	OnDeadLetter func(ctx context.Context, d DeadLetter)
}

// DeadLetter is a delivery that the engine has given up.
type DeadLetter struct {
	Envelope Envelope // the event
	Consumer string   // its name
	Key      string   // what an operator's call and the tables know it by; the name unless it was renamed
	Attempts int      // runs that counted, the last one included
	Error    string   // of the last run, cut to what the consume log keeps
}

// Bus holds the consumers of one process. A publisher runs their deliveries.
// Register everything before the first publisher runs. Nothing panics: outbox.NewPublisher returns what was registered
// wrongly, all at once ([Bus.Err]).
type Bus struct {
	access // with which handler.Of gets at what is registered
	all    *handler.Registrations

	// all's lock guards the following.
	consumers []*Consumer
	taken     map[string]*Consumer // by their names and keys in lower case
	around    []func(next HandlerFunc) HandlerFunc
	mistakes  []error // of the wiring
}

type access = handler.Access

// New returns a bus whose consumers work in db: that of the outbox. Mistakes in what is registered with it, and a db that is
// nil or not MySQL, MariaDB, PostgreSQL or SQLite, are returned by outbox.NewPublisher, all at once.
func New(db *bun.DB, cfg Config) *Bus {
	all := handler.NewRegistrations()
	all.DB, all.Logger, all.Tracer = db, cfg.Logger, telemetry.Tracer(cfg.TracerProvider)
	if cfg.OnDeadLetter != nil {
		all.OnDeadLetter = func(ctx context.Context, d handler.DeadLetter) {
			cfg.OnDeadLetter(ctx, DeadLetter{Envelope: envelopeOf(d.Event), Consumer: d.Consumer, Key: d.Key, Attempts: d.Attempts, Error: d.Error})
		}
	}
	if all.Logger == nil {
		all.Logger = slog.Default()
	}
	b := &Bus{access: handler.AccessTo(all), all: all, taken: make(map[string]*Consumer)}
	if db == nil {
		b.refuse(errors.New("bus.New: db is nil: give it the database of the outbox, bus.New(db, bus.Config{})"))
		return b
	}
	var err error
	if all.Log, err = store.OpenLog(db); err != nil {
		b.refuse(fmt.Errorf("bus.New: %w", err))
	}
	if all.Metrics, err = telemetry.NewMetrics(cfg.MeterProvider); err != nil {
		b.refuse(fmt.Errorf("bus.New: %w", err))
	}
	return b
}

// Consumer registers a consumer. Its name is what people read; its identity in the database is
// [ConsumerConfig.Key], which is the name unless cfg says otherwise. A name or key that is not valid or is that of
// another consumer (also but for case), mistakes in cfg, and a consumer that is given no handler are mistakes
// that outbox.NewPublisher returns.
func (b *Bus) Consumer(name string, cfg ConsumerConfig) *Consumer {
	c := &Consumer{access: b.access, bus: b, c: handler.NewConsumer(b.all, name, cmp.Or(cfg.Key, name), cfg.handled())}
	b.all.Lock()
	defer b.all.Unlock()
	if b.isLate("bus.Consumer " + text.Quote(name)) {
		return c
	}
	if mistakes := c.mistakes(cfg); len(mistakes) > 0 {
		for _, err := range mistakes {
			b.refuse(err)
		}
		return c
	}
	b.taken[strings.ToLower(name)], b.taken[strings.ToLower(c.Key())] = c, c
	b.consumers = append(b.consumers, c)
	b.all.Consumers = append(b.all.Consumers, c.c)
	return c
}

// mistakes are those of a consumer that is about to be registered. It needs the lock of what is registered.
func (c *Consumer) mistakes(cfg ConsumerConfig) (mistakes []error) {
	if err := text.ConsumerName("bus.Consumer: name", c.Name()); err != nil {
		mistakes = append(mistakes, err)
	}
	if err := cfg.validate(); err != nil {
		mistakes = append(mistakes, fmt.Errorf("bus.Consumer %q: %w", c.Name(), err))
	}
	if cfg.Replayable {
		if err := text.Key("bus.Consumer: key of a replayable consumer", store.ReplayName(c.Key()), 128); err != nil {
			mistakes = append(mistakes, err)
		}
	}
	one, two := c.bus.taken[strings.ToLower(c.Name())], c.bus.taken[strings.ToLower(c.Key())]
	if one != nil {
		mistakes = append(mistakes, c.collides(one))
	}
	if two != nil && two != one {
		mistakes = append(mistakes, c.collides(two))
	}
	return mistakes
}

// collides says which of its two names the consumer shares with another: an operator could not tell
// the two apart, nor a table whose collation ignores case.
func (c *Consumer) collides(other *Consumer) error {
	for _, mine := range []struct{ what, is string }{{"name", c.Name()}, {"Key", c.Key()}} {
		for _, theirs := range []struct{ what, is string }{{"name", other.Name()}, {"Key", other.Key()}} {
			if strings.EqualFold(mine.is, theirs.is) {
				return fmt.Errorf("bus.Consumer %q: its %s %q collides with the %s %q of consumer %q: give it another (not only in case)",
					c.Name(), mine.what, mine.is, theirs.what, theirs.is, other.Name())
			}
		}
	}
	return nil
}

// Unconsumed declares event types that are saved although nobody consumes them. Such
// events become SENT at once; others without a consumer are parked and reported.
func (b *Bus) Unconsumed(eventTypes ...string) {
	b.all.Lock()
	defer b.all.Unlock()
	if b.isLate(fmt.Sprintf("bus.Unconsumed %q", eventTypes)) {
		return
	}
	for _, t := range eventTypes {
		if err := text.EventType("bus.Unconsumed: event type", t); err != nil {
			b.refuse(err)
			continue
		}
		b.all.Unconsumed[t] = struct{}{}
	}
}

// Upcaster turns a stored payload of one schema version into the next. If it returns an error or panics, the delivery is DEAD at
// once.
type Upcaster func(payload json.RawMessage) (json.RawMessage, error)

// Upcast registers the step from version `from` of an event type to `from`+1. Steps are
// chained before the payload is decoded. A second step for the same version, and one that no handler
// needs, are mistakes that outbox.NewPublisher returns.
func (b *Bus) Upcast(eventType string, from int, up Upcaster) {
	b.all.Lock()
	defer b.all.Unlock()
	if b.isLate("bus.Upcast " + text.Quote(eventType)) {
		return
	}
	if err := checkUpcast(eventType, from, up); err != nil {
		b.refuse(err)
		return
	}
	if b.all.Upcasters[eventType] == nil {
		b.all.Upcasters[eventType] = make(map[int]handler.Upcaster)
	}
	if b.all.Upcasters[eventType][from] != nil {
		b.refuse(fmt.Errorf("bus.Upcast %q from version %d: there is such a step already", eventType, from))
		return
	}
	b.all.Upcasters[eventType][from] = up
}

func checkUpcast(eventType string, from int, up Upcaster) error {
	switch err := text.EventType("bus.Upcast: event type", eventType); {
	case err != nil:
		return err
	case from < 1:
		return fmt.Errorf("bus.Upcast %q: from is %d: it must be at least 1, the first version", eventType, from)
	case up == nil:
		return fmt.Errorf("bus.Upcast %q from version %d: the function is nil: it turns a payload of version %d into one of version %d",
			eventType, from, from, from+1)
	}
	return nil
}

// Consumers lists the registered consumers by name.
func (b *Bus) Consumers() []*Consumer {
	b.all.Lock()
	defer b.all.Unlock()
	out := append([]*Consumer(nil), b.consumers...)
	sort.Slice(out, func(i, j int) bool { return out[i].Name() < out[j].Name() })
	return out
}

// Runner is anything that works until its context ends, and then drains.
type Runner interface {
	// Run works until ctx ends, then drains, and returns nil; an error says why it ended before.
	Run(ctx context.Context) error
}

// Run runs the runners side by side until ctx ends or one of them fails, which stops
// the others. It returns the first failure, and nil after an orderly end. A runner that is nil is refused before any starts.
func Run(ctx context.Context, runners ...Runner) error {
	var errs []error
	for i, r := range runners {
		if isNil(r) {
			errs = append(errs, fmt.Errorf("bus.Run: runner %d of %d is nil: check the error of its constructor, such as pub, err := "+
				"outbox.NewPublisher(ob, b, cfg), "+
				"and run what it returned, bus.Run(ctx, pub)", i+1, len(runners)))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error)
	for _, r := range runners {
		go func() { ended <- r.Run(ctx) }()
	}
	var first error
	for range runners {
		if err := <-ended; err != nil && first == nil {
			first = err
			stop()
		}
	}
	return first
}

func isNil(r Runner) bool {
	if r == nil {
		return true
	}
	v := reflect.ValueOf(r)
	return v.Kind() == reflect.Pointer && v.IsNil()
}
