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
	"github.com/bluecone-go/bluecone/internal/chaos"
	"github.com/bluecone-go/bluecone/internal/inject"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/invariant"
	"github.com/bluecone-go/bluecone/outbox"
)

// A connection that is lost while a handler reads its rows is the database's trouble: no hook sees that
// error, and it is no attempt all the same.
func TestConnectionLostWhileReadingIsNoAttempt(t *testing.T) {
	t.Parallel()
	statements := map[string][3]string{
		"mysql": {
			"SELECT SLEEP(20)", "SELECT id FROM information_schema.processlist WHERE info = 'SELECT SLEEP(20)' AND db = DATABASE()",
			"KILL ?",
		},
		"postgres": {
			"SELECT 1 FROM pg_sleep(20)", "SELECT pid FROM pg_stat_activity WHERE query = 'SELECT 1 FROM pg_sleep(20)' AND state = 'active' " +
				"AND datname = current_database()", "SELECT pg_terminate_backend(?)",
		},
	}
	for _, dialect := range testdb.Servers() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			sql := statements[testdb.Dialect(dialect)]
			f := newFixture(t, testdb.Open(t, dialect))
			f.effects()
			var runs atomic.Int64
			bus.On(f.bus.Consumer("A", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
				if runs.Add(1) > 1 {
					return effect(ctx, tx, m, 1)
				}
				done := make(chan struct{})
				go func() {
					defer close(done)
					var id int64
					for id == 0 && ctx.Err() == nil {
						_ = f.db.QueryRowContext(ctx, sql[1]).Scan(&id) // none yet
					}
					_, _ = f.db.ExecContext(ctx, sql[2], id) // MariaDB says that it was interrupted
				}()
				var n int
				err := tx.QueryRowContext(ctx, sql[0]).Scan(&n)
				<-done
				return err
			})
			f.save(orderPaid{OrderID: "1"})
			f.once()
			require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 1}, f.statuses())
			require.Equal(t, 1, f.count("SELECT attempts FROM bc_event_consume_log"))
			require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect"))
		})
	}
}

// A delivery that was leased and taken over before its handler was called has not used up an attempt:
// however often an instance is away for longer than its leases, nothing becomes DEAD of it.
func TestLeaseLostBeforeTheHandlerIsNoAttempt(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Servers() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.DSN(t, dialect)
			f := newFixture(t, migrated(t, dsn))
			gate, entered := make(chan struct{}), make(chan struct{}, 2)
			bus.On(f.bus.Consumer("A", bus.ConsumerConfig{Concurrency: 1, Batch: 1}),
				func(_ context.Context, _ bun.Tx, m bus.Message[orderPaid]) error {
					if m.AggregateID == "slow" {
						entered <- struct{}{}
						<-gate
					}
					return nil
				})
			other := f.another(dsn)
			bus.On(other.bus.Consumer("A", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[orderPaid]) error {
				return bus.RetryAfter(errors.New("not now"), time.Millisecond)
			})
			f.save(orderPaid{OrderID: "slow"}, orderPaid{OrderID: "queued"})
			f.wait("A")
			f.run(outbox.PublisherConfig{Lease: time.Hour, Poll: 10 * time.Millisecond})
			<-entered
			f.eventually(func() bool {
				return f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE aggregate_id = 'queued' AND status = 'PROCESSING'") == 1
			}, "it is queued behind the slow one")
			id := f.count("SELECT id FROM bc_event_consume_log WHERE aggregate_id = 'queued'")
			f.exec("UPDATE bc_event_consume_log SET next_retry_at = created_at WHERE id = ?", id)
			other.once() // takes it over, and counts the attempt that never began
			close(gate)
			f.eventually(func() bool { return f.statuses()[outbox.StatusSent] == 2 }, "both are delivered")
			require.Equal(t, 1, f.count("SELECT attempts FROM bc_event_consume_log WHERE id = ?", id))
			found, err := invariant.Check(t.Context(), f.db, invariant.Config{Quiet: true})
			require.NoError(t, err)
			require.Empty(t, found)
		})
	}
}

// The attempt of a delivery that could not begin is taken back as soon as the database is there again.
func TestOutageLongerThanALeaseIsNoAttempt(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Servers() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.DSN(t, dialect)
			direct := newFixture(t, migrated(t, dsn))
			direct.effects()
			db, way := throughProxy(t, dialect, dsn)
			f := newFixture(t, db)
			f.counting("A", bus.ConsumerConfig{})
			var once sync.Once
			gone := make(chan struct{})
			f.inject(inject.Faults{BeforeDelivery: func(string, []string) error {
				once.Do(func() { way.Break(chaos.Fault{Kind: chaos.Reset}); close(gone) })
				return nil
			}})
			direct.save(orderPaid{OrderID: "1"})
			direct.wait("A")
			f.run(outbox.PublisherConfig{Lease: time.Second, Poll: 10 * time.Millisecond})
			<-gone
			direct.eventually(func() bool {
				return direct.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE status = 'PROCESSING' AND next_retry_at < "+now(direct.db)) == 1
			}, "its lease runs out")
			way.Repair()
			direct.eventually(func() bool { return direct.statuses()[outbox.StatusSent] == 1 }, "it goes on")
			require.Equal(t, 1, direct.count("SELECT attempts FROM bc_event_consume_log"))
			found, err := invariant.Check(t.Context(), direct.db, invariant.Config{Quiet: true})
			require.NoError(t, err)
			require.Empty(t, found)
		})
	}
}

// broken is an instance whose way to its database breaks as the hook says, with its log, and direct one
// that has another way.
func broken(t *testing.T, dialect string, hook *breaking) (direct, f *fixture, log *lines) {
	t.Helper()
	dsn := testdb.DSN(t, dialect)
	direct = newFixture(t, migrated(t, dsn))
	direct.effects()
	db, way := throughProxy(t, dialect, dsn)
	hook.way = way
	db.AddQueryHook(hook) //nolint:staticcheck // the engine's own statements are to be seen
	f, log = unconnected(t, db)
	return direct, f, log
}

// What an instance has leased and does not know of, or could not settle, does not wait for the end of a
// lease when the trouble is over. What the claim of a delivery has counted as an attempt is one.
func TestLeasesLeftByTrouble(t *testing.T) {
	t.Parallel()
	for name, trouble := range map[string]struct {
		before, after string
		kind          chaos.Kind
		waiting       bool
		says          string
	}{
		"claim that is stored":     {after: "SET status = 'DISPATCHING'", kind: chaos.CutAfterCommit, says: "outbox: claim: "},
		"claim that is not stored": {after: "SET status = 'DISPATCHING'", kind: chaos.CutBeforeCommit, says: "outbox: claim: "},
		"claim of deliveries that is stored": {
			after: "status = 'PROCESSING', started = ", kind: chaos.CutAfterCommit, waiting: true,
			says: "deliveries could not be claimed",
		},
		"claim of deliveries that is not stored": {
			after: "status = 'PROCESSING', started = ", kind: chaos.CutBeforeCommit, waiting: true,
			says: "deliveries could not be claimed",
		},
		"event that cannot be settled": {before: "SET status = 'SENT'", kind: chaos.Reset, says: "events could not be settled"},
	} {
		for _, dialect := range testdb.Servers() {
			t.Run(name+"/"+dialect, func(t *testing.T) {
				t.Parallel()
				hook := &breaking{before: trouble.before, after: trouble.after, fault: chaos.Fault{Kind: trouble.kind}}
				direct, f, log := broken(t, dialect, hook)
				f.counting("A", bus.ConsumerConfig{})
				direct.save(orderPaid{OrderID: "1"}, orderPaid{OrderID: "1", Seq: 1})
				if trouble.waiting {
					direct.wait("A")
				}
				f.run(outbox.PublisherConfig{Lease: time.Hour, Poll: 10 * time.Millisecond})
				f.eventually(func() bool { return log.count(trouble.says) > 0 }, "it is in trouble")
				hook.way.Repair()
				direct.eventually(func() bool { return direct.statuses()[outbox.StatusSent] == 2 }, "they are settled, though the lease is long")
				require.Equal(t, 2, direct.count("SELECT COUNT(*) FROM effect"))
				require.Equal(t, 2, direct.count("SELECT SUM(attempts) FROM bc_event_consume_log"))
				require.Zero(t, direct.count("SELECT COUNT(*) FROM bc_delivery_attempt"))
			})
		}
	}
}

// ending ends a publisher when a COMMIT has no answer.
type ending struct {
	way *chaos.Proxy
	end context.CancelFunc
}

// BeforeQuery does nothing.
func (*ending) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

// AfterQuery fixes what kept the answer, and ends it.
func (h *ending) AfterQuery(_ context.Context, ev *bun.QueryEvent) {
	if ev.Query == "COMMIT" && ev.Err != nil {
		h.way.Repair()
		h.end()
	}
}

// Nor does what is leased by a claim that was being stored when the publisher was told to stop.
func TestLeasesLeftByTheEnd(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]func(context.Context, *outbox.Publisher) error{
		"Run": func(ctx context.Context, p *outbox.Publisher) error { return p.Run(ctx) },
		"RunOnce": func(ctx context.Context, p *outbox.Publisher) error {
			_, err := p.RunOnce(ctx)
			return err
		},
	} {
		for _, dialect := range testdb.Servers() {
			t.Run(name+"/"+dialect, func(t *testing.T) {
				t.Parallel()
				hook := &breaking{after: "SET status = 'DISPATCHING'", fault: chaos.Fault{Kind: chaos.CutAfterCommit}}
				direct, f, _ := broken(t, dialect, hook)
				f.counting("A", bus.ConsumerConfig{})
				direct.save(orderPaid{OrderID: "1"}, orderPaid{OrderID: "2"})
				ctx, end := context.WithCancel(t.Context())
				defer end()
				f.db.AddQueryHook(&ending{hook.way, end}) //nolint:staticcheck // the engine's own statements are to be seen
				err := run(ctx, f.publisher(outbox.PublisherConfig{Lease: time.Hour}))
				require.Error(t, ctx.Err(), "the answer was lost")
				require.Equal(t, name == "RunOnce", err != nil, "%v", err)
				require.Equal(t, map[outbox.Status]int{outbox.StatusNew: 2}, direct.statuses())
			})
		}
	}
}

// A database that falls silent while a lane asks it, outside of a transaction, does not hold the lane for ever.
func TestSilentDatabaseHoldsNoLane(t *testing.T) {
	t.Parallel()
	for name, silence := range map[string]struct {
		before string
		listen func(f *fixture, late *atomic.Bool)
	}{
		"what waits behind a failure": {"SELECT e.id, e.status, e.lock_version, COALESCE(e.locked_by, '')", func(f *fixture, late *atomic.Bool) {
			var calls atomic.Int64
			late.Store(true)
			bus.On(f.bus.Consumer("A", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[orderPaid]) error {
				switch calls.Add(1) {
				case 1: // together
					return errHandler
				case 2: // alone
					late.Store(false)
					return errHandler
				}
				return nil
			})
		}},
		"before a handler without a transaction": {"SELECT event_id, status FROM bc_event_consume_log", func(f *fixture, _ *atomic.Bool) {
			bus.OnExternal(f.bus.Consumer("A", bus.ConsumerConfig{}), func(context.Context, bus.Message[orderPaid]) error { return nil })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hook := &breaking{before: silence.before, fault: chaos.Fault{Kind: chaos.BlackHole}}
			direct, f, log := broken(t, "postgres", hook) // whose driver has no limit of its own
			silence.listen(f, &hook.late)
			direct.save(orderPaid{OrderID: "1"}, orderPaid{OrderID: "1", Seq: 1}, orderPaid{OrderID: "1", Seq: 2})
			f.run(outbox.PublisherConfig{Lease: time.Second, Poll: 10 * time.Millisecond})
			f.eventually(func() bool { return log.count("the database does not answer as it should") > 0 }, "it is silent")
			hook.way.Repair()
			direct.eventually(func() bool { return direct.statuses()[outbox.StatusSent] == 3 }, "the lane goes on")
		})
	}
}

// What RunOnce works on at the same time is not taken for what trouble has left.
func TestTroubleTakesNothingFromRunOnce(t *testing.T) {
	t.Parallel()
	hook := &breaking{}
	direct, f, log := broken(t, "mysql", hook)
	entered, gate := make(chan struct{}, 2), make(chan struct{})
	bus.OnExternal(f.bus.Consumer("Slow", bus.ConsumerConfig{}), func(_ context.Context, m bus.Message[orderPaid]) error {
		if m.AggregateID == "slow" {
			entered <- struct{}{}
			<-gate
		}
		return nil
	})
	p := f.publisher(outbox.PublisherConfig{Lease: time.Hour, Poll: 10 * time.Millisecond})
	direct.save(orderPaid{OrderID: "slow"})
	var all sync.WaitGroup
	all.Go(func() { _, _ = p.RunOnce(t.Context()) })
	<-entered
	ctx, stop := context.WithCancel(t.Context())
	all.Go(func() { _ = p.Run(ctx) })
	f.eventually(func() bool { return log.count("publisher runs") == 1 }, "both are at work")
	hook.way.Break(chaos.Fault{Kind: chaos.Reset})
	f.eventually(func() bool { return log.count("the database does not answer as it should") > 0 }, "it is in trouble")
	hook.way.Repair()
	direct.save(orderPaid{OrderID: "other"})
	direct.eventually(func() bool { return direct.statuses()[outbox.StatusSent] == 1 }, "it goes on")
	require.Equal(t, 1, direct.count("SELECT lock_version FROM bc_outbox_event WHERE aggregate_id = 'slow'"), "nobody has touched it")
	close(gate)
	direct.eventually(func() bool { return direct.statuses()[outbox.StatusSent] == 2 }, "both are done")
	require.Empty(t, entered, "it ran once")
	stop()
	all.Wait()
}

func now(db *bun.DB) string {
	return map[string]string{"mysql": "UTC_TIMESTAMP(6)", "pg": "now()"}[db.Dialect().Name().String()]
}
