package handler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/bluecone-go/bluecone/internal/contain"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// Config is that of a consumer, with defaults filled in: see bus.ConsumerConfig.
type Config struct {
	Unordered bool
	// PassDead lets later events of an aggregate pass a DEAD delivery.
	PassDead    bool
	Concurrency int
	Batch       int
	Queue       int
	Rate        float64
	MaxAttempts int
	Timeout     time.Duration
	Replayable  bool
	SlowCadence time.Duration
	MaxAge      time.Duration
	Backoff     func(attempt int) time.Duration // nil for the default
	StartFrom   time.Time                       // zero for none of the past
}

// WithDefaults fills in what is zero.
func (c Config) WithDefaults() Config {
	c.Concurrency = orDefault(c.Concurrency, 4)
	c.Batch = orDefault(c.Batch, MaxBatch)
	c.Queue = orDefault(c.Queue, defaultQueue)
	c.Timeout = orDefault(c.Timeout, defaultTimeout)
	return c
}

func orDefault[T int | time.Duration](v, def T) T {
	if v == 0 {
		return def
	}
	return v
}

// Consumer is one receiver of events.
type Consumer struct {
	Name    string // what people read
	Key     string // what the database holds
	Config  Config
	Replays *Consumer // the consumer of which this one runs the replays; nil for an ordinary one
	// Broker tells what is known of the broker that the consumer gives events to; nil if it gives them to none.
	Broker func(ctx context.Context) store.Broker

	of       *Registrations
	handlers map[string]*Handler
}

// NewConsumer returns a consumer without handlers, which is not registered yet.
func NewConsumer(of *Registrations, name, key string, cfg Config) *Consumer {
	return &Consumer{Name: name, Key: key, Config: cfg.WithDefaults(), of: of, handlers: make(map[string]*Handler)}
}

// ReplaysAs is a consumer that runs the replays of c, with c's handlers.
func (c *Consumer) ReplaysAs(name, key string, cfg Config) *Consumer {
	return &Consumer{Name: name, Key: key, Config: cfg, Replays: c, of: c.of, handlers: c.handlers}
}

// Add registers the handler of an event type.
func (c *Consumer) Add(h *Handler) {
	h.spanName = "consume " + h.EventType
	h.tooLong = fmt.Errorf("the handler of %s in %s exceeded its timeout of %v", h.EventType, c.Name, c.Config.Timeout)
	c.handlers[h.EventType] = h
}

// EventTypes lists the event types the consumer handles, sorted.
func (c *Consumer) EventTypes() []string {
	types := make([]string, 0, len(c.handlers))
	for t := range c.handlers {
		types = append(types, t)
	}
	slices.Sort(types)
	return types
}

// ExternalTypes lists the event types that the consumer handles without a transaction, sorted.
func (c *Consumer) ExternalTypes() []string {
	var types []string
	for _, t := range c.EventTypes() {
		if c.handlers[t].External {
			types = append(types, t)
		}
	}
	return types
}

// Handler is that of an event type, nil if there is none.
func (c *Consumer) Handler(eventType string) *Handler { return c.handlers[eventType] }

// IsExternal reports whether the consumer handles the event type without a transaction.
func (c *Consumer) IsExternal(eventType string) bool {
	h := c.handlers[eventType]
	return h != nil && h.External
}

// Joins reports whether events of the two types may be in one batch.
func (c *Consumer) Joins(one, other string) bool {
	a, b := c.handlers[one], c.handlers[other]
	if a == nil || b == nil || (!a.External && !b.External) {
		return true
	}
	return a.External && a.joins(b)
}

// IsExternalBatch reports whether the consumer handles many events of the type in one call without a transaction.
func (c *Consumer) IsExternalBatch(eventType string) bool {
	h := c.handlers[eventType]
	return h != nil && h.External && h.Batch
}

// RunsAlone reports whether an event of the type has to be alone in its transaction: a handler of it has sent SQL that may end one.
func (c *Consumer) RunsAlone(eventType string) bool {
	h := c.handlers[eventType]
	return h != nil && h.alone.Load()
}

// Knows reports whether the consumer has a handler for the event type that knows the schema version: its own one or,
// by way of upcasters, one before it.
func (c *Consumer) Knows(eventType string, version int) bool {
	h := c.handlers[eventType]
	return h != nil && (h.Raw || version <= h.Version)
}

// IsVersioned reports whether the consumer knows a schema version that others may not know.
func (c *Consumer) IsVersioned() bool {
	for _, h := range c.handlers {
		if h.Version > 1 {
			return true
		}
	}
	return false
}

// MaxAttempts is after how many failed attempts a delivery of the event is DEAD.
func (c *Consumer) MaxAttempts(event *eventrow.Row) int {
	switch {
	case c.Config.MaxAttempts > 0:
		return c.Config.MaxAttempts
	case c.IsExternal(event.Type):
		return max(event.MaxAttempts, externalAttempts)
	}
	return max(event.MaxAttempts, 1)
}

// MaxAge is how long after its first run a delivery is tried again, 0 for no limit.
func (c *Consumer) MaxAge(eventType string) time.Duration {
	switch {
	case c.Config.MaxAge != 0:
		return max(c.Config.MaxAge, 0)
	case c.Config.SlowCadence > 0:
		return 0
	case c.IsExternal(eventType):
		return maxAgeExternal
	}
	return maxAge
}

// GivenUp is the error of a delivery that is too old to be tried again: its age since its first run, its limit, and its last error.
func GivenUp(age, limit time.Duration, last string) string {
	return fmt.Sprintf("given up %v after its first run, because ConsumerConfig.MaxAge is %v: %s", age.Round(time.Second), limit, last)
}

// Backoff is how long a delivery of an event of the type waits after its failed attempt number n. A function of the user's that panics or
// answers a negative time is not asked: the default counts, and the log says so.
func (c *Consumer) Backoff(ctx context.Context, eventType string, n int) time.Duration {
	if c.Config.Backoff == nil {
		return c.defaultBackoff(eventType, n)
	}
	d, err := CallBackoff(c.Config.Backoff, n)
	if err != nil {
		c.of.Logger.ErrorContext(ctx, "the consumer's Backoff has failed; the default is used", telemetry.Consumer, c.Name, telemetry.Err, err)
		return c.defaultBackoff(eventType, n)
	}
	return d
}

func (c *Consumer) defaultBackoff(eventType string, n int) time.Duration {
	if c.IsExternal(eventType) {
		return backoffExternal(n)
	}
	return Backoff(n)
}

// CallBackoff asks a function of the user's. It reports a panic and a negative time as errors.
func CallBackoff(fn func(attempt int) time.Duration, n int) (d time.Duration, err error) {
	err = contain.Call("ConsumerConfig.Backoff", func() error {
		d = fn(n)
		return nil
	})
	if p, ok := errors.AsType[*contain.PanicError](err); ok {
		return 0, fmt.Errorf("ConsumerConfig.Backoff(%d) panicked: %v: it must answer a duration for every attempt", n, p.Value)
	}
	if d < 0 {
		return 0, fmt.Errorf("ConsumerConfig.Backoff(%d) is %v: it must not be negative; 0 means at once", n, d)
	}
	return d, nil
}

// Backoff is the default of handlers with a transaction: see bus.Backoff.
func Backoff(n int) time.Duration {
	whole := doubled(n, backoffCap)
	return whole/2 + rand.N(whole/2+1)
}

// backoffExternal is the default of external handlers: 2^n seconds, a quarter more or less, at most a day.
func backoffExternal(n int) time.Duration {
	whole := doubled(n, backoffCapExternal)
	return min(whole*3/4+rand.N(whole/2+1), backoffCapExternal)
}

// doubled is 2^n seconds, at most limit.
func doubled(n int, limit time.Duration) time.Duration {
	if n > 20 {
		return limit
	}
	return min(time.Second<<max(n, 0), limit)
}
