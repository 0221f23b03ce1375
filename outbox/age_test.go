package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// What is never counted as an attempt ends all the same: a handler that asks for more time for ever, and a
// service that stays away.
func TestEveryDeliveryEndsAfterItsMaxAge(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]error{
		"RetryAfter": bus.RetryAfter(errors.New("the order is not paid yet"), 0),
		"refused":    fmt.Errorf("call the partner: %w", syscall.ECONNREFUSED),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db *bun.DB) {
				f := newFixture(t, db)
				var dead atomic.Int64
				f.bus = bus.New(db, bus.Config{Logger: logger(), OnDeadLetter: func(context.Context, bus.DeadLetter) { dead.Add(1) }})
				bus.On(f.bus.Consumer("A", bus.ConsumerConfig{MaxAge: 50 * time.Millisecond}),
					func(context.Context, bun.Tx, bus.Message[orderPaid]) error { return answer })
				f.save(orderPaid{OrderID: "1"})
				for run := 0; run < 300 && f.deliveries()[consumelog.Dead] == 0; run++ {
					f.once()
					f.hurry()
				}
				require.Equal(t, map[consumelog.Status]int{consumelog.Dead: 1}, f.deliveries())
				require.Equal(t, map[outbox.Status]int{outbox.StatusDead: 1}, f.statuses())
				require.EqualValues(t, 1, dead.Load(), "somebody is told")
				require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE attempts = 1 "+
					"AND error_message LIKE '%MaxAge is 50ms: %'"), "and told why")
			})
		})
	}
}

// A wait that would end after MaxAge ends then.
func TestNoWaitGoesBeyondMaxAge(t *testing.T) {
	t.Parallel()
	long := func(int) time.Duration { return time.Hour }
	for name, c := range map[string]struct {
		cfg    bus.ConsumerConfig
		answer error
	}{
		"RetryAfter":  {answer: bus.RetryAfter(errors.New("the order is not paid yet"), time.Hour)},
		"Backoff":     {bus.ConsumerConfig{Backoff: long}, errHandler},
		"SlowCadence": {bus.ConsumerConfig{MaxAttempts: 1, SlowCadence: time.Hour}, errHandler},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db *bun.DB) {
				f := newFixture(t, db)
				c.cfg.MaxAge = time.Second
				bus.On(f.bus.Consumer("A", c.cfg), func(context.Context, bun.Tx, bus.Message[orderPaid]) error { return c.answer })
				f.save(orderPaid{OrderID: "1"})
				f.run(outbox.PublisherConfig{Poll: 10 * time.Millisecond})
				f.eventually(func() bool { return f.deliveries()[consumelog.Dead] == 1 }, "the delivery is DEAD")
			})
		})
	}
}

// A consumer whose service stays away tries one delivery at a time, those that never ran first. The others end all the same.
func TestManyRefusedDeliveriesEndAfterTheirMaxAge(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		var dead atomic.Int64
		f.bus = bus.New(db, bus.Config{Logger: logger(), OnDeadLetter: func(context.Context, bus.DeadLetter) { dead.Add(1) }})
		refused := fmt.Errorf("call the partner: %w", syscall.ECONNREFUSED)
		bus.On(f.bus.Consumer("A", bus.ConsumerConfig{MaxAge: time.Hour}),
			func(context.Context, bun.Tx, bus.Message[orderPaid]) error { return refused })
		const many = 120
		for i := range many {
			f.save(orderPaid{OrderID: fmt.Sprint(i)})
		}
		f.run(outbox.PublisherConfig{Poll: 20 * time.Millisecond})
		f.eventually(func() bool { return f.deliveries()[consumelog.Failed] > 20 }, "the circuit is open")
		f.exec("UPDATE bc_event_consume_log SET first_run_at = " + daysAgo(db, 1) + ", next_retry_at = created_at WHERE status = 'FAILED'")
		old := f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE first_run_at < created_at")
		for i := range many { // never run, and first in turn
			f.save(orderPaid{OrderID: fmt.Sprint("new ", i)})
		}
		f.eventually(func() bool { return f.deliveries()[consumelog.Dead] >= old }, "those that have failed for too long end")
		f.eventually(func() bool { return int(dead.Load()) == f.deliveries()[consumelog.Dead] }, "somebody is told of each")
		require.Zero(t, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE status = 'DEAD' AND (error_message NOT LIKE "+
			"'given up %MaxAge is 1h0m0s: call the partner: connection refused' OR attempts > 1)"), "and why")
		require.Less(t, f.deliveries()[consumelog.Dead], many, "nothing that is younger ends")
	})
}

// The limit counts from the first run, by the database's clock, and depends on what is asked for.
func TestMaxAgeDependsOnTheConsumer(t *testing.T) {
	t.Parallel()
	later := bus.RetryAfter(errors.New("not yet"), 0)
	for name, c := range map[string]struct {
		cfg      bus.ConsumerConfig
		external bool
		days     int
		want     consumelog.Status
	}{
		"a day":                 {days: 1, want: consumelog.Dead},
		"external, a day":       {external: true, days: 14, want: consumelog.Failed},
		"external, a fortnight": {external: true, days: 15, want: consumelog.Dead},
		"slow cadence":          {cfg: bus.ConsumerConfig{SlowCadence: time.Hour}, days: 100, want: consumelog.Failed},
		"no limit":              {cfg: bus.ConsumerConfig{MaxAge: -1}, days: 100, want: consumelog.Failed},
		"two days":              {cfg: bus.ConsumerConfig{MaxAge: 48 * time.Hour}, days: 1, want: consumelog.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db *bun.DB) {
				f := newFixture(t, db)
				if a := f.bus.Consumer("A", c.cfg); c.external {
					bus.OnExternal(a, func(context.Context, bus.Message[orderPaid]) error { return later })
				} else {
					bus.On(a, func(context.Context, bun.Tx, bus.Message[orderPaid]) error { return later })
				}
				f.save(orderPaid{OrderID: "1"})
				f.exec("UPDATE bc_outbox_event SET created_at = " + daysAgo(db, 200)) // its own age does not matter
				f.once()
				require.Equal(t, map[consumelog.Status]int{consumelog.Failed: 1}, f.deliveries())
				f.exec("UPDATE bc_event_consume_log SET first_run_at = " + daysAgo(db, c.days))
				f.hurry()
				f.once()
				require.Equal(t, map[consumelog.Status]int{c.want: 1}, f.deliveries())
				if c.want == consumelog.Dead {
					require.NoError(t, f.ob.Retry(t.Context(), outbox.Operation{
						Actor: "ops", Reason: "the partner is back",
					}, f.texts("SELECT event_id FROM bc_outbox_event")))
					f.once()
					require.Equal(t, map[consumelog.Status]int{consumelog.Failed: 1}, f.deliveries(), "after a retry it has as long again")
				}
			})
		})
	}
}

func daysAgo(db *bun.DB, days int) string {
	return fmt.Sprintf(map[string]string{
		"mysql": "UTC_TIMESTAMP(6) - INTERVAL %d DAY", "pg": "now() - interval '%d days'",
		"sqlite": "(strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', '-%d days') || '000')",
	}[db.Dialect().Name().String()], days)
}

// The history of a delivery has an end too: what came first and what came last is kept.
func TestHistoryKeepsTheFirstAndTheLastRuns(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		var runs atomic.Int64
		bus.On(f.bus.Consumer("A", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[orderPaid]) error {
			return bus.RetryAfter(fmt.Errorf("run %02d", runs.Add(1)), 0)
		})
		f.save(orderPaid{OrderID: "1"})
		f.exec("INSERT INTO bc_delivery_attempt (consumer_name, event_id, attempt, outcome, error_message, instance, duration_us) " +
			"SELECT 'B', event_id, 1, 'PENDING', 'another', 'i', 0 FROM bc_outbox_event")
		for runs.Load() < 33 { // it may run again at once
			f.once()
			f.hurry()
		}
		last := int(runs.Load())
		var want []string
		for run := 1; run <= last; run++ {
			if run <= 10 || run > last-10 {
				want = append(want, fmt.Sprintf("run %02d", run))
			}
		}
		require.Equal(t, "another\n"+strings.Join(want, "\n"), f.texts("SELECT error_message FROM bc_delivery_attempt ORDER BY id"))
	})
}
