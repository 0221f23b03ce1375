package signals_test

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/spi"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

type keyedRenamed struct{ renamed }

func (e keyedRenamed) IdempotencyKey() string { return "order:" + e.OrderID + ":renamed" }

// byType reads a counter by event type, but for what is 0.
func byType(t *testing.T, reader sdkmetric.Reader, name string) map[string]int64 {
	t.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &rm))
	out := make(map[string]int64)
	for _, scope := range rm.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != name {
				continue
			}
			sum, ok := m.Data.(metricdata.Sum[int64])
			require.True(t, ok)
			for _, p := range sum.DataPoints {
				eventType, _ := p.Attributes.Value("eventType")
				if p.Value != 0 {
					out[eventType.AsString()] += p.Value
				}
			}
		}
	}
	return out
}

// Each event of a Save is counted under its own type, as created if it was stored and as repeated if not; the log names those stored.
func TestEachEventOfASaveIsCountedUnderItsType(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		reader, log := sdkmetric.NewManualReader(), &lines{}
		f := newFixture(t, db, outbox.Config{
			Logger:        slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
			MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
		}, bus.Config{Logger: silent})
		paid, other := keyedPaid{orderPaid{"1"}}, keyedRenamed{renamed{"1"}}
		f.save(paid, renamed{"1"}, renamed{"2"}, orderPaid{"2"})
		require.Equal(t, map[string]int64{"order.paid": 2, "order.renamed": 2}, byType(t, reader, "outbox.event.created"))
		require.Empty(t, byType(t, reader, "outbox.event.repeated"))
		require.Equal(t, 4, log.count("event saved"))

		f.save(renamed{"3"}, paid, other, other, orderPaid{"3"})
		require.Equal(t, map[string]int64{"order.paid": 3, "order.renamed": 4}, byType(t, reader, "outbox.event.created"))
		require.Equal(t, map[string]int64{"order.paid": 1, "order.renamed": 1}, byType(t, reader, "outbox.event.repeated"))
		require.Equal(t, 7, log.count("event saved"))

		f.save(other, paid)
		require.Equal(t, map[string]int64{"order.paid": 3, "order.renamed": 4}, byType(t, reader, "outbox.event.created"))
		require.Equal(t, map[string]int64{"order.paid": 2, "order.renamed": 2}, byType(t, reader, "outbox.event.repeated"))
		require.Equal(t, 7, log.count("event saved"))
	})
}

// Each event that an inbox lands is counted under its own type, a DEAD one, too.
func TestEachEventThatLandsIsCountedUnderItsType(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		reader := sdkmetric.NewManualReader()
		provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
		f := newFixture(t, db, outbox.Config{Logger: silent, MeterProvider: provider}, bus.Config{Logger: silent})
		event := func(id, eventType, dead string) spi.Event {
			return spi.Event{
				ID: id, Type: eventType, AggregateType: "ORDER", AggregateID: "1", SchemaVersion: 1, Payload: []byte("{}"), Dead: dead,
			}
		}
		land := func(events ...spi.Event) {
			_, err := spi.LandingOf(f.ob).Land(t.Context(), spi.Batch{
				Inbox: "in", Partition: "p", DeadConsumer: "in", Events: events,
			})
			require.NoError(t, err)
		}
		land(event("a", "inbox.undecodable", "it is no JSON"))
		require.Equal(t, map[string]int64{"inbox.undecodable": 1}, byType(t, reader, "outbox.event.created"))
		land(event("a", "inbox.undecodable", "it is no JSON"), event("b", "order.paid", ""), event("c", "order.renamed", ""))
		require.Equal(t, map[string]int64{"inbox.undecodable": 1, "order.paid": 1, "order.renamed": 1},
			byType(t, reader, "outbox.event.created"))
	})
}
