package bus

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
	"time"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/text"
)

// OnDead says what happens to later events of an aggregate when a delivery is DEAD.
type OnDead int

const (
	// Block lets them wait until an operator has retried or skipped the dead one.
	Block OnDead = iota
	// Continue lets them pass.
	Continue
)

// ConsumerConfig configures one consumer. The zero value works.
type ConsumerConfig struct {
	// Key is the consumer's identity in the database, for life: the consume log, the registry and pauses
	// carry it. To rename a consumer give it a new name and its former name as Key. A consumer with
	// another key is another consumer: it gets every new event itself. Default: the name.
	Key string
	// Unordered gives up the order of events within an aggregate. Default: false, ordered.
	Unordered bool
	// OnDead says whether later events of an aggregate wait behind a DEAD delivery. Default: Block.
	OnDead OnDead
	// Concurrency is how many batches run side by side. Default: 4 (SQLite has one writer: 1).
	Concurrency int
	// Batch is the most events in one transaction; the actual number is what recent
	// handler times let fit into about 20 ms, or 60 ms while a backlog is worked off. 1 turns batching off. Default: 500, which is the limit.
	Batch int
	// Queue is how many deliveries of new events may wait in memory, and as many of each state
	// from the consume log; more wait there. A tenth of it is kept for events that were delayed, and
	// a tenth for those whose lease has run out. Default: 1000.
	Queue int
	// Rate is the most deliveries per second in this process, retries included; more wait, and
	// nobody else waits for them. Default: 0, no limit.
	Rate float64
	// MaxAttempts is after how many failed attempts a delivery is DEAD.
	// Default: max_retry_count of the event's row (10).
	MaxAttempts int
	// Timeout ends the context of a handler call. Default: 30 s.
	Timeout time.Duration
	// Replayable lets operators give past events to the consumer again, although it has succeeded
	// with them: to rebuild what it had written, say. Its handlers see Message.Replay. A replay
	// runs in a lane of its own, one batch at a time and at a tenth of Rate, and is once more exactly
	// once. Default: false, refused.
	Replayable bool
	// SlowCadence, if set, goes on trying at this interval instead of becoming DEAD
	// when the attempts are used up. Default: 0, DEAD.
	SlowCadence time.Duration
	// MaxAge is how long after its first run a delivery that fails, whatever its answer, is still tried again;
	// after that it is DEAD. It ends what is not counted too: RetryAfter for ever, and a service that stays away.
	// Negative means no limit. Default: 24 h, 15 days for handlers registered with [OnExternal], no limit with SlowCadence.
	MaxAge time.Duration
}

const (
	maxBatch       = 500
	stuckGrace     = 5 * time.Second // how long a handler may ignore its ended context
	backoffCap     = 10 * time.Minute
	maxAge         = 24 * time.Hour
	maxAgeExternal = 15 * 24 * time.Hour

	batchTimeBox = 20 * time.Millisecond

	backlogTimeBox = 3 * batchTimeBox
	worthOverhead  = 8 // how many times as long as a transaction's overhead its handlers may take
)

func (c ConsumerConfig) withDefaults() ConsumerConfig {
	c.Concurrency = orDefault(c.Concurrency, 4)
	c.Batch = orDefault(c.Batch, maxBatch)
	c.Queue = orDefault(c.Queue, 1000)
	c.Timeout = orDefault(c.Timeout, 30*time.Second)
	return c
}

func (c ConsumerConfig) validate() error {
	var errs []error
	if c.Key != "" {
		errs = append(errs, text.ConsumerName("ConsumerConfig.Key", c.Key))
	}
	for field, n := range map[string]int{"Concurrency": c.Concurrency, "Batch": c.Batch, "Queue": c.Queue, "MaxAttempts": c.MaxAttempts} {
		if n < 0 {
			errs = append(errs, fmt.Errorf("ConsumerConfig.%s is %d: it must not be negative", field, n))
		}
	}
	if c.Batch > maxBatch {
		errs = append(errs, fmt.Errorf("ConsumerConfig.Batch is %d: the limit is %d", c.Batch, maxBatch))
	}
	if c.Rate < 0 || math.IsNaN(c.Rate) || math.IsInf(c.Rate, 0) {
		errs = append(errs, fmt.Errorf("ConsumerConfig.Rate is %v: it must be a number of deliveries per second, or 0 for no limit", c.Rate))
	}
	if c.Timeout < 0 || c.SlowCadence < 0 {
		errs = append(errs, fmt.Errorf("ConsumerConfig.Timeout is %v and SlowCadence %v: they must not be negative", c.Timeout, c.SlowCadence))
	}
	if c.OnDead != Block && c.OnDead != Continue {
		errs = append(errs, fmt.Errorf("ConsumerConfig.OnDead is %d: it must be bus.Block or bus.Continue", c.OnDead))
	}
	return errors.Join(errs...)
}

func orDefault[T int | time.Duration](v, def T) T {
	if v == 0 {
		return def
	}
	return v
}

// Consumer is one receiver of events. Give it handlers with [On], [OnBatch] and [OnExternal].
type Consumer struct {
	bus      *Bus
	name     string // what people read
	key      string // what the database holds
	cfg      ConsumerConfig
	handlers map[string]*handler
	refused  bool      // a handler was registered wrongly
	replays  *Consumer // the consumer of which this one runs the replays; nil for an ordinary one
}

// replayer is the consumer that runs the replays of c: under a key of its own in the consume log,
// with c's handlers, and slowly.
func (c *Consumer) replayer() *Consumer {
	cfg := c.cfg
	cfg.Concurrency, cfg.Batch, cfg.Rate = 1, min(cfg.Batch, replayBatch), cfg.Rate/10
	return &Consumer{bus: c.bus, name: store.ReplayName(c.name), key: store.ReplayName(c.key), cfg: cfg, handlers: c.handlers, replays: c}
}

// replayBatch is the most replays in one transaction: they are in no hurry.
const replayBatch = 10

// Replayable reports whether past events may be given to the consumer again.
func (c *Consumer) Replayable() bool { return c.cfg.Replayable }

// Name is what people read: in logs, metrics and on the console.
func (c *Consumer) Name() string { return c.name }

// Key is the consumer's identity in the database: [ConsumerConfig.Key], or its name.
func (c *Consumer) Key() string { return c.key }

// EventTypes lists the event types the consumer handles, sorted.
func (c *Consumer) EventTypes() []string {
	types := make([]string, 0, len(c.handlers))
	for t := range c.handlers {
		types = append(types, t)
	}
	sort.Strings(types)
	return types
}

// Handles reports whether the consumer has a handler for the event type.
func (c *Consumer) Handles(eventType string) bool { return c.handlers[eventType] != nil }

// Knows reports whether the consumer has a handler for the event type that knows the schema version: its own one or,
// by way of upcasters, one before it.
func (c *Consumer) Knows(eventType string, version int) bool {
	h := c.handlers[eventType]
	return h != nil && version <= h.version
}

func (c *Consumer) maxAttempts(env *Envelope) int {
	if c.cfg.MaxAttempts > 0 {
		return c.cfg.MaxAttempts
	}
	return max(env.MaxAttempts, 1)
}

// verdict decides what an attempt that answered err makes of its delivery.
func (c *Consumer) verdict(d *delivery, err error) store.Verdict {
	v := store.Verdict{Status: store.Failed, Counts: true, Error: text.Error(err)}
	var skip *skipError
	var later *retryAfterError
	switch {
	case errors.As(err, &skip):
		v.Status, v.Error = store.Skipped, skip.reason
	case IsPermanent(err):
		v.Status = store.Dead
	case errors.As(err, &later):
		v.Delay, v.Counts = later.delay, false
	case unreached(err):
		v.Counts = false // the circuit says when to try again
	case dialect.Classify(err) == dialect.Data:
		v.Status = store.Dead
	case d.attempt < c.maxAttempts(d.env):
		v.Delay = Backoff(d.attempt)
	case c.cfg.SlowCadence > 0:
		v.Delay = c.cfg.SlowCadence
	default:
		v.Status = store.Dead
	}
	if limit := c.maxAge(d.env.Type); v.Status == store.Failed && limit > 0 && d.sinceFirstRun() >= limit {
		v.Status, v.Counts = store.Dead, true
		v.Error = fmt.Sprintf("given up %v after its first run, because ConsumerConfig.MaxAge is %v: %s", d.sinceFirstRun().Round(time.Second), limit, v.Error)
	}
	return v
}

// maxAge is how long after its first run a delivery is tried again, 0 for no limit.
func (c *Consumer) maxAge(eventType string) time.Duration {
	h := c.handlers[eventType]
	switch {
	case c.cfg.MaxAge != 0:
		return max(c.cfg.MaxAge, 0)
	case c.cfg.SlowCadence > 0:
		return 0
	case h != nil && h.external:
		return maxAgeExternal
	}
	return maxAge
}

// Backoff is how long a delivery waits after its failed attempt number n (from 1):
// 2^n seconds, at most 10 minutes, of which a random part between half and the whole.
func Backoff(n int) time.Duration {
	whole := backoffCap
	if n < 10 {
		whole = min(time.Second<<max(n, 0), backoffCap)
	}
	return whole/2 + rand.N(whole/2+1)
}

// ExternalTypes lists the event types that the consumer handles with [OnExternal], sorted.
func (c *Consumer) ExternalTypes() []string {
	var types []string
	for _, t := range c.EventTypes() {
		if c.handlers[t].external {
			types = append(types, t)
		}
	}
	return types
}
