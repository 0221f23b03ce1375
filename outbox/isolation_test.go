package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/inject"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// A service that is away costs no attempts, and only its own consumer waits.
func TestCircuitSparesAttempts(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("Healthy", bus.ConsumerConfig{})
		var away atomic.Bool
		var calls atomic.Int64
		away.Store(true)
		bus.OnExternal(f.bus.Consumer("Sms", bus.ConsumerConfig{MaxAttempts: 2}), func(context.Context, bus.Message[orderPaid]) error {
			calls.Add(1)
			if away.Load() {
				return fmt.Errorf("send: %w", &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})
			}
			return nil
		})
		f.run(outbox.PublisherConfig{Poll: 20 * time.Millisecond})
		for _, id := range ids(10) {
			f.save(orderPaid{OrderID: id})
		}
		f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == 10 }, "the healthy consumer goes on")
		f.eventually(func() bool { return calls.Load() >= 3 }, "the circuit opens after three calls")
		tried := calls.Load()
		require.Less(t, tried, int64(10), "the circuit opens before every event was tried")
		require.Zero(t, f.deliveries()[consumelog.Dead])
		away.Store(false)
		f.eventually(func() bool { return f.statuses()[outbox.StatusSent] == 10 }, "it works again by itself")
		require.Equal(t, 10, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE consumer_name = 'Sms' AND status = 'SUCCESS' "+
			"AND attempts = 1"))
	})
}

// A batch that runs one by one ends when the circuit opens.
func TestCircuitEndsABatchThatRunsOneByOne(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		var calls atomic.Int64
		bus.On(f.bus.Consumer("Away", bus.ConsumerConfig{Concurrency: 1}), func(context.Context, bun.Tx, bus.Message[orderPaid]) error {
			calls.Add(1)
			return fmt.Errorf("ask: %w", &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})
		})
		for _, id := range ids(10) {
			f.save(orderPaid{OrderID: id})
		}
		began := time.Now()
		f.once()
		probes := int64(time.Since(began)/(250*time.Millisecond)) + 1 // it tries again so often
		require.GreaterOrEqual(t, calls.Load(), int64(1+3), "the batch, and three alone")
		require.LessOrEqual(t, calls.Load(), 1+3+probes, "and probes, if it took long")
		require.Equal(t, 10, f.deliveries()[consumelog.Failed]+f.deliveries()[consumelog.Pending])
		require.Zero(t, f.count("SELECT SUM(attempts) FROM bc_event_consume_log"))
	})
}

// A rate limit holds its own consumer back, and nobody else.
func TestRateLimitHoldsOnlyItsConsumer(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("Fast", bus.ConsumerConfig{})
		var limited atomic.Int64
		bus.On(f.bus.Consumer("Limited", bus.ConsumerConfig{Rate: 20, Queue: 10}), func(context.Context, bun.Tx, bus.Message[orderPaid]) error {
			limited.Add(1)
			return nil
		})
		for _, id := range ids(200) {
			f.save(orderPaid{OrderID: id})
		}
		began := time.Now()
		f.run(outbox.PublisherConfig{Poll: 20 * time.Millisecond})
		f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == 200 }, "the other consumer does not wait")
		n, passed := limited.Load(), time.Since(began)
		require.LessOrEqual(t, float64(n), 20*passed.Seconds()+2+1, "20 a second, with a burst of a tenth of a second")
		f.eventually(func() bool { return limited.Load() >= min(n+1, 200) }, "the limited one goes on")
	})
}

// The newest events of a tenant pass the backlog of another.
func TestBurstOfOneTenantDoesNotHoldAnother(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		var big, before atomic.Int64
		seen := make(chan struct{})
		bus.On(f.bus.Consumer("A", bus.ConsumerConfig{Concurrency: 1, Batch: 20, Queue: 50}),
			func(ctx context.Context, _ bun.Tx, m bus.Message[orderPaid]) error {
				select { // a burst takes its time
				case <-time.After(time.Millisecond):
				case <-ctx.Done():
				}
				if m.TenantID == 7 {
					big.Add(1)
				} else {
					before.Store(big.Load())
					close(seen)
				}
				return nil
			})
		const burst = 3000
		for from := 0; from < burst; from += 500 {
			events := make([]bus.Event, 500)
			for i := range events {
				events[i] = outbox.With(orderPaid{OrderID: fmt.Sprint(from + i)}, outbox.Tenant(7, 1))
			}
			f.save(events...)
		}
		f.run(outbox.PublisherConfig{})
		f.eventually(func() bool { return big.Load() > 100 }, "the burst is worked off")
		f.save(outbox.With(orderPaid{OrderID: "other"}, outbox.Tenant(8, 1)))
		saved := big.Load()
		select {
		case <-seen:
		case <-time.After(testdb.Patience()):
			t.Fatal("the other tenant's event was not delivered")
		}
		require.Less(t, before.Load()-saved, int64(1000), "it did not wait for the whole burst: a second takes a thousand at most")
	})
}

// A window that slow handlers have narrowed still takes events, and widens again.
func TestNarrowWindowStillTakesEvents(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		var n atomic.Int64
		bus.On(f.bus.Consumer("A", bus.ConsumerConfig{Concurrency: 1, Batch: 20, Queue: 50}),
			func(ctx context.Context, _ bun.Tx, _ bus.Message[orderPaid]) error {
				if n.Add(1) < 45 {
					select {
					case <-time.After(25 * time.Millisecond):
					case <-ctx.Done():
					}
				}
				return nil
			})
		events := make([]bus.Event, 200)
		for i, id := range ids(len(events)) {
			events[i] = orderPaid{OrderID: id}
		}
		f.save(events...)
		f.run(outbox.PublisherConfig{})
		f.eventually(func() bool { return n.Load() == int64(len(events)) }, "nothing stays behind")
	})
}

// A deadlock makes a lane use fewer connections for a while, and loses nothing.
func TestPressureEasesTheLane(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("A", bus.ConsumerConfig{Batch: 1})
		var faults atomic.Int64
		f.inject(inject.Faults{BeforeDelivery: func(string, []string) error {
			if faults.Add(1) <= 8 {
				return errors.New("too many connections")
			}
			return nil
		}})
		for _, id := range ids(60) {
			f.save(orderPaid{OrderID: id})
		}
		f.run(outbox.PublisherConfig{})
		f.eventually(func() bool { return f.statuses()[outbox.StatusSent] == 60 }, "everything is delivered")
		require.Equal(t, 60, f.count("SELECT COUNT(*) FROM effect"))
	})
}

// What the publisher of this process is handed over after a commit needs no search, and keeps
// the order with what it is not handed.
func TestHandOverKeepsOrder(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("A", bus.ConsumerConfig{})
		f.run(outbox.PublisherConfig{Poll: time.Hour, Cron: "0 0 0 1 1 ?"}) // nothing but hand-overs and what they ask for
		const n = 30
		for i := range n {
			f.save(orderPaid{OrderID: fmt.Sprint(i % 3), Seq: i})
		}
		f.eventually(func() bool { return f.statuses()[outbox.StatusSent] == n }, "every event is handed over")
		require.Zero(t, f.count("SELECT COUNT(*) FROM (SELECT outbox_id, LAG(outbox_id) OVER (PARTITION BY aggregate_id "+
			"ORDER BY id) AS earlier FROM bc_event_consume_log) t WHERE earlier > outbox_id"))
	})
}

// A consumer that another instance registers while an event that was handed over here is in flight gets that event: it is
// not SENT by the registry of the moment at which it was routed. An event that was claimed instead of handed over was routed
// by the registry of its claim; that happens seldom, so the test takes the first event that the new consumer got.
func TestHandOverSeesNewConsumers(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Dialects() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.DSN(t, dialect)
			old := newFixture(t, migrated(t, dsn))
			old.effects()
			started, goOn := make(chan string), make(chan bool)
			bus.OnExternal(old.bus.Consumer("Old", bus.ConsumerConfig{}), func(ctx context.Context, m bus.Message[orderPaid]) error {
				select { // external, so that SQLite's only writer is free
				case started <- m.ID:
				case <-ctx.Done():
				}
				select {
				case <-goOn:
				case <-ctx.Done():
				}
				return ctx.Err()
			})
			old.run(outbox.PublisherConfig{Poll: time.Hour, Cron: "0 0 0 1 1 ?"})
			old.save(orderPaid{OrderID: "it runs, and knows only itself"})
			<-started
			goOn <- true
			old.eventually(func() bool { return old.statuses()[outbox.StatusSent] == 1 }, "the publisher has nothing to do")
			for i := range 10 {
				old.save(orderPaid{OrderID: fmt.Sprint(i)})
				id, name := <-started, fmt.Sprintf("New%d", i)
				newer := old.another(dsn)
				newer.counting(name, bus.ConsumerConfig{})
				newer.once() // registers
				goOn <- true
				settled := "SELECT COUNT(*) FROM bc_outbox_event WHERE event_id = ? AND status NOT IN ('NEW', 'DISPATCHING')"
				old.eventually(func() bool { return old.count(settled, id) == 1 }, "the event is settled")
				if old.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE event_id = ? AND consumer_name = ?", id, name) == 0 {
					continue
				}
				newer.hurry()
				newer.once()
				require.Equal(t, 1, old.count("SELECT COUNT(*) FROM effect WHERE event_id = ? AND consumer = ?", id, name))
				return
			}
			t.Fatal("no consumer that was registered beside an event in flight got it")
		})
	}
}

// With fewer connections than consumers a slow one delays others, and the engine says so.
func TestFewerConnectionsThanConsumersIsSaid(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Servers() { // SQLite has one writer anyway
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			for open, want := range map[int]bool{4: true, 50: false} { // two are for the publisher and the user
				f := newFixture(t, testdb.Open(t, dialect))
				f.db.SetMaxOpenConns(open)
				var said strings.Builder
				f.bus = bus.New(f.db, bus.Config{Logger: slog.New(slog.NewTextHandler(&said, nil))})
				f.registered("A", "B", "C")
				require.Equal(t, want, strings.Contains(said.String(), "raise MaxOpenConns"), said.String())
			}
		})
	}
}
