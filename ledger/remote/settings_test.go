package remote_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ledger/remote"
)

// run runs what was registered in the service.
func (w *world) run(b *bus.Bus, cfg remote.Config) (stop func()) {
	w.t.Helper()
	cfg.Wait, cfg.Logger = time.Second, logger()
	r, err := remote.Consumer(b, w.client, cfg)
	require.NoError(w.t, err)
	return w.beside(r.Run)
}

// states counts the states of deliveries.
func (w *world) states(ids []string) map[string]int {
	w.t.Helper()
	all := make(map[string]int)
	for _, id := range ids {
		var status string
		_, _ = fmt.Sscan(w.state(id), &status) // it is empty before the publisher has seen the event
		all[status]++
	}
	return all
}

// A handler of many events gets in one call what waits, and answers for each.
func TestExternalBatchIsOneCall(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db, 0)
		b := bus.New(w.db, bus.Config{Logger: logger()})
		all, first := make(chan struct{}), make(chan int, 100)
		bus.OnExternalBatch(b.Consumer(consumer, bus.ConsumerConfig{Concurrency: 1}),
			func(_ context.Context, ms []bus.Message[paid]) []error {
				<-all // are in flight
				first <- len(ms)
				errs := make([]error, len(ms))
				for i, m := range ms {
					if m.Payload.Order == "order-7" {
						errs[i] = bus.Permanent(errors.New("no"))
					}
				}
				return errs
			})
		w.run(b, remote.Config{})
		const n = 20
		var ids []string
		for i := range n {
			ids = append(ids, w.publish(fmt.Sprint("order-", i), 1)...)
		}
		require.Eventually(t, func() bool { return w.states(ids)["PROCESSING"] == n }, testdb.Patience(), 20*time.Millisecond)
		close(all)
		require.Eventually(t, func() bool {
			s := w.states(ids)
			return s["SUCCESS"] == n-1 && s["DEAD"] == 1
		}, testdb.Patience(), 20*time.Millisecond)
		w.becomes(ids[7], "DEAD 1  no")
		require.Less(t, len(first), n, "calls")
	})
}

// A slow call of a handler holds up no other one, while there is a worker.
func TestSlowExternalCallHoldsUpNobody(t *testing.T) {
	t.Parallel()
	for _, name := range testdb.Servers() { // SQLite has one worker
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, testdb.Open(t, name), 0)
			b := bus.New(w.db, bus.Config{Logger: logger()})
			over := make(chan struct{})
			bus.OnExternal(b.Consumer(consumer, bus.ConsumerConfig{}), func(_ context.Context, m bus.Message[paid]) error {
				if m.Payload.Order == "slow" {
					<-over
				}
				return nil
			})
			slow := w.publish("slow", 1)
			var ids []string
			for i := range 30 {
				ids = append(ids, w.publish(fmt.Sprint("order-", i), 1)...)
			}
			w.run(b, remote.Config{})
			require.Eventually(t, func() bool { return w.states(ids)["SUCCESS"] == len(ids) }, testdb.Patience(), 20*time.Millisecond)
			require.Equal(t, 1, w.states(slow)["PROCESSING"])
			close(over)
			w.becomes(slow[0], "SUCCESS 1  ")
		})
	}
}

// A consumer with a rate starts no more than that, and takes no more from the ledger than it can start within a second.
func TestRateIsKept(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db, 0)
		b := bus.New(w.db, bus.Config{Logger: logger()})
		var runs atomic.Int32
		bus.On(b.Consumer(consumer, bus.ConsumerConfig{Rate: 0.001}), func(context.Context, bun.Tx, bus.Message[paid]) error {
			runs.Add(1)
			return nil
		})
		var ids []string
		for i := range 5 {
			ids = append(ids, w.publish(fmt.Sprint("order-", i), 1)...)
		}
		w.run(b, remote.Config{Drain: time.Millisecond})
		require.Eventually(t, func() bool {
			s := w.states(ids)
			return s["SUCCESS"] == 1 && s["PROCESSING"] == 1 && s["PENDING"] == 3 // the second waits for its time
		}, testdb.Patience(), 20*time.Millisecond)
		require.EqualValues(t, 1, runs.Load())
	})
}

// meters are the counters of a process.
type meters struct {
	noop.MeterProvider

	mu     sync.Mutex
	counts map[string]int64 // by name and consumer
	gauges []string
}

type meter struct {
	noop.Meter

	all *meters
}

type counter struct {
	noop.Int64Counter

	all  *meters
	name string
}

func (m *meters) Meter(string, ...metric.MeterOption) metric.Meter { return &meter{all: m} }

func (m *meter) Int64Counter(name string, _ ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return &counter{all: m.all, name: name}, nil
}

func (m *meter) Float64ObservableGauge(name string, _ ...metric.Float64ObservableGaugeOption) (metric.Float64ObservableGauge, error) {
	m.all.mu.Lock()
	defer m.all.mu.Unlock()
	m.all.gauges = append(m.all.gauges, name)
	return noop.Float64ObservableGauge{}, nil
}

func (c *counter) Enabled(context.Context) bool { return true }

func (c *counter) Add(_ context.Context, n int64, opts ...metric.AddOption) {
	attrs := metric.NewAddConfig(opts).Attributes()
	who, _ := attrs.Value(attribute.Key("consumer"))
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	c.all.counts[c.name+" "+who.AsString()] += n
}

// The process of a remote consumer counts as that of a publisher does, whatever its handlers are, and what it has in flight.
func TestRemoteConsumerIsMeasured(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testdb.Open(t, "sqlite"), 0)
	all := &meters{counts: make(map[string]int64)}
	b := bus.New(w.db, bus.Config{Logger: logger(), MeterProvider: all})
	bus.OnExternal(b.Consumer(consumer, bus.ConsumerConfig{}), func(_ context.Context, m bus.Message[paid]) error {
		switch {
		case m.Payload.Order == "skips":
			return bus.Skip("a test")
		case m.Payload.Order == "fails" && m.Attempt == 1:
			return errors.New("once")
		}
		return nil
	})
	w.run(b, remote.Config{})
	for _, order := range []string{"skips", "fails", "fine"} {
		w.publish(order, 1)
	}
	want := map[string]int64{
		"consumer.event.attempts " + consumer: 4, "consumer.event.consumed " + consumer: 2, "consumer.event.failed " + consumer: 1,
		"consumer.event.skipped " + consumer: 1, "consumer.event.idempotent " + consumer: 0, "consumer.ledger.failed " + consumer: 0,
		"outbox.lease.lost " + consumer: 0, "consumer.circuit.opened " + consumer: 0,
	}
	require.Eventually(t, func() bool {
		all.mu.Lock()
		defer all.mu.Unlock()
		return all.counts["consumer.event.consumed "+consumer] == 2
	}, testdb.Patience(), 20*time.Millisecond)
	all.mu.Lock()
	defer all.mu.Unlock()
	for name, n := range want {
		require.Contains(t, all.counts, name)
		require.Equal(t, n, all.counts[name], name)
	}
	require.Contains(t, all.gauges, "consumer.ledger.in_flight")
}
