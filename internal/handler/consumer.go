package handler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/bluecone-go/bluecone/internal/eventrow"
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
}

const backoffCap = 10 * time.Minute

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
	if immutable(h.Type) {
		h.shared = h.Type
	}
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

// RunsAlone reports whether an event of the type has to be alone in its transaction: a handler of it has sent SQL that may end one.
func (c *Consumer) RunsAlone(eventType string) bool {
	h := c.handlers[eventType]
	return h != nil && h.alone.Load()
}

// Knows reports whether the consumer has a handler for the event type that knows the schema version: its own one or,
// by way of upcasters, one before it.
func (c *Consumer) Knows(eventType string, version int) bool {
	h := c.handlers[eventType]
	return h != nil && version <= h.Version
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
	if c.Config.MaxAttempts > 0 {
		return c.Config.MaxAttempts
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

// Backoff is how long a delivery waits after its failed attempt number n: see bus.Backoff.
func Backoff(n int) time.Duration {
	whole := backoffCap
	if n < 10 {
		whole = min(time.Second<<max(n, 0), backoffCap)
	}
	return whole/2 + rand.N(whole/2+1)
}
