package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// How long other aggregates wait while one handler of their consumer is slow: the figures of
// docs/measurements/slow-event.md. It asserts nothing: TestSlowEventLeavesTheDelayOfOthersAsItWas does, in fake time.
func TestMeasureLatencyBesideASlowEvent(t *testing.T) { //nolint:paralleltest // it measures
	testdb.Measures(t)
	const slow, every = 10 * time.Second, 10 * time.Millisecond
	t.Log("| database | handler | others | p50 | p99 | longest |")
	for _, c := range []struct {
		dialect  string
		external bool
	}{{"mysql", false}, {"postgres", false}, {"mysql", true}, {"postgres", true}, {"sqlite", true}} {
		f := newFixture(t, testdb.Open(t, c.dialect))
		f.effects()
		seen := &latencies{}
		work := func(ctx context.Context, m bus.Message[orderPaid]) {
			if m.Payload.OrderID == "slow" {
				select {
				case <-time.After(slow):
				case <-ctx.Done():
				}
				return
			}
			seen.add(time.Since(m.CreatedAt))
		}
		handler := "`On`"
		if c.external {
			handler = "`OnExternal`"
			bus.OnExternal(f.bus.Consumer("A", bus.ConsumerConfig{}), func(ctx context.Context, m bus.Message[orderPaid]) error {
				work(ctx, m)
				return nil
			})
		} else {
			bus.On(f.bus.Consumer("A", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
				defer work(ctx, m)
				return effect(ctx, tx, m, m.Payload.Seq)
			})
		}
		stop, done := f.begin(outbox.PublisherConfig{})
		n := 0
		load := func() []time.Duration {
			seen.take()
			for over := time.Now().Add(slow - time.Second); time.Now().Before(over); n++ {
				f.save(orderPaid{OrderID: fmt.Sprint(n)})
				time.Sleep(every) //nolint:forbidigo // a load of so many a second
			}
			return seen.take()
		}
		load() // to warm up
		var undisturbed, beside []time.Duration
		for range 2 { // in turn: other work on the machine disturbs both alike
			undisturbed = append(undisturbed, load()...)
			f.save(orderPaid{OrderID: "slow"})
			beside = append(beside, load()...)
			f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM bc_outbox_event WHERE status <> 'SENT'") == 0 }, "the slow one is done")
		}
		for how, took := range map[string][]time.Duration{"undisturbed": undisturbed, "beside a slow one": beside} {
			slices.Sort(took)
			t.Logf("| %s | %s | %d %s | %s | %s | %s |", c.dialect, handler, len(took), how,
				took[len(took)/2].Round(100*time.Microsecond), took[len(took)*99/100].Round(100*time.Microsecond),
				took[len(took)-1].Round(100*time.Microsecond))
		}
		stop()
		<-done
	}
}

// latencies collects durations.
type latencies struct {
	mu   sync.Mutex
	took []time.Duration
}

func (l *latencies) add(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.took = append(l.took, d)
}

func (l *latencies) take() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	took := l.took
	l.took = nil
	return took
}
