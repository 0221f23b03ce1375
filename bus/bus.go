package bus

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sort"
	"strings"
	"sync"

	"github.com/uptrace/bun"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/inject"
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
	// OnDead is called after a delivery has become DEAD and that is stored, from
	// several goroutines at a time. It should only raise an alert; a slow one
	// holds up its lane. Default: none (a DEAD delivery is always logged as an
	// error and counted).
	OnDead func(ctx context.Context, d DeadLetter)
}

// DeadLetter is a delivery that the engine has given up.
type DeadLetter struct {
	Envelope Envelope
	Consumer string // its name
	Key      string // what an operator's call and the tables know it by; the name unless it was renamed
	Attempts int
	Error    string
}

// Bus holds the consumers of one process and runs their deliveries.
// Register everything before the first publisher runs.
type Bus struct {
	db      *bun.DB
	log     *consumelog.Log
	logger  *slog.Logger
	tracer  trace.Tracer
	metrics *telemetry.Metrics
	onDead  func(ctx context.Context, d DeadLetter)

	mu         sync.Mutex
	consumers  []*Consumer
	unconsumed map[string]struct{}
	upcasters  map[string]map[int]Upcaster
	open       bool
	faults     inject.Faults
}

// New returns a bus whose consumers work in db. It panics if db's dialect is not
// MySQL, PostgreSQL or SQLite, or if db is nil.
func New(db *bun.DB, cfg Config) *Bus {
	if db == nil {
		panic("bus.New: db is nil")
	}
	log, err := consumelog.New(db)
	if err != nil {
		panic("bus.New: " + err.Error())
	}
	metrics, err := telemetry.NewMetrics(cfg.MeterProvider)
	if err != nil {
		panic("bus.New: " + err.Error())
	}
	logger := cfg.Logger
	if logger == nil {
		logger = slog.Default()
	}
	return &Bus{
		db: db, log: log, logger: logger, metrics: metrics, onDead: cfg.OnDead,
		tracer:     telemetry.Tracer(cfg.TracerProvider),
		unconsumed: make(map[string]struct{}),
		upcasters:  make(map[string]map[int]Upcaster),
	}
}

// Consumer registers a consumer. Its name is what people read; its identity in the database is
// [ConsumerConfig.Key], which is the name unless cfg says otherwise. It panics if the name or the key
// is not valid or is that of another consumer (also but for case), or if cfg has a mistake.
func (b *Bus) Consumer(name string, cfg ConsumerConfig) *Consumer {
	if err := text.ConsumerName("bus.Consumer: name", name); err != nil {
		panic(err.Error())
	}
	if err := cfg.validate(); err != nil {
		panic(fmt.Sprintf("bus.Consumer %q: %v", name, err))
	}
	c := &Consumer{bus: b, name: name, key: cmp.Or(cfg.Key, name), cfg: cfg.withDefaults(), handlers: make(map[string]*handler)}
	if cfg.Replayable {
		if err := text.Key("bus.Consumer: key of a replayable consumer", consumelog.ReplayName(c.key), 128); err != nil {
			panic(err.Error())
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mustBeClosed("Consumer " + name)
	for _, other := range b.consumers {
		if err := c.collides(other); err != nil {
			panic(err.Error())
		}
	}
	b.consumers = append(b.consumers, c)
	return c
}

// collides says which of its two names the consumer shares with another: an operator could not tell
// the two apart, nor a table whose collation ignores case.
func (c *Consumer) collides(other *Consumer) error {
	for _, mine := range []struct{ what, is string }{{"name", c.name}, {"Key", c.key}} {
		for _, theirs := range []struct{ what, is string }{{"name", other.name}, {"Key", other.key}} {
			if strings.EqualFold(mine.is, theirs.is) {
				return fmt.Errorf("bus.Consumer %q: its %s %q collides with the %s %q of consumer %q: give it one that differs by more than case",
					c.name, mine.what, mine.is, theirs.what, theirs.is, other.name)
			}
		}
	}
	return nil
}

// Unconsumed declares event types that are saved although nobody consumes them. Such
// events become SENT at once; others without a consumer are parked and reported.
func (b *Bus) Unconsumed(eventTypes ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mustBeClosed("Unconsumed")
	for _, t := range eventTypes {
		if err := text.EventType("bus.Unconsumed: event type", t); err != nil {
			panic(err.Error())
		}
		b.unconsumed[t] = struct{}{}
	}
}

// Upcaster turns a stored payload of one schema version into the next.
type Upcaster func(payload json.RawMessage) (json.RawMessage, error)

// Upcast registers the step from version `from` of an event type to `from`+1. Steps are
// chained before the payload is decoded. It panics on a second step for the same version.
func (b *Bus) Upcast(eventType string, from int, up Upcaster) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mustBeClosed("Upcast")
	if err := text.EventType("bus.Upcast: event type", eventType); err != nil {
		panic(err.Error())
	}
	if from < 1 || up == nil {
		panic(fmt.Sprintf("bus.Upcast %s: from is %d (must be at least 1) and the function must not be nil", eventType, from))
	}
	if b.upcasters[eventType] == nil {
		b.upcasters[eventType] = make(map[int]Upcaster)
	}
	if b.upcasters[eventType][from] != nil {
		panic(fmt.Sprintf("bus.Upcast %s: version %d has an upcaster already", eventType, from))
	}
	b.upcasters[eventType][from] = up
}

// Inject makes deliveries fail at chosen points. Only package bustest can make the argument.
func (b *Bus) Inject(f inject.Faults) { b.faults = f }

// Consumers lists the registered consumers by name.
func (b *Bus) Consumers() []*Consumer {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := append([]*Consumer(nil), b.consumers...)
	sort.Slice(out, func(i, j int) bool { return out[i].name < out[j].name })
	return out
}

// Log is the consume log the bus writes to.
func (b *Bus) Log() *consumelog.Log { return b.log }

// Ignores reports whether the event type was declared [Bus.Unconsumed].
func (b *Bus) Ignores(eventType string) bool {
	_, ok := b.unconsumed[eventType]
	return ok
}

func (b *Bus) mustBeClosed(what string) {
	if b.open {
		panic("bus: " + what + " registered while a publisher runs; register everything first")
	}
}
