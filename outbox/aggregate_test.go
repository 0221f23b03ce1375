package outbox_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// An instance of the old release claims an event that only the new release takes together with a later one:
// the later one waits.
func TestEventOfANewReleaseKeepsItsPlaceWithinAClaim(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		old, fresh := newFixture(t, db), newFixture(t, db)
		old.effects()
		old.counting("Counter", bus.ConsumerConfig{})
		c := fresh.bus.Consumer("Counter", bus.ConsumerConfig{})
		bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
			return effect(ctx, tx, m, m.Payload.Seq)
		})
		bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[renamed]) error { return effect(ctx, tx, m, 1) })
		fresh.once() // the deployment knows what it takes
		old.save(keyless("1"), orderPaid{OrderID: "1", Seq: 2})
		require.Equal(t, 2, old.once().Claimed)
		require.Empty(t, old.sequence("1"), "the first has not had its effect yet")
		for range 3 {
			fresh.hurry()
			fresh.once()
		}
		require.Equal(t, []string{"1", "2"}, fresh.sequence("1"))
	})
}

// An event of a type that nobody takes is in the way of nobody, and is delivered once somebody takes it.
func TestEventThatNobodyTakesBlocksNobody(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("Counter", bus.ConsumerConfig{})
		f.save(keyless("1"), orderPaid{OrderID: "1", Seq: 2})
		f.once()
		f.save(orderPaid{OrderID: "1", Seq: 3})
		f.once()
		require.Equal(t, []string{"2", "3"}, f.sequence("1"))
		require.Equal(t, map[outbox.Status]int{outbox.StatusScheduled: 1, outbox.StatusSent: 2}, f.statuses())

		taker := newFixture(t, db)
		bus.On(taker.bus.Consumer("Late", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[renamed]) error {
			return effect(ctx, tx, m, 1)
		})
		taker.hurry()
		taker.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 3}, f.statuses())
		require.Equal(t, []string{"2", "3", "1"}, f.sequence("1"))
	})
}

// A consumer that takes a type that was parked gets what is parked before later events, whoever claims those.
func TestParkedEventKeepsItsPlaceForWhoeverTakesIt(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		old, fresh := newFixture(t, db), newFixture(t, db)
		old.effects()
		old.counting("Counter", bus.ConsumerConfig{})
		old.save(keyless("1"))
		old.once()
		require.Equal(t, 1, old.count("SELECT COUNT(*) FROM bc_outbox_event WHERE last_error LIKE 'no consumer is registered for "+
			"order.renamed%'"))
		c := fresh.bus.Consumer("Counter", bus.ConsumerConfig{})
		bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
			return effect(ctx, tx, m, m.Payload.Seq)
		})
		bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[renamed]) error { return effect(ctx, tx, m, 1) })
		fresh.once() // what is parked is not due yet
		old.save(orderPaid{OrderID: "1", Seq: 2})
		old.once()
		require.Empty(t, old.sequence("1"), "the consumer takes the parked event first")
		for range 3 {
			fresh.hurry()
			fresh.once()
		}
		require.Equal(t, []string{"1", "2"}, fresh.sequence("1"))
	})
}

// Each parked event says which type it is that nobody takes, also beside others that were claimed with it.
func TestParkedEventsNameTheirOwnType(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.save(orderPaid{OrderID: "1"}, renamed{OrderID: "2"}, unheard{orderPaid{OrderID: "3"}})
		f.once()
		require.Equal(t, 3, f.count("SELECT COUNT(*) FROM bc_outbox_event WHERE status = 'SCHEDULED'"))
		for _, eventType := range []string{"order.paid", "order.renamed", "order.unheard"} {
			require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_outbox_event WHERE event_type = ? AND last_error = ?", eventType,
				"no consumer is registered for "+eventType))
		}
	})
}

// A delayed event that falls due waits for an event of its aggregate that another instance has in flight.
func TestDelayedEventWaitsForWhatIsInFlight(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Servers() { // SQLite has one writer: nobody else works while a handler runs
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.DSN(t, dialect)
			busy := newFixture(t, migrated(t, dsn))
			busy.effects()
			started, gate := make(chan struct{}), make(chan struct{})
			bus.On(busy.bus.Consumer("Counter", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
				close(started)
				<-gate
				return effect(ctx, tx, m, m.Payload.Seq)
			})
			other := busy.another(dsn)
			other.counting("Counter", bus.ConsumerConfig{})
			busy.save(outbox.With(orderPaid{OrderID: "1", Seq: 1}, outbox.DeliverAt(time.Now().Add(time.Hour))), orderPaid{OrderID: "1", Seq: 2})
			done := make(chan outbox.Report, 1)
			go func() { done <- busy.once() }()
			<-started
			other.makeDue("bc_outbox_event", "status = 'SCHEDULED'")
			require.Zero(t, other.once().Claimed, "an event of the aggregate is in flight elsewhere")
			require.Empty(t, other.sequence("1"))
			close(gate)
			<-done
			other.makeDue("bc_outbox_event", "status = 'SCHEDULED'")
			other.once()
			require.Equal(t, []string{"2", "1"}, other.sequence("1"))
		})
	}
}

// It also waits for a delivery from the retry queue of its consumer that runs, even if that outlasts its lease: nobody renews it, because
// the handler's transaction has locked its row.
func TestDelayedEventWaitsForARunningRetry(t *testing.T) {
	t.Parallel()
	for name, lease := range map[string]time.Duration{"lease": time.Hour, "lease that is over": time.Second} {
		for _, dialect := range testdb.Servers() {
			t.Run(name+"/"+dialect, func(t *testing.T) {
				t.Parallel()
				delayBehindARetry(t, dialect, lease)
			})
		}
	}
}

func delayBehindARetry(t *testing.T, dialect string, lease time.Duration) {
	t.Helper()
	dsn := testdb.DSN(t, dialect)
	busy := newFixture(t, migrated(t, dsn))
	busy.effects()
	started, gate := make(chan struct{}), make(chan struct{})
	bus.On(busy.bus.Consumer("Counter", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
		close(started)
		<-gate
		return effect(ctx, tx, m, m.Payload.Seq)
	})
	other := busy.another(dsn)
	other.counting("Counter", bus.ConsumerConfig{})
	busy.save(outbox.With(orderPaid{OrderID: "1", Seq: 1}, outbox.DeliverAt(time.Now().Add(time.Hour))), orderPaid{OrderID: "1", Seq: 2})
	busy.wait("Counter")
	p, done := busy.publisher(outbox.PublisherConfig{Lease: lease}), make(chan error, 1)
	go func() {
		_, err := p.RunOnce(context.Background())
		done <- err
	}()
	<-started
	other.eventually(func() bool {
		return lease == time.Hour || other.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE status = 'PROCESSING' "+
			"AND next_retry_at < "+daysAgo(other.db, 0)) == 1
	}, "the lease is over")
	other.makeDue("bc_outbox_event", "status = 'SCHEDULED'")
	other.once()
	early := other.sequence("1")
	close(gate)
	require.NoError(t, <-done)
	require.Empty(t, early, "a later event was running")
	for range 3 {
		other.makeDue("bc_event_consume_log", "status IN ('PENDING', 'FAILED')")
		other.once()
	}
	require.Equal(t, []string{"2", "1"}, other.sequence("1"))
}

// The tenant is part of the aggregate: tenants with the same ids do not wait for each other.
func TestTenantsWithTheSameIDsDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		bus.On(f.bus.Consumer("Counter", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
			if m.Payload.Seq == 1 {
				return bus.Permanent(errHandler)
			}
			return effect(ctx, tx, m, m.Payload.Seq)
		})
		of := func(tenant int64, seq int) bus.Event {
			return outbox.With(orderPaid{OrderID: "1", Seq: seq}, outbox.Tenant(tenant, 0))
		}
		f.save(of(1, 1), of(2, 2), of(0, 3), of(1, 4))
		f.once()
		f.save(of(2, 5), of(0, 6), of(1, 7))
		f.once()
		require.ElementsMatch(t, []string{"2", "3", "5", "6"}, f.sequence("1"))
		require.Equal(t, map[consumelog.Status]int{consumelog.Dead: 1, consumelog.Pending: 2, consumelog.Success: 4}, f.deliveries())
	})
}

// Nor do they share what another instance has in flight.
func TestTenantIsNotHeldUpByALeaseOfAnother(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("A", bus.ConsumerConfig{})
		f.leasedByAnother()
		f.save(outbox.With(orderPaid{OrderID: "1", Seq: 3}, outbox.Tenant(2, 0)))
		require.Equal(t, 1, f.once().Claimed)
		require.Equal(t, []string{"3"}, f.sequence("1"))
	})
}

// What an event costs does not depend on how much of its aggregate waits for a consumer that is paused:
// docs/measurements/huge-aggregate.md has the figures with BLUECONE_TEST_OPEN=100000.
func TestHugeAggregateBesideAPausedConsumerCostsNoMore(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("Healthy", bus.ConsumerConfig{Batch: 1}) // each event asks
		f.counting("Paused", bus.ConsumerConfig{})
		f.once()
		require.NoError(t, f.ob.Pause(t.Context(), outbox.Operation{Actor: "ann", Reason: "a test"}, "Paused", 0))
		open := 20_000
		if n, err := strconv.Atoi(os.Getenv("BLUECONE_TEST_OPEN")); err == nil {
			open = n
		}
		f.pile("huge", open)
		p := f.publisher(outbox.PublisherConfig{})
		const each = 50
		cost := func(aggregate string) time.Duration {
			f.save(slices.Repeat([]bus.Event{orderPaid{OrderID: aggregate}}, each)...)
			began := time.Now()
			_, err := p.RunOnce(t.Context())
			require.NoError(t, err)
			return time.Since(began)
		}
		const runs = 7
		var without, with []time.Duration
		for range runs {
			without, with = append(without, cost("small")), append(with, cost("huge"))
		}
		slices.Sort(without)
		slices.Sort(with)
		t.Logf("median for %d events: %v with little open, %v with %d open", each, without[runs/2], with[runs/2], open)
		require.Less(t, with[runs/2], 3*without[runs/2], "a walk along what is open takes ten times as long and more")
		require.Equal(t, 2*each*runs, f.count("SELECT COUNT(*) FROM effect"))
	})
}

// pile adds n events of an aggregate that wait for the consumer Paused, and have been delivered to the consumer Healthy.
func (f *fixture) pile(aggregate string, n int) {
	f.t.Helper()
	name := f.db.Dialect().Name().String()
	id := map[string]string{"mysql": "CONCAT('pile-', seed.n)", "pg": "'pile-' || seed.n", "sqlite": "'pile-' || seed.n"}[name]
	tens := "(SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL " +
		"SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)"
	seed := fmt.Sprintf("(SELECT a.d + 10*b.d + 100*c.d + 1000*d.d + 10000*e.d AS n "+
		"FROM %[1]s a, %[1]s b, %[1]s c, %[1]s d, %[1]s e) AS seed WHERE seed.n < %[2]d", tens, n)
	f.exec("INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, status, lock_version) " +
		"SELECT 'ORDER', '" + aggregate + "', 'order.paid', " + id + ", '{}', 'FAILED', 2 FROM " + seed + " ORDER BY seed.n")
	for consumer, status := range map[string]string{"Paused": "PENDING", "Healthy": "SUCCESS"} {
		f.exec("INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, outbox_id, aggregate_type, aggregate_id, " +
			"next_retry_at) " +
			"SELECT '" + consumer + "', event_id, event_type, '" + status + "', id, aggregate_type, aggregate_id, created_at " +
			"FROM bc_outbox_event WHERE status = 'FAILED' ORDER BY id")
	}
	f.exec(map[string]string{"mysql": "ANALYZE TABLE bc_outbox_event, bc_event_consume_log", "pg": "ANALYZE", "sqlite": "ANALYZE"}[name])
}

// makeDue makes rows of a table due.
func (f *fixture) makeDue(table, where string) {
	f.t.Helper()
	past := map[string]string{
		"mysql": "UTC_TIMESTAMP(6) - INTERVAL 1 SECOND", "pg": "now() - interval '1 second'",
		"sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now', '-1 seconds') || '000')",
	}[f.db.Dialect().Name().String()]
	f.exec("UPDATE " + table + " SET next_retry_at = " + past + " WHERE " + where)
}
