package signals_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// collect reads every metric as name{attributes} → sum or gauge.
func collect(t *testing.T, reader sdkmetric.Reader) map[string]float64 {
	t.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &rm))
	out := make(map[string]float64)
	add := func(name string, set attribute.Set, v float64) {
		if c, ok := set.Value("consumer"); ok {
			name += "{" + c.AsString() + "}"
		}
		out[name] += v
	}
	for _, scope := range rm.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					add(m.Name, p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					add(m.Name, p.Attributes, p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					add(m.Name, p.Attributes, float64(p.Count))
				}
			}
		}
	}
	return out
}

// Promise 6: an event that cannot be delivered becomes DEAD, is kept, and raises an alert: the
// hook, an error line and two metrics.
func TestDeadRaisesAnAlertAndMetricsTellTheRest(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		reader, log := sdkmetric.NewManualReader(), &lines{}
		provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
		logger := slog.New(slog.NewTextHandler(log, nil))
		var alerts atomic.Int64
		f := newFixture(t, db, outbox.Config{Logger: logger, MeterProvider: provider},
			bus.Config{Logger: logger, MeterProvider: provider, OnDeadLetter: func(_ context.Context, d bus.DeadLetter) {
				if d.Consumer == "Bad" && d.Error == "no hope" && d.Attempts == 1 {
					alerts.Add(1)
				}
			}})
		bus.On(f.bus.Consumer("Good", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[orderPaid]) error { return nil })
		bus.On(f.bus.Consumer("Bad", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[orderPaid]) error {
			switch m.AggregateID {
			case "dead":
				return bus.Permanent(errors.New("no hope"))
			case "fails":
				return errors.New("broken")
			case "skips":
				return bus.Skip("not mine")
			}
			return nil
		})
		f.save(keyedPaid{orderPaid{OrderID: "good"}}, orderPaid{OrderID: "dead"}, orderPaid{OrderID: "fails"}, orderPaid{OrderID: "skips"})
		f.save(keyedPaid{orderPaid{OrderID: "good"}})
		f.run()
		require.Eventually(t, func() bool {
			counts, err := f.ob.Counts(t.Context())
			return err == nil && counts[outbox.StatusSent] == 2 && counts[outbox.StatusDead] == 1 && counts[outbox.StatusFailed] == 1
		}, testdb.Patience(), 5*time.Millisecond, "all have an outcome")
		want := map[string]float64{
			"outbox.event.created": 4, "outbox.event.repeated": 1, "outbox.event.sent": 2, "outbox.event.dead": 1, "outbox.event.failed": 1,
			"outbox.event.pending": 1, "outbox.event.dead_now": 1, "outbox.event.in_flight": 0, "outbox.event.local_first": 1,
			"consumer.event.consumed{Good}": 4, "consumer.event.consumed{Bad}": 1, "consumer.event.failed{Bad}": 2, "consumer.event.skipped{Bad}": 1,
			"consumer.lag{Bad}": 1, "consumer.lag{Good}": 0, "consumer.event.latency{Good}": 4,
		}
		var got map[string]float64
		require.EventuallyWithT(t, func(c *assert.CollectT) { // an event's row says what became of it a moment before the engine's own counts do
			got = collect(t, reader)
			for name, v := range want {
				assert.Contains(c, got, name)
				assert.InDelta(c, v, got[name], 0, name)
			}
			assert.Equal(c, int64(1), alerts.Load())
			assert.Equal(c, 1, log.count("delivery is DEAD and waits for an operator"))
			assert.Equal(c, 1, log.count("event is DEAD and waits for an operator"))
		}, testdb.Patience(), 10*time.Millisecond)
		require.Positive(t, got["outbox.event.oldest_age"])
		require.Positive(t, got["consumer.handler.duration{Good}"])
		require.Zero(t, log.count("orderId\\\":"), "a payload never reaches the log")
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_outbox_event WHERE status = 'DEAD'"))
	})
}
