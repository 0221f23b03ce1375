package health

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// provider has one meter, which keeps how its gauges are read: the SDK is not in this module.
type provider struct {
	noop.MeterProvider

	m *meter
}

func (p provider) Meter(string, ...metric.MeterOption) metric.Meter { return p.m }

type meter struct {
	noop.Meter

	refuses bool
	read    metric.Callback
}

func (m *meter) Float64ObservableGauge(name string, _ ...metric.Float64ObservableGaugeOption) (metric.Float64ObservableGauge, error) {
	return gauge{name: name}, nil
}

func (m *meter) RegisterCallback(read metric.Callback, _ ...metric.Observable) (metric.Registration, error) {
	if m.refuses {
		return nil, errors.New("too many gauges")
	}
	m.read = read
	return registration{}, nil
}

type gauge struct {
	noop.Float64ObservableGauge

	name string
}

// registration is one that cannot be ended.
type registration struct{ noop.Registration }

func (registration) Unregister() error { return errors.New("it is gone already") }

// values are what gauges were set to, by their names and consumers.
type values struct {
	noop.Observer

	of map[string]float64
}

func (v values) ObserveFloat64(g metric.Float64Observable, value float64, opts ...metric.ObserveOption) {
	name := g.(gauge).name
	of := metric.NewObserveConfig(opts).Attributes()
	if consumer, ok := of.Value(attribute.Key(telemetry.Consumer)); ok {
		name += " of " + consumer.AsString()
	}
	v.of[name] = value
}

// newGauges are those of a publisher with the consumers A and B.
func newGauges(t *testing.T, db *bun.DB, m *meter, log *testdb.Log) Gauges {
	t.Helper()
	d, stmts := dialectOf(t, db), prepared.New(db)
	metrics, err := telemetry.NewMetrics(provider{m: m})
	require.NoError(t, err)
	regs := handler.NewRegistrations()
	g := Gauges{
		DB: db, Dialect: d, Queues: store.NewQueues(d, stmts), Events: store.NewSettling(d, stmts), Metrics: metrics, Logger: log.Logger(),
	}
	var all []store.Announcement
	for _, name := range []string{"A", "B"} {
		g.Consumers = append(g.Consumers, handler.NewConsumer(regs, name, name, handler.Config{}))
		all = append(all, store.Announcement{Key: name, Name: name})
	}
	require.NoError(t, store.NewRegistry(d, stmts).AnnounceConsumers(t.Context(), db, all))
	return g
}

// The gauges tell what waits in the deployment, for whom, and how far the clocks are apart.
func TestGaugesTellWhatWaits(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		var m meter
		var log testdb.Log
		g := newGauges(t, db, &m, &log)
		stop := g.Register(t.Context(), func() Signs { return Signs{InFlight: 5} })
		for id, status := range map[string]string{"new": "NEW", "failed": "FAILED", "dead": "DEAD", "sent": "SENT"} {
			testdb.Exec(t, db, "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, status, "+
				"created_at) VALUES ('A', '1', 'a.b', ?, '{}', ?, "+g.Dialect.After+")", id, status, -dialect.Micro(2*time.Hour))
		}
		for id, status := range map[string]string{"failed": "FAILED", "dead": "DEAD", "sent": "SUCCESS"} {
			testdb.Exec(t, db, "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, created_at) "+
				"VALUES ('A', ?, 'a.b', ?, "+g.Dialect.After+")", id, status, -dialect.Micro(time.Hour))
		}
		v := values{of: make(map[string]float64)}
		require.NoError(t, m.read(t.Context(), v))
		near := (30 * time.Minute).Seconds()
		require.InDelta(t, (2 * time.Hour).Seconds(), v.of[gaugeOldest], near)
		require.InDelta(t, time.Hour.Seconds(), v.of[gaugeLagAge+" of A"], near)
		require.InDelta(t, 0, v.of[gaugeClock], near, "it is the same machine")
		for _, name := range []string{gaugeOldest, gaugeLagAge + " of A", gaugeClock} {
			delete(v.of, name)
		}
		require.Equal(t, map[string]float64{
			gaugeInFlight: 5, gaugePending: 2, gaugeDead: 1, gaugeLag + " of A": 1, gaugeLost + " of A": 1,
			gaugeLag + " of B": 0, gaugeLagAge + " of B": 0, gaugeLost + " of B": 0,
		}, v.of)
		require.Empty(t, log.String())
		stop()
		require.Contains(t, log.String(), "could not be unregistered")
	})
}

// What cannot be measured is an error of the reading, which says what: it is no zero.
func TestWhatCannotBeMeasuredIsAnError(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		var m meter
		var log testdb.Log
		g := newGauges(t, db, &m, &log)
		g.Register(t.Context(), func() Signs { return Signs{} })
		read := func() (map[string]float64, error) {
			v := values{of: make(map[string]float64)}
			err := m.read(t.Context(), v)
			return v.of, err
		}
		testdb.Exec(t, db, "DROP TABLE bc_consumer")
		seen, err := read()
		require.ErrorContains(t, err, "outbox: measure what waits for consumers")
		require.NotContains(t, seen, gaugeLag+" of A")
		ctx, end := context.WithCancel(t.Context())
		end()
		require.ErrorContains(t, m.read(ctx, values{of: make(map[string]float64)}), "outbox: measure the backlog")
	})
}

// A meter that refuses the gauges costs a log line, not the publisher.
func TestAPublisherRunsWithoutGauges(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "sqlite")
	var log testdb.Log
	g := newGauges(t, db, &meter{refuses: true}, &log)
	g.Register(t.Context(), func() Signs { return Signs{} })()
	require.Contains(t, log.String(), "the gauges of the outbox are not available")
	require.Contains(t, log.String(), "too many gauges")
}
