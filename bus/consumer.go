package bus

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/text"
)

// DeadPolicy says what happens to later events of an aggregate when a delivery is DEAD.
type DeadPolicy int

const (
	// Block lets them wait until an operator has retried or skipped the dead one.
	Block DeadPolicy = iota
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
	// DeadPolicy says whether later events of an aggregate wait behind a DEAD delivery. Default: Block.
	DeadPolicy DeadPolicy
	// Concurrency is how many batches run side by side. SQLite has one writer: there one transaction runs at a time, of all consumers
	// together, and only calls of [OnExternal] run side by side. Default: 4.
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
	// Default: max_retry_count of the event's row (10), at least 25 for handlers registered with [OnExternal].
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
	// after that it is DEAD. No wait goes beyond it: a delivery whose next run would be later runs once more then. It ends what is
	// not counted too: RetryAfter for ever, and a service that stays away.
	// Negative means no limit. Default: 24 h, 15 days for handlers registered with [OnExternal], no limit with SlowCadence.
	MaxAge time.Duration
	// Backoff says how long a delivery waits after its failed attempt number attempt, from 1; 0 means that it is due at once.
	// It is called from several goroutines, and as a check with the first 25 attempts, or up to MaxAttempts if that is more (at most
	// 1000), when the consumer is registered: one that panics or answers a negative time is a mistake. If it does so later, the default
	// counts and an error is logged. It is not called where something else says when: [RetryAfter], [Unavailable], SlowCadence.
	// Default: [Backoff], for handlers registered with [OnExternal] 2^n seconds, a quarter more or less at random, at most 24 h.
	Backoff func(attempt int) time.Duration
	// StartFrom is what the consumer gets of the past when it is registered for the first time, whichever instance does that: the
	// events of its types that were saved then or later and still have their row (see outbox.RetentionConfig.Keep), each once, in the
	// order of their aggregates, beside live events, as fast as its handlers take them. Later events of an aggregate wait behind its
	// past ones. [Beginning] is all there is. A consumer that is registered already is not changed by it; what it lacks an operator
	// can give it (ops.ActionBackfill): one that is no longer here finishes what it has begun, unless an operator cancels it. It waits
	// at an event that an instance is delivering until that has ended. A time in the future is a mistake.
	// Default: zero, nothing that was delivered before.
	StartFrom time.Time
}

// Beginning is the time before every event, for [ConsumerConfig.StartFrom].
func Beginning() time.Time { return time.Unix(0, 0).UTC() }

// handled is the configuration as the engine takes it.
func (c ConsumerConfig) handled() handler.Config {
	return handler.Config{
		Unordered: c.Unordered, PassDead: c.DeadPolicy == Continue, Concurrency: c.Concurrency, Batch: c.Batch, Queue: c.Queue, Rate: c.Rate,
		MaxAttempts: c.MaxAttempts, Timeout: c.Timeout, Replayable: c.Replayable, SlowCadence: c.SlowCadence,
		MaxAge: c.MaxAge, Backoff: c.Backoff, StartFrom: c.StartFrom,
	}
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
	if c.Batch > handler.MaxBatch {
		errs = append(errs, fmt.Errorf("ConsumerConfig.Batch is %d: the limit is %d", c.Batch, handler.MaxBatch))
	}
	if c.Rate < 0 || math.IsNaN(c.Rate) || math.IsInf(c.Rate, 0) {
		errs = append(errs, fmt.Errorf("ConsumerConfig.Rate is %v: it must be a number of deliveries per second, or 0 for no limit", c.Rate))
	}
	if c.Timeout < 0 || c.SlowCadence < 0 {
		errs = append(errs, fmt.Errorf("ConsumerConfig.Timeout is %v and SlowCadence %v: they must not be negative", c.Timeout, c.SlowCadence))
	}
	if c.StartFrom.After(time.Now()) {
		errs = append(errs, fmt.Errorf("ConsumerConfig.StartFrom is %v, which is in the future: it must be a time in the past, or "+
			"bus.Beginning(); whatever is saved after its registration a consumer gets anyway", c.StartFrom))
	}
	if c.DeadPolicy != Block && c.DeadPolicy != Continue {
		errs = append(errs, fmt.Errorf("ConsumerConfig.DeadPolicy is %d: it must be bus.Block or bus.Continue", c.DeadPolicy))
	}
	return errors.Join(append(errs, c.checkBackoff())...)
}

// checkBackoff asks for the attempts that there may be, and returns the mistake of the first that has no usable answer.
func (c ConsumerConfig) checkBackoff() error {
	if c.Backoff == nil {
		return nil
	}
	for n := 1; n <= min(max(c.MaxAttempts, backoffAsked), maxBackoffAsked); n++ {
		if _, err := handler.CallBackoff(c.Backoff, n); err != nil {
			return err
		}
	}
	return nil
}

// How many attempts a Backoff is asked about when its consumer is registered, at least and at most.
const (
	backoffAsked    = 25
	maxBackoffAsked = 1000
)

// Consumer is one receiver of events. Give it handlers with [On], [OnBatch], [OnSQL], [OnSQLBatch], [OnExternal] and
// [OnExternalBatch].
type Consumer struct {
	access  // for adapters, as that of its bus
	bus     *Bus
	c       *handler.Consumer
	refused bool // a handler was registered wrongly
}

// Replayable reports whether past events may be given to the consumer again.
func (c *Consumer) Replayable() bool { return c.c.Config.Replayable }

// Name is what people read: in logs, metrics and on the console.
func (c *Consumer) Name() string { return c.c.Name }

// Key is the consumer's identity in the database: [ConsumerConfig.Key], or its name.
func (c *Consumer) Key() string { return c.c.Key }

// EventTypes lists the event types the consumer handles, sorted.
func (c *Consumer) EventTypes() []string { return c.c.EventTypes() }

// ExternalTypes lists the event types that the consumer handles with [OnExternal] or [OnExternalBatch], sorted.
func (c *Consumer) ExternalTypes() []string { return c.c.ExternalTypes() }

// Handles reports whether the consumer has a handler for the event type.
func (c *Consumer) Handles(eventType string) bool { return c.c.Handler(eventType) != nil }
