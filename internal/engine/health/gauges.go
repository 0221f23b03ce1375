package health

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// The gauges of a running publisher. All but the first and the last describe the whole deployment:
// every instance reports the same, so take the maximum over instances, not the sum.
const (
	gaugeInFlight = "outbox.event.in_flight"
	gaugePending  = "outbox.event.pending"
	gaugeOldest   = "outbox.event.oldest_age"
	gaugeDead     = "outbox.event.dead_now"
	gaugeLag      = "consumer.lag"
	gaugeLagAge   = "consumer.lag_age"
	gaugeLost     = "consumer.dead_now"
	gaugeClock    = "instance.clock_offset"
)

// Gauges read how a publisher and its deployment are.
type Gauges struct {
	DB        *bun.DB
	Dialect   dialect.Dialect
	Queues    store.Queues
	Events    store.Settling
	Consumers []*handler.Consumer
	Metrics   *telemetry.Metrics
	Logger    *slog.Logger
}

// Register makes the gauges readable until stop is called. A meter that refuses them
// costs a log line, not the publisher.
func (g Gauges) Register(ctx context.Context, read func() Signs) (stop func()) {
	for _, c := range g.Consumers {
		g.Metrics.ZeroEvents(ctx, c.EventTypes())
	}
	measure := func(ctx context.Context, set func(name string, v float64, kv ...string)) error {
		return g.measure(ctx, read(), set)
	}
	unregister, err := g.Metrics.Gauges(measure,
		telemetry.Gauge{Name: gaugeInFlight, Help: "Events that this instance has claimed and not yet settled.", Unit: "{event}"},
		telemetry.Gauge{Name: gaugePending, Help: "Events that are NEW, SCHEDULED, DISPATCHING or FAILED.", Unit: "{event}"},
		telemetry.Gauge{Name: gaugeOldest, Help: "Age of the oldest event that is due and not SENT.", Unit: "s"},
		telemetry.Gauge{Name: gaugeDead, Help: "Events that wait for an operator.", Unit: "{event}"},
		telemetry.Gauge{Name: gaugeLag, Help: "Deliveries that wait in the consumer's retry queue.", Unit: "{delivery}"},
		telemetry.Gauge{Name: gaugeLagAge, Help: "Age of the oldest delivery in the consumer's retry queue.", Unit: "s"},
		telemetry.Gauge{Name: gaugeLost, Help: "Deliveries to the consumer that wait for an operator.", Unit: "{delivery}"},
		telemetry.Gauge{Name: gaugeClock, Help: "How far the database's clock is ahead of this instance's.", Unit: "s"},
	)
	if err != nil {
		g.Logger.WarnContext(ctx, "the gauges of the outbox are not available", telemetry.Err, err)
		return func() {}
	}
	return func() {
		if err := unregister(); err != nil {
			g.Logger.WarnContext(ctx, "the gauges of the outbox could not be unregistered", telemetry.Err, err)
		}
	}
}

// measureTimeout limits how long a slow database delays the collection of metrics.
const measureTimeout = 5 * time.Second

func (g Gauges) measure(ctx context.Context, signs Signs, set func(name string, v float64, kv ...string)) error {
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	set(gaugeInFlight, float64(signs.InFlight))
	b, err := store.MeasureBacklog(ctx, g.DB, g.Dialect)
	if err != nil {
		return fmt.Errorf("outbox: measure the backlog: %w", err)
	}
	set(gaugePending, float64(b.Pending))
	set(gaugeOldest, b.Oldest.Seconds())
	set(gaugeDead, float64(b.Dead))
	backlogs, err := g.Queues.Backlogs(ctx, g.DB)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	for _, c := range g.Consumers {
		lag := backlogs[c.Key]
		set(gaugeLag, float64(lag.Waiting), telemetry.Consumer, c.Name)
		set(gaugeLagAge, lag.Oldest.Seconds(), telemetry.Consumer, c.Name)
		set(gaugeLost, float64(lag.Dead), telemetry.Consumer, c.Name)
	}
	return g.measureClock(ctx, set)
}

// measureClock compares the clocks: half of the round trip is how far the answer may be off.
func (g Gauges) measureClock(ctx context.Context, set func(name string, v float64, kv ...string)) error {
	before := time.Now()
	micros, err := g.Events.Now(ctx, g.DB)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	trip := time.Since(before)
	set(gaugeClock, time.UnixMicro(micros).Sub(before.Add(trip/2)).Seconds())
	return nil
}
