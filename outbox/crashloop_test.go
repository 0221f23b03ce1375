package outbox_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
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

// leftBy turns what waits for a consumer into what a process that has died had leased, and had started or not. The
// leases have run out.
func (f *fixture) leftBy(owner string, started int, where string) {
	f.t.Helper()
	f.exec("UPDATE bc_event_consume_log SET status = 'PROCESSING', locked_by = ?, lock_version = lock_version + 1, started = ? "+
		"WHERE "+where, owner, started)
	f.hurry()
}

// batches notes how many deliveries of the consumer each transaction is about to hold.
func (f *fixture) batches() *[]int {
	var sizes []int
	f.inject(inject.Faults{BeforeDelivery: func(_ string, ids []string) error { // one worker calls it
		sizes = append(sizes, len(ids))
		return nil
	}})
	return &sizes
}

// What a process that has died had leased, however often, costs no attempt; what it had not started runs in batches, as
// new deliveries do.
func TestLeasesOfDeadProcessesCostNoAttempt(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("A", bus.ConsumerConfig{Concurrency: 1})
		for _, id := range ids(50) {
			f.save(orderPaid{OrderID: id})
		}
		f.wait("A")
		for range 12 {
			f.leftBy("dead", 0, "1 = 1")
		}
		sizes := f.batches()
		f.once()
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 50}, f.deliveries())
		require.Equal(t, 50, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE attempts = 1 AND started = 0"))
		require.Zero(t, f.count("SELECT COUNT(*) FROM bc_delivery_attempt"))
		require.Less(t, len(*sizes), 50, "in batches: %v", *sizes) // small ones on a slow machine
	})
}

// What it may have started runs alone, and is counted before its handler runs: by a commit that everybody sees.
func TestWhatADeadProcessMayHaveStartedRunsAlone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer   error
		status   consumelog.Status
		attempts int
		history  string
	}{
		"it succeeds":        {nil, consumelog.Success, 1, ""},
		"it fails":           {errHandler, consumelog.Failed, 1, "FAILED"},
		"it asks for a time": {bus.RetryAfter(errHandler, time.Hour), consumelog.Failed, 0, "PENDING"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db *bun.DB) {
				f := newFixture(t, db)
				var before []int
				bus.On(f.bus.Consumer("A", bus.ConsumerConfig{Concurrency: 1}), func(context.Context, bun.Tx, bus.Message[orderPaid]) error {
					before = append(before, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE attempts = 1 AND started = 2"))
					return c.answer
				})
				for _, id := range ids(5) {
					f.save(orderPaid{OrderID: id})
				}
				f.wait("A")
				f.leftBy("dead", 1, "1 = 1")
				sizes := f.batches()
				f.once()
				require.Equal(t, []int{1, 1, 1, 1, 1}, *sizes)
				require.Equal(t, []int{1, 1, 1, 1, 1}, before, "who runs is counted, and nobody else")
				require.Equal(t, map[consumelog.Status]int{c.status: 5}, f.deliveries())
				require.Equal(t, 5, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE attempts = ? AND started = 0", c.attempts))
				want := ""
				for range map[bool]int{true: 0, false: 5}[c.history == ""] {
					want += c.history + "\n"
				}
				require.Equal(t, want, f.texts("SELECT outcome FROM bc_delivery_attempt")+map[bool]string{true: "", false: "\n"}[c.history == ""])
			})
		})
	}
}

// The last attempt is used up by a process that died of it, or was thought to.
func TestAttemptsWithoutAnAnswerEndInDead(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		var runs atomic.Int64
		bus.On(f.bus.Consumer("A", bus.ConsumerConfig{MaxAttempts: 2}), func(context.Context, bun.Tx, bus.Message[orderPaid]) error {
			runs.Add(1)
			return nil
		})
		f.save(orderPaid{OrderID: "kills"}, orderPaid{OrderID: "other"})
		f.wait("A")
		f.exec("UPDATE bc_event_consume_log SET attempts = 2")
		f.leftBy("dead", 2, "aggregate_id = 'kills'")
		f.leftBy("dead", 0, "aggregate_id = 'other'") // leased by an older release, which counts what it leases
		f.once()
		require.Equal(t, map[consumelog.Status]int{consumelog.Dead: 1, consumelog.Success: 1}, f.deliveries())
		require.EqualValues(t, 1, runs.Load())
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE aggregate_id = 'kills' "+
			"AND error_message LIKE 'all 2 attempts are used up%'"))
		require.Equal(t, "PROCESSING\nDEAD", f.texts("SELECT outcome FROM bc_delivery_attempt ORDER BY id"),
			"the run without an answer is explained")
	})
}

// A lane leases about as much as it starts within a second, and what waits in it is not started.
func TestALaneLeasesNoMoreThanItStarts(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		gate := make(chan struct{})
		var runs atomic.Int64
		bus.OnExternal(f.bus.Consumer("A", bus.ConsumerConfig{Concurrency: 1}), func(ctx context.Context, _ bus.Message[orderPaid]) error {
			if runs.Add(1) <= 6 {
				<-time.After(200 * time.Millisecond) // this is the handler's time, nobody waits for anything
				return nil
			}
			select {
			case <-gate:
			case <-ctx.Done():
			}
			return nil
		})
		for _, id := range ids(300) {
			f.save(orderPaid{OrderID: id})
		}
		f.wait("A")
		f.run(outbox.PublisherConfig{Poll: 10 * time.Millisecond})
		f.eventually(func() bool { return runs.Load() == 7 }, "its worker is at it")
		f.eventually(func() bool {
			return f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE status = 'PROCESSING' AND started = 1") == 1
		}, "which is known")
		for range 20 {
			require.LessOrEqual(t, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE status = 'PROCESSING'"), 1+8, "5 start within a second")
		}
		close(gate)
		f.eventually(func() bool { return f.statuses()[outbox.StatusSent] == 300 }, "all are delivered")
	})
}

// The deliveries of an event whose lease has run out run alone next, and are counted before: a dead process may have started
// any of them, and no row says which.
func TestAnEventOfADeadProcessIsAnnouncedBeforeItRuns(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		var before []int
		bus.On(f.bus.Consumer("A", bus.ConsumerConfig{Concurrency: 1}), func(context.Context, bun.Tx, bus.Message[orderPaid]) error {
			before = append(before, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE status = 'PROCESSING' AND started = 2 "+
				"AND attempts = 1"))
			return nil
		})
		for _, id := range ids(3) {
			f.save(orderPaid{OrderID: id})
		}
		f.exec("UPDATE bc_outbox_event SET status = 'DISPATCHING', locked_by = 'dead', lock_version = 1")
		f.hurry()
		sizes := f.batches()
		f.once()
		require.Equal(t, []int{1, 1, 1}, *sizes)
		require.Equal(t, []int{1, 1, 1}, before, "who runs is counted, and nobody else")
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 3}, f.statuses())
		require.Equal(t, 3, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE status = 'SUCCESS' AND attempts = 1 AND started = 0"))
	})
}

// What of such an event has to wait in the log is known there for what it is. A handler without a transaction of ours has a
// row before it starts, so that what has none was not started.
func TestAnEventOfADeadProcessIsSuspectWhereverItWaits(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("A", bus.ConsumerConfig{})
		f.counting("B", bus.ConsumerConfig{})
		bus.OnExternal(f.bus.Consumer("External", bus.ConsumerConfig{}), func(context.Context, bus.Message[orderPaid]) error { return nil })
		f.once()
		for _, consumer := range []string{"A", "B", "External"} {
			require.NoError(t, f.ob.Pause(t.Context(), outbox.Operation{Actor: "ann", Reason: "a test"}, consumer, 0))
		}
		f.save(orderPaid{OrderID: "new"}, orderPaid{OrderID: "expired"})
		f.exec("UPDATE bc_outbox_event SET status = 'DISPATCHING', locked_by = 'dead', lock_version = 1 WHERE aggregate_id = 'expired'")
		f.hurry()
		f.once()
		require.Equal(t, map[consumelog.Status]int{consumelog.Pending: 6}, f.deliveries())
		require.Equal(t, "A\nB", f.texts("SELECT consumer_name FROM bc_event_consume_log WHERE started = 1 AND aggregate_id = 'expired' "+
			"ORDER BY consumer_name"))
		require.Equal(t, 2, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE started <> 0"), "new events are not")
	})
}

// Events of a dead process that have to wait again, behind one that fails, are settled as all others are.
func TestAnEventOfADeadProcessWaitsBehindAFailure(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		a := answer(errHandler)
		f.failing("A", bus.ConsumerConfig{Concurrency: 1}, a)
		for seq := range 4 {
			f.save(orderPaid{OrderID: "1", Seq: seq})
		}
		f.exec("UPDATE bc_outbox_event SET status = 'DISPATCHING', locked_by = 'dead', lock_version = 1")
		f.hurry()
		f.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusFailed: 4}, f.statuses())
		require.Equal(t, map[consumelog.Status]int{consumelog.Failed: 1, consumelog.Pending: 3}, f.deliveries())
		a.Store(nil)
		f.hurry()
		f.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 4}, f.statuses())
	})
}

// A lease names the run of a process. One that is restarted under its name does not take what its predecessor has leased
// for its own, and ends these leases: they may be long, and only it knows that nobody holds them.
func TestARestartTakesOverFromItsPredecessor(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixtureOf(t, db, outbox.Config{Instance: "n0"})
		f.effects()
		f.counting("A", bus.ConsumerConfig{})
		for _, id := range []string{"event", "delivery", "other", "older"} {
			f.save(orderPaid{OrderID: id})
		}
		f.exec("UPDATE bc_outbox_event SET status = 'DISPATCHING', locked_by = 'n0#dead', lock_version = 1, next_retry_at = " + inAnHour(db) +
			" WHERE aggregate_id <> 'delivery'")
		f.exec("UPDATE bc_outbox_event SET locked_by = 'n1#dead' WHERE aggregate_id = 'other'")
		f.exec("UPDATE bc_outbox_event SET locked_by = 'n0' WHERE aggregate_id = 'older'") // an older release, that may run
		f.wait("A")
		f.exec("UPDATE bc_event_consume_log SET status = 'PROCESSING', locked_by = 'n0#dead', lock_version = 1, next_retry_at = " + inAnHour(db))
		f.exec("INSERT INTO bc_instance (name, run_id, host, version) VALUES ('n0', 'n0#dead', 'h', 'v')")
		f.run(outbox.PublisherConfig{Lease: time.Hour, Poll: 10 * time.Millisecond})
		f.eventually(func() bool { return f.statuses()[outbox.StatusSent] == 2 }, "what n0 had leased is delivered at once")
		require.Equal(t, 2, f.count("SELECT COUNT(*) FROM effect WHERE aggregate IN ('event', 'delivery')"))
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 2, outbox.StatusDispatching: 2}, f.statuses(), "and nothing else")
		f.eventually(func() bool {
			return f.count("SELECT COUNT(*) FROM bc_instance WHERE name = 'n0' AND run_id LIKE 'n0#%' AND run_id <> 'n0#dead'") == 1
		}, "it is known by its name")
	})
}

// A predecessor that was only frozen finds out when it wakes up.
func TestAFrozenPredecessorIsFenced(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"mysql", "postgres"} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.DSN(t, dialect)
			first := newFixtureOf(t, migrated(t, dsn), outbox.Config{Instance: "n0"})
			first.effects()
			var once sync.Once
			entered, gate := make(chan struct{}), make(chan struct{})
			bus.On(first.bus.Consumer("A", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
				if m.Payload.Seq == 1 {
					once.Do(func() { close(entered) }) // it may get it again, from the log
					<-gate
				}
				return effect(ctx, tx, m, m.Payload.Seq)
			})
			stop, ended := first.begin(outbox.PublisherConfig{Lease: time.Hour, Poll: 10 * time.Millisecond})
			first.save(orderPaid{OrderID: "1", Seq: 1}, orderPaid{OrderID: "1", Seq: 2}, orderPaid{OrderID: "2", Seq: 3})
			<-entered
			second := newFixtureOf(t, testdb.OpenDSN(t, dsn), outbox.Config{Instance: "n0"})
			second.counting("A", bus.ConsumerConfig{})
			second.run(outbox.PublisherConfig{Lease: time.Hour, Poll: 10 * time.Millisecond})
			second.eventually(func() bool {
				return second.count("SELECT COUNT(*) FROM bc_outbox_event WHERE retry_count > 0 OR status = 'SENT'") == 3
			}, "the second has taken them over, but for what a second worker of the first has delivered")
			close(gate)
			second.eventually(func() bool { return second.statuses()[outbox.StatusSent] == 3 }, "they are delivered")
			require.Equal(t, "1\n2\n3", second.texts("SELECT CAST(seq AS CHAR(1)) FROM effect ORDER BY seq"), "once")
			require.Equal(t, "1\n2", second.texts("SELECT CAST(seq AS CHAR(1)) FROM effect WHERE aggregate = '1' ORDER BY id"), "in order")
			stop()
			require.NoError(t, errors.Join(<-ended))
		})
	}
}

func inAnHour(db *bun.DB) string {
	return map[string]string{
		"mysql": "UTC_TIMESTAMP(6) + INTERVAL 1 HOUR", "pg": "now() + interval '1 hour'",
		"sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now', '+1 hours') || '000')",
	}[db.Dialect().Name().String()]
}
