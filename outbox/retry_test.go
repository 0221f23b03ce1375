package outbox_test

import (
	"context"
	"errors"
	"runtime"
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

var errHandler = errors.New("handler says no")

// failing registers a consumer whose handler writes its effect and then answers err as long as it is set.
func (f *fixture) failing(name string, cfg bus.ConsumerConfig, answer *atomic.Pointer[error]) *atomic.Int64 {
	var runs atomic.Int64
	bus.On(f.bus.Consumer(name, cfg), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
		runs.Add(1)
		if err := effect(ctx, tx, m, m.Payload.Seq); err != nil {
			return err
		}
		if e := answer.Load(); e != nil {
			return *e
		}
		return nil
	})
	return &runs
}

func answer(err error) *atomic.Pointer[error] {
	var p atomic.Pointer[error]
	if err != nil {
		p.Store(&err)
	}
	return &p
}

func TestOneFailingConsumerLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("Good", bus.ConsumerConfig{})
		a := answer(errHandler)
		f.failing("Bad", bus.ConsumerConfig{}, a)
		f.save(orderPaid{OrderID: "1"})
		f.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusFailed: 1}, f.statuses())
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 1, consumelog.Failed: 1}, f.deliveries())
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect"), "the failed handler's effect is rolled back")
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_delivery_attempt WHERE consumer_name = 'Bad' AND outcome = 'FAILED'"))

		a.Store(nil)
		f.hurry()
		f.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 1}, f.statuses())
		require.Equal(t, 2, f.count("SELECT COUNT(*) FROM effect"))
		require.Equal(t, 2, f.count("SELECT attempts FROM bc_event_consume_log WHERE consumer_name = 'Bad'"))
	})
}

func TestAttemptsEndInDead(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		var dead atomic.Int64
		f.bus = bus.New(db, bus.Config{Logger: logger(), OnDeadLetter: func(_ context.Context, d bus.DeadLetter) {
			if d.Consumer == "Bad" && d.Attempts == 3 {
				dead.Add(1)
			}
		}})
		runs := f.failing("Bad", bus.ConsumerConfig{MaxAttempts: 3}, answer(errHandler))
		f.save(orderPaid{OrderID: "1"})
		for range 5 {
			f.once()
			f.hurry()
		}
		require.EqualValues(t, 3, runs.Load())
		require.Equal(t, map[outbox.Status]int{outbox.StatusDead: 1}, f.statuses())
		require.Equal(t, map[consumelog.Status]int{consumelog.Dead: 1}, f.deliveries())
		require.EqualValues(t, 1, dead.Load(), "the alert hook is called once")
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_outbox_event WHERE last_error LIKE '%handler says no%'"))
		require.Zero(t, f.count("SELECT COUNT(*) FROM effect"))
	})
}

func TestAnswersOfHandlers(t *testing.T) {
	t.Parallel()
	goexit := errors.New("goexit")
	panics := errors.New("panic")
	for name, tc := range map[string]struct {
		answer   error
		status   consumelog.Status
		attempts int
	}{
		"permanent":  {bus.Permanent(errHandler), consumelog.Dead, 1},
		"skip":       {bus.Skip("not mine"), consumelog.Skipped, 1},
		"retryAfter": {bus.RetryAfter(errHandler, time.Hour), consumelog.Failed, 0},
		"error":      {errHandler, consumelog.Failed, 1},
		"panic":      {panics, consumelog.Failed, 1},
		"goexit":     {goexit, consumelog.Failed, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, testdb.Open(t, "sqlite"))
			bus.On(f.bus.Consumer("A", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[orderPaid]) error {
				switch {
				case errors.Is(tc.answer, panics):
					panic("boom")
				case errors.Is(tc.answer, goexit):
					runtime.Goexit()
				}
				return tc.answer
			})
			f.save(orderPaid{OrderID: "1"})
			f.once()
			require.Equal(t, map[consumelog.Status]int{tc.status: 1}, f.deliveries())
			require.Equal(t, tc.attempts, f.count("SELECT attempts FROM bc_event_consume_log"))
			if tc.status == consumelog.Skipped {
				require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 1}, f.statuses())
			}
		})
	}
}

// exiting ends the goroutine that decodes it.
type exiting struct{ orderPaid }

func (exiting) EventType() string           { return "order.exiting" }
func (*exiting) UnmarshalJSON([]byte) error { runtime.Goexit(); return nil }

// What calls runtime.Goexit ends that call only, whatever of the user's it is: the worker goes on.
func TestGoexitEndsNoWorker(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testdb.Open(t, "sqlite"))
	f.effects()
	f.bus = bus.New(f.db, bus.Config{Logger: logger(), OnDeadLetter: func(context.Context, bus.DeadLetter) { runtime.Goexit() }})
	var isAsked atomic.Bool
	a := f.bus.Consumer("A", bus.ConsumerConfig{Concurrency: 1, Backoff: func(int) time.Duration {
		if isAsked.Load() {
			runtime.Goexit()
		}
		return time.Second
	}})
	bus.On(a, func(context.Context, bun.Tx, bus.Message[exiting]) error { return nil })
	bus.On(a, func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
		if m.AggregateID == "backoff" {
			isAsked.Store(true)
			return errHandler
		}
		return effect(ctx, tx, m, 1)
	})
	f.save(exiting{orderPaid{OrderID: "decode"}})
	f.once()
	f.save(orderPaid{OrderID: "backoff"})
	f.once()
	f.save(orderPaid{OrderID: "1"})
	f.once()
	require.Equal(t, map[consumelog.Status]int{consumelog.Dead: 1, consumelog.Failed: 1, consumelog.Success: 1}, f.deliveries())
}

func TestOrderIsKeptBehindAFailure(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("Free", bus.ConsumerConfig{Unordered: true})
		a := answer(errHandler)
		runs := f.failing("Ordered", bus.ConsumerConfig{}, a)
		for seq := 1; seq <= 5; seq++ {
			f.save(orderPaid{OrderID: "1", Seq: seq})
		}
		f.save(orderPaid{OrderID: "2", Seq: 1})
		f.once()
		require.EqualValues(t, 6, f.count("SELECT COUNT(*) FROM effect WHERE consumer = 'Free'"))
		require.Zero(t, f.count("SELECT COUNT(*) FROM effect WHERE consumer = 'Ordered'"))
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 6, consumelog.Failed: 2, consumelog.Pending: 4}, f.deliveries())
		before := runs.Load()
		f.hurry()
		f.once()
		require.LessOrEqual(t, runs.Load()-before, int64(3), "only the two heads are tried, together and then alone")

		a.Store(nil)
		for range 6 {
			f.hurry()
			f.once()
		}
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 6}, f.statuses())
		require.Zero(t, f.count("SELECT COUNT(*) FROM effect a JOIN effect b ON b.consumer = a.consumer AND b.aggregate = a.aggregate "+
			"AND b.id > a.id AND b.seq < a.seq WHERE a.consumer = 'Ordered'"), "out of order")
	})
}

// poisoned has one consumer that refuses the first event of each aggregate for good.
func poisoned(t *testing.T, db *bun.DB, cfg bus.ConsumerConfig) *fixture {
	t.Helper()
	f := newFixture(t, db)
	f.effects()
	bus.On(f.bus.Consumer("Poisoned", cfg), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
		if m.Payload.Seq == 1 {
			return bus.Permanent(errHandler)
		}
		return effect(ctx, tx, m, m.Payload.Seq)
	})
	f.save(orderPaid{OrderID: "1", Seq: 1})
	f.save(orderPaid{OrderID: "1", Seq: 2})
	f.once()
	f.hurry()
	f.once()
	return f
}

func TestDeadLetsOthersPassIfTheConsumerSaysSo(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := poisoned(t, db, bus.ConsumerConfig{DeadPolicy: bus.Continue})
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect"))
	})
}

func TestDeadBlocksItsAggregateUntilAnOperatorDecides(t *testing.T) {
	t.Parallel()
	op := outbox.Operation{Actor: "ops@example.org", Reason: "looked at it"}
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := poisoned(t, db, bus.ConsumerConfig{})
		require.Zero(t, f.count("SELECT COUNT(*) FROM effect"))
		ctx := context.Background()
		dead, err := f.ob.Events(ctx, outbox.Filter{AggregateType: "ORDER", AggregateID: "1", Status: outbox.StatusDead})
		require.NoError(t, err)
		require.Len(t, dead, 1)
		require.ErrorContains(t, f.ob.Skip(ctx, outbox.Operation{Actor: "x"}, dead[0].EventID, "Poisoned"), "reason is empty")
		require.ErrorIs(t, f.ob.Skip(ctx, op, dead[0].EventID, "Nobody"), outbox.ErrNotFound)
		require.NoError(t, f.ob.Skip(ctx, op, dead[0].EventID, "Poisoned"))
		f.once()
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect"), "skipping lets the next one pass at once")
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_audit_log WHERE action = 'skip' AND actor = ?", op.Actor))
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 2}, f.statuses())
	})
}

func TestOperatorRetriesADeadDelivery(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		a := answer(bus.Permanent(errHandler))
		f.failing("A", bus.ConsumerConfig{}, a)
		f.save(orderPaid{OrderID: "1"})
		f.once()
		ev, err := f.ob.Events(context.Background(), outbox.Filter{Status: outbox.StatusDead})
		require.NoError(t, err)
		require.Len(t, ev, 1)
		a.Store(nil)
		require.NoError(t, f.ob.Retry(context.Background(), outbox.Operation{Actor: "ops", Reason: "fixed"}, ev[0].EventID))
		require.Equal(t, map[outbox.Status]int{outbox.StatusFailed: 1}, f.statuses())
		f.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 1}, f.statuses())
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect"))
	})
}

func TestPausedConsumerWaitsAndNobodyElse(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.registered("A", "B")
		op := outbox.Operation{Actor: "ops", Reason: "deploy of the partner"}
		require.NoError(t, f.ob.Pause(context.Background(), op, "A", 0))
		require.Error(t, f.ob.Pause(context.Background(), op, "Nobody", 0))
		f.save(orderPaid{OrderID: "1"})
		f.once()
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 1, consumelog.Pending: 1}, f.deliveries())
		f.hurry()
		f.once()
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 1, consumelog.Pending: 1}, f.deliveries())
		require.NoError(t, f.ob.Resume(context.Background(), op, "A"))
		f.hurry()
		f.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 1}, f.statuses())
	})
}
