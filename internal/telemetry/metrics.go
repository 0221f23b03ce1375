package telemetry

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Metrics are the instruments of the engine, under the names of the original design.
type Metrics struct {
	OfEvents
	OfDeliveries

	meter metric.Meter
}

// OfEvents counts events, as outbox.event.*.
type OfEvents struct {
	Created, Repeated, Unroutable metric.Int64Counter
	Sent, Failed, Dead            metric.Int64Counter
	LocalFirst                    metric.Int64Counter
	LeaseLost                     metric.Int64Counter // outbox.lease.lost, of events and of deliveries
}

// OfDeliveries measures deliveries, as consumer.*.
type OfDeliveries struct {
	Consumed, Idempotent, Refused, Skipped metric.Int64Counter // consumer.event.consumed, .idempotent, .failed, .skipped
	Attempts, CircuitOpened                metric.Int64Counter
	LedgerRefused                          metric.Int64Counter // consumer.ledger.failed
	Latency, HandlerTime                   metric.Float64Histogram
}

// NewMetrics makes the instruments; mp nil means the global provider.
func NewMetrics(mp metric.MeterProvider) (*Metrics, error) {
	if mp == nil {
		mp = otel.GetMeterProvider()
	}
	b := builder{meter: mp.Meter(Scope)}
	m := &Metrics{meter: b.meter}
	m.OfEvents = OfEvents{
		Created:    b.counter("outbox.event.created", "Events saved."),
		Repeated:   b.counter("outbox.event.repeated", "Saves of a keyed event that existed already."),
		Sent:       b.counter("outbox.event.sent", "Events delivered to every consumer."),
		Failed:     b.counter("outbox.event.failed", "Events left with a delivery that waits for another attempt."),
		Dead:       b.counter("outbox.event.dead", "Events left with a delivery that waits for an operator."),
		Unroutable: b.counter("outbox.event.unroutable", "Times an event was parked because nobody registered for its type."),
		LocalFirst: b.counter("outbox.event.local_first", "Events delivered everywhere by the first attempt in the process that saved them."),
		LeaseLost:  b.counter("outbox.lease.lost", "Writes refused because the lease had passed to another instance."),
	}
	m.OfDeliveries = OfDeliveries{
		Consumed:      b.counter("consumer.event.consumed", "Deliveries that took effect."),
		Idempotent:    b.counter("consumer.event.idempotent", "Deliveries found done already."),
		Refused:       b.counter("consumer.event.failed", "Attempts that failed."),
		Attempts:      b.counter("consumer.event.attempts", "Handler runs."),
		Skipped:       b.counter("consumer.event.skipped", "Deliveries closed without an effect."),
		CircuitOpened: b.counter("consumer.circuit.opened", "Times a consumer's circuit opened: what it calls could not be reached or used."),
		LedgerRefused: b.counter("consumer.ledger.failed", "Calls of a ledger that failed."),
		Latency:       b.histogram("consumer.event.latency", "From the save to the handler's commit."),
		HandlerTime:   b.histogram("consumer.handler.duration", "Time inside one handler call."),
	}
	return m, b.err
}

// Add counts n with attributes given as key, value, key, value.
func Add(ctx context.Context, c metric.Int64Counter, n int64, kv ...string) {
	if n != 0 && enabled(ctx, c) {
		c.Add(ctx, n, metric.WithAttributes(attrs(kv)...))
	}
}

// AddEach counts events, each under its type. Those of one type that follow each other are counted together, so that one event, and
// many of one type, cost one call and no map.
func AddEach[E any](ctx context.Context, c metric.Int64Counter, events []E, typeOf func(*E) string) {
	for from, to := 0, 0; from < len(events); from = to {
		eventType := typeOf(&events[from])
		for to = from + 1; to < len(events) && typeOf(&events[to]) == eventType; to++ {
		}
		Add(ctx, c, int64(to-from), EventType, eventType)
	}
}

// Zero makes counters exist before anything has been counted: of a series that begins with 1, a
// monitoring system sees no increase.
func Zero(ctx context.Context, kv []string, counters ...metric.Int64Counter) {
	for _, c := range counters {
		c.Add(ctx, 0, metric.WithAttributes(attrs(kv)...))
	}
}

// ZeroConsumer does so for what is counted by consumer and event type.
func (m *Metrics) ZeroConsumer(ctx context.Context, consumer string, eventTypes []string) {
	Zero(ctx, []string{Consumer, consumer}, m.LeaseLost, m.CircuitOpened)
	for _, t := range eventTypes {
		Zero(ctx, []string{Consumer, consumer, EventType, t}, m.Consumed, m.Idempotent, m.Refused, m.Attempts, m.Skipped)
	}
}

// ZeroEvents does so for what is counted by event type.
func (m *Metrics) ZeroEvents(ctx context.Context, eventTypes []string) {
	Zero(ctx, nil, m.LeaseLost, m.Unroutable)
	for _, t := range eventTypes {
		Zero(ctx, []string{EventType, t}, m.Created, m.Repeated, m.Sent, m.Failed, m.Dead, m.LocalFirst)
	}
}

// Observe records a duration with attributes given as key, value, key, value.
func Observe(ctx context.Context, h metric.Float64Histogram, d time.Duration, kv ...string) {
	if enabled(ctx, h) {
		h.Record(ctx, max(d, 0).Seconds(), metric.WithAttributes(attrs(kv)...))
	}
}

// enabled says whether somebody collects what an instrument records: without an SDK no attributes are built.
// OpenTelemetry before 1.40, which the library works with too, does not know; then it is recorded.
func enabled(ctx context.Context, instrument any) bool {
	e, knows := instrument.(interface {
		Enabled(ctx context.Context) bool
	})
	return !knows || e.Enabled(ctx)
}

// Gauge describes one observable gauge.
type Gauge struct{ Name, Help, Unit string }

// Gauges registers observable gauges that are all read by one callback.
// Call the result to unregister them.
func (m *Metrics) Gauges(read Reading, wanted ...Gauge) (func() error, error) {
	return gauges(m.meter, read, wanted)
}

// Reading sets gauges to what they are now.
type Reading func(ctx context.Context, set func(name string, v float64, kv ...string)) error

// Gauges is [Metrics.Gauges] for whoever has no other instruments; mp nil means the global provider.
func Gauges(mp metric.MeterProvider, read Reading, wanted ...Gauge) (func() error, error) {
	if mp == nil {
		mp = otel.GetMeterProvider()
	}
	return gauges(mp.Meter(Scope), read, wanted)
}

func gauges(meter metric.Meter, read Reading, wanted []Gauge) (func() error, error) {
	byName := make(map[string]metric.Float64ObservableGauge, len(wanted))
	list := make([]metric.Observable, 0, len(wanted))
	for _, w := range wanted {
		g, err := meter.Float64ObservableGauge(w.Name, metric.WithDescription(w.Help), metric.WithUnit(w.Unit))
		if err != nil {
			return nil, fmt.Errorf("telemetry: gauge %s: %w", w.Name, err)
		}
		byName[w.Name] = g
		list = append(list, g)
	}
	reg, err := meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		return read(ctx, func(name string, v float64, kv ...string) {
			o.ObserveFloat64(byName[name], v, metric.WithAttributes(attrs(kv)...))
		})
	}, list...)
	if err != nil {
		return nil, fmt.Errorf("telemetry: register gauges: %w", err)
	}
	return reg.Unregister, nil
}

func attrs(kv []string) []attribute.KeyValue {
	out := make([]attribute.KeyValue, 0, len(kv)/2)
	for i := 0; i+1 < len(kv); i += 2 {
		out = append(out, attribute.String(kv[i], kv[i+1]))
	}
	return out
}

type builder struct {
	meter metric.Meter
	err   error
}

func (b *builder) counter(name, help string) metric.Int64Counter {
	c, err := b.meter.Int64Counter(name, metric.WithDescription(help))
	if err != nil && b.err == nil {
		b.err = fmt.Errorf("telemetry: counter %s: %w", name, err)
	}
	return c
}

// buckets reach from half a millisecond to ten minutes, in seconds.
var buckets = []float64{ //nolint:gochecknoglobals // a constant table
	.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 600,
}

func (b *builder) histogram(name, help string) metric.Float64Histogram {
	h, err := b.meter.Float64Histogram(name, metric.WithDescription(help), metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(buckets...))
	if err != nil && b.err == nil {
		b.err = fmt.Errorf("telemetry: histogram %s: %w", name, err)
	}
	return h
}

// Counter makes a single counter; mp nil means the global provider.
func Counter(mp metric.MeterProvider, name, help string) (metric.Int64Counter, error) {
	if mp == nil {
		mp = otel.GetMeterProvider()
	}
	b := builder{meter: mp.Meter(Scope)}
	c := b.counter(name, help)
	return c, b.err
}
