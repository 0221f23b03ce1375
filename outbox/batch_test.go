package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

func TestBatchHandlerGetsManyEventsInOneCall(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		var calls atomic.Int64
		bus.OnBatch(f.bus.Consumer("Batch", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, ms []bus.Message[orderPaid]) error {
			calls.Add(1)
			for _, m := range ms {
				m.RecordKey("points:" + m.Payload.OrderID)
				if err := effect(ctx, tx, m, m.Payload.Seq); err != nil {
					return err
				}
			}
			return nil
		})
		const n = 90
		events := make([]bus.Event, n)
		for i := range events {
			events[i] = orderPaid{OrderID: fmt.Sprint(i % 3), Seq: i / 3}
		}
		f.save(events...)
		f.once()
		require.Equal(t, n, f.count("SELECT COUNT(*) FROM effect"))
		require.Less(t, int(calls.Load()), n, "events came together")
		for _, id := range []string{"0", "1", "2"} {
			var seq []int
			require.NoError(t, db.NewRaw("SELECT seq FROM effect WHERE aggregate = ? ORDER BY id", id).Scan(t.Context(), &seq))
			require.Equal(t, upTo(n/3), seq, "in commit order")
		}
		require.Equal(t, n, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE idempotency_key LIKE 'points:%'"))
	})
}

// One bad event in a batch costs itself an attempt, and nobody else.
func TestOneBadEventInABatchFailsAlone(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		bus.OnBatch(f.bus.Consumer("Batch", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, ms []bus.Message[orderPaid]) error {
			for _, m := range ms {
				if err := effect(ctx, tx, m, m.Payload.Seq); err != nil {
					return err
				}
				if m.Payload.OrderID == "bad" {
					return errHandler
				}
			}
			return nil
		})
		f.counting("Single", bus.ConsumerConfig{})
		f.save(orderPaid{OrderID: "a"}, orderPaid{OrderID: "b"}, orderPaid{OrderID: "bad"}, orderPaid{OrderID: "c"})
		f.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 3, outbox.StatusFailed: 1}, f.statuses())
		require.Equal(t, 3, f.count("SELECT COUNT(*) FROM effect WHERE consumer = 'Batch'"))
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE status = 'FAILED' AND attempts = 1"))
	})
}

// What the handlers have taken before and after a bad event shares transactions all the same.
func TestOneBadEventDoesNotCostEveryOtherATransaction(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]func() error{"error": func() error { return errHandler }, "panic": func() error {
		panic("at the disco")
	}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db *bun.DB) { oneIsBad(t, db, refuse) })
			inBubble(t, func(t *testing.T, db *bun.DB) { require.Less(t, oneIsBad(t, db, refuse), 50, "it would be 200") })
		})
	}
}

// oneIsBad runs 200 events of which one is refused, and tells in how many transactions.
func oneIsBad(t *testing.T, db *bun.DB, refuse func() error) (count int) {
	t.Helper()
	const n, bad = 200, 100 // far more than the small batches that a new handler begins with
	f := newFixture(t, db)
	f.effects()
	var transactions sync.Map
	bus.On(f.bus.Consumer("Choosy", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
		transactions.Store(tx.Tx, true)
		if m.Payload.Seq == bad {
			return refuse()
		}
		return effect(ctx, tx, m, m.Payload.Seq)
	})
	events := make([]bus.Event, n)
	for i := range events {
		events[i] = orderPaid{OrderID: fmt.Sprint(i), Seq: i}
	}
	f.save(events...)
	f.once()
	require.Equal(t, n-1, f.count("SELECT COUNT(*) FROM effect"))
	require.Equal(t, map[consumelog.Status]int{consumelog.Success: n - 1, consumelog.Failed: 1}, f.deliveries())
	transactions.Range(func(any, any) bool { count++; return true })
	return count
}

// statements counts those that say so.
type statements struct {
	part string
	n    atomic.Int64
}

// BeforeQuery does nothing.
func (s *statements) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

// AfterQuery counts.
func (s *statements) AfterQuery(_ context.Context, ev *bun.QueryEvent) {
	if strings.Contains(ev.Query, s.part) {
		s.n.Add(1)
	}
}

// In a backlog claims take several times as many events as in quiet times.
func TestClaimsGrowInABacklog(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		bus.On(f.bus.Consumer("Quick", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[orderPaid]) error { return nil })
		var events []bus.Event
		for _, id := range ids(400) {
			events = append(events, orderPaid{OrderID: id})
		}
		f.save(events...)
		claims := &statements{part: "SET status = 'DISPATCHING'"}
		db.AddQueryHook(claims) //nolint:staticcheck // the engine's own statements are to be seen
		_, err := f.publisher(outbox.PublisherConfig{BatchSize: 10}).RunOnce(t.Context())
		require.NoError(t, err)
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 400}, f.statuses())
		require.Less(t, claims.n.Load(), int64(20), "it would be forty")
	})
}

// An event that fails takes those behind it along: they are set aside together, not each by a transaction of its own, whether they
// come from the outbox or from the retry queue.
func TestWhatIsBehindAFailureIsSetAsideTogether(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) { failInFront(t, db) })
	inBubble(t, func(t *testing.T, db *bun.DB) {
		first, again := failInFront(t, db)
		require.Less(t, first, 10, "of 80 events, 78 are behind two that fail")
		require.Less(t, again, 10, "when all are due")
	})
}

// failInFront runs events of two aggregates, of which the first always fail, and runs them again. It tells how many transactions were
// rolled back each time.
func failInFront(t *testing.T, db *bun.DB) (first, again int) {
	t.Helper()
	const events = 80
	f := newFixture(t, db)
	notSoon := func(int) time.Duration { return time.Hour } // none is due again while a slow machine still runs the others
	bus.On(f.bus.Consumer("Failing", bus.ConsumerConfig{Backoff: notSoon}),
		func(context.Context, bun.Tx, bus.Message[orderPaid]) error { return errHandler })
	var all []bus.Event
	for i := range events {
		all = append(all, orderPaid{OrderID: fmt.Sprint(i % 2), Seq: i})
	}
	f.save(all...)
	want := map[consumelog.Status]int{consumelog.Failed: 2, consumelog.Pending: events - 2}
	rollbacks := &statements{part: "ROLLBACK"}
	db.AddQueryHook(rollbacks) //nolint:staticcheck // the engine's own statements are to be seen
	f.once()
	require.Equal(t, want, f.deliveries())
	first = int(rollbacks.n.Swap(0))
	f.hurry()
	f.once()
	require.Equal(t, want, f.deliveries())
	require.Equal(t, 4, f.count("SELECT COUNT(*) FROM bc_delivery_attempt"))
	return first, int(rollbacks.n.Load())
}

// A batch of which a handler has refused an event runs in parts. What of it has not ended when the
// instance is stopped is given back, as if it were still queued. (On SQLite nothing can be given back
// while the handler holds the only writer's lock.)
func TestDrainEndsABatchThatRunsInParts(t *testing.T) {
	t.Parallel()
	testdb.EachServer(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		const events = 40
		gate, entered := make(chan struct{}), make(chan struct{}, events)
		bus.On(f.bus.Consumer("Failing", bus.ConsumerConfig{Concurrency: 1, Batch: events / 2}),
			func(_ context.Context, _ bun.Tx, m bus.Message[orderPaid]) error {
				if m.Payload.Seq > 0 {
					entered <- struct{}{}
					<-gate
				}
				return errHandler
			})
		var all []bus.Event
		for i := range events {
			all = append(all, orderPaid{OrderID: fmt.Sprint(i), Seq: i})
		}
		f.save(all...)
		stop, done := f.begin(outbox.PublisherConfig{})
		<-entered
		stop()
		f.eventually(func() bool { return f.statuses()[outbox.StatusNew] > 0 }, "what is queued is given back")
		close(gate)
		require.NoError(t, <-done)
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_delivery_attempt"),
			"the one that ran shared its transaction, so it is not known to be at fault")
		require.Equal(t, events-1, f.statuses()[outbox.StatusNew])
	})
}

// An external effect has no transaction: it runs at least once, under one key for all its attempts.
func TestExternalHandlerKeepsItsKeyOverAttempts(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		var mu sync.Mutex
		var keys []string
		bus.OnExternal(f.bus.Consumer("Sms", bus.ConsumerConfig{}), func(_ context.Context, m bus.Message[orderPaid]) error {
			mu.Lock()
			defer mu.Unlock()
			keys = append(keys, m.Key())
			if len(keys) < 3 {
				return errors.New("the provider is busy")
			}
			m.RecordResult(map[string]string{"sms": "accepted"})
			return nil
		})
		f.save(orderPaid{OrderID: "1"})
		for range 3 {
			f.once()
			f.hurry()
		}
		require.Len(t, keys, 3)
		require.Len(t, slices.Compact(keys), 1, "one key for every attempt")
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 1}, f.statuses())
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 1}, f.deliveries())
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE attempts = 3"))
	})
}
