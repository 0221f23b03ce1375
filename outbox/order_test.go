package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"golang.org/x/sync/errgroup"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/inject"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// unstable registers a consumer that now and then fails, is slow, or panics, before or after its effect.
func (f *fixture) unstable(name string, cfg bus.ConsumerConfig) {
	bus.On(f.bus.Consumer(name, cfg), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
		dice := rand.IntN(20)
		if dice == 0 {
			return errors.New("bad luck before")
		}
		if err := effect(ctx, tx, m, m.Payload.Seq); err != nil {
			return err
		}
		switch dice {
		case 1:
			return bus.RetryAfter(errors.New("bad luck after"), time.Millisecond)
		case 2:
			panic("very bad luck")
		}
		return nil
	})
}

// leasedByAnother saves two events of an aggregate, of which another instance has the first in flight.
func (f *fixture) leasedByAnother() {
	f.save(orderPaid{OrderID: "1", Seq: 1}, orderPaid{OrderID: "1", Seq: 2})
	later := inAnHour(f.db)
	f.exec("UPDATE bc_outbox_event SET status = 'DISPATCHING', locked_by = 'another', lock_version = 1, next_retry_at = " + later +
		" WHERE id = (SELECT id FROM (SELECT MIN(id) AS id FROM bc_outbox_event WHERE status = 'NEW') AS first)")
}

// The log has the deliveries of an aggregate in order, also those of one transaction whose events were
// leased before, some more often than others.
func TestLogKeepsTheOrder(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("A", bus.ConsumerConfig{})
		f.save(orderPaid{OrderID: "1", Seq: 1}, orderPaid{OrderID: "1", Seq: 2}, orderPaid{OrderID: "1", Seq: 3},
			orderPaid{OrderID: "1", Seq: 4}, orderPaid{OrderID: "1", Seq: 5})
		f.exec("UPDATE bc_outbox_event SET lock_version = CASE id % 5 WHEN 1 THEN 2 WHEN 2 THEN 0 WHEN 3 THEN 2 WHEN 4 THEN 4 ELSE 6 END")
		f.once()
		require.Equal(t, 5, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE status = 'SUCCESS' AND created_at = updated_at"),
			"at the first go")
		require.Zero(t, f.count("SELECT COUNT(*) FROM bc_event_consume_log a JOIN bc_event_consume_log b ON b.outbox_id > a.outbox_id "+
			"AND (b.id < a.id OR b.consumed_at < a.consumed_at)"))
	})
}

// Two instances never work on two events of one aggregate at the same time.
func TestNoInstanceClaimsBehindAnother(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("A", bus.ConsumerConfig{})
		f.leasedByAnother()
		require.Zero(t, f.once().Claimed)
		require.Equal(t, map[outbox.Status]int{outbox.StatusDispatching: 1, outbox.StatusNew: 1}, f.statuses())
		require.Empty(t, f.deliveries())
	})
}

// Nor when there is much before that which nobody is in the way of.
func TestNoInstanceClaimsBehindAnotherFarAhead(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.registered("A")
		f.save(slices.Repeat([]bus.Event{orderPaid{OrderID: "1", Seq: 1}}, 300)...)
		f.wait("A")
		f.leasedByAnother()
		require.Zero(t, f.once().Claimed)
		require.Equal(t, 1, f.statuses()[outbox.StatusNew])
	})
}

// However much of its aggregate is open before an event, it is claimed, and comes after all of that.
func TestOrderBehindVeryMuch(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.registered("Healthy", "Paused")
		require.NoError(t, f.ob.Pause(t.Context(), outbox.Operation{Actor: "ann", Reason: "a test"}, "Paused", 0))
		const n = 200
		for i := range n / 10 {
			events := make([]bus.Event, 10)
			for j := range events {
				events[j] = orderPaid{OrderID: "1", Seq: 10*i + j}
			}
			f.save(events...)
		}
		f.run(outbox.PublisherConfig{BatchSize: 50, Poll: 20 * time.Millisecond})
		f.eventually(func() bool { return f.statuses()[outbox.StatusFailed] == n }, "one of two has had all")
		require.Equal(t, n, f.count("SELECT COUNT(*) FROM effect"))
		require.Zero(t, f.count("SELECT COUNT(*) FROM effect a JOIN effect b ON a.id < b.id AND a.seq >= b.seq"))
	})
}

// Rule (c): an earlier event blocks a waiting delivery even if it has no row in the log yet.
func TestEarlierEventWithoutARowBlocksTheRetryQueue(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("A", bus.ConsumerConfig{})
		f.leasedByAnother()
		f.wait("A")
		f.once()
		require.Zero(t, f.count("SELECT COUNT(*) FROM effect"))
		require.Equal(t, map[consumelog.Status]int{consumelog.Pending: 1}, f.deliveries())
	})
}

// saveLate saves an event in a transaction that commits when what it returns is called. SQLite lets no others write
// meanwhile: there the event is SENT until then, which nobody sees in the way of anything either.
func (f *fixture) saveLate(ev bus.Event) (commit func()) {
	f.t.Helper()
	if f.db.Dialect().Name().String() == "sqlite" {
		f.save(ev)
		f.exec("UPDATE bc_outbox_event SET status = 'SENT' WHERE status = 'NEW'")
		return func() { f.exec("UPDATE bc_outbox_event SET status = 'NEW' WHERE status = 'SENT'") }
	}
	tx, err := f.db.BeginTx(context.Background(), nil)
	require.NoError(f.t, err)
	require.NoError(f.t, f.ob.Save(context.Background(), tx, ev))
	return func() { require.NoError(f.t, tx.Commit()) }
}

// What is in the way of an event may come to be there after its claim has looked: here an earlier one commits then, and
// another instance claims it. Each delivery asks in its own transaction.
func TestEveryDeliveryAsksInItsTransaction(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Dialects() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.DSN(t, dialect)
			f := newFixture(t, migrated(t, dsn))
			f.registered("A")
			other := f.another(dsn)
			other.counting("A", bus.ConsumerConfig{})
			commit := f.saveLate(orderPaid{OrderID: "1", Seq: 1})
			f.save(orderPaid{OrderID: "1", Seq: 2})

			claimed, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			letGo, claims := sync.OnceFunc(func() { close(goOn) }), sync.OnceFunc(func() { close(claimed) })
			t.Cleanup(letGo)
			other.inject(inject.Faults{BeforeDelivery: func(string, []string) error {
				claims()
				<-goOn
				return nil
			}})
			afterTheClaim := sync.OnceFunc(func() {
				commit()
				go func() {
					_, err := other.publisher(outbox.PublisherConfig{}).RunOnce(context.Background())
					claims()
					ended <- err
				}()
				<-claimed
			})
			f.inject(inject.Faults{BeforeDelivery: func(string, []string) error { afterTheClaim(); return nil }})
			f.once()
			require.Zero(t, f.count("SELECT COUNT(*) FROM effect"), "the other instance has the first event in flight")
			letGo()
			require.NoError(t, <-ended)
			f.hurry()
			f.once()
			var seq []int
			require.NoError(t, f.db.NewRaw("SELECT seq FROM effect ORDER BY id").Scan(t.Context(), &seq))
			require.Equal(t, []int{1, 2}, seq)
		})
	}
}

// Deliveries to a handler without a transaction are claimed together: when the first fails, the second waits.
func TestExternalDeliveryWaitsForTheOneClaimedWithIt(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		var sent []int // calls follow one another
		bus.OnExternal(f.bus.Consumer("Sms", bus.ConsumerConfig{}), func(_ context.Context, m bus.Message[orderPaid]) error {
			if m.Payload.Seq == 1 && m.Attempt == 1 {
				return errors.New("not at the first attempt")
			}
			sent = append(sent, m.Payload.Seq)
			return nil
		})
		f.save(orderPaid{OrderID: "1", Seq: 1}, orderPaid{OrderID: "1", Seq: 2})
		f.wait("Sms")
		f.once()
		require.Empty(t, sent)
		require.Equal(t, map[consumelog.Status]int{consumelog.Failed: 1, consumelog.Pending: 1}, f.deliveries())
		f.hurry()
		f.once()
		require.Equal(t, []int{1, 2}, sent)
	})
}

// Promises 4 and 8: with several instances at once, failures and retries, every consumer sees the
// events of an aggregate in commit order, each takes effect once, and none is left.
func TestOrderHoldsOnManyInstances(t *testing.T) {
	t.Parallel()
	const aggregates, each, instances = 6, 12, 3
	for _, dialect := range testdb.Dialects() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.DSN(t, dialect)
			first := newFixture(t, migrated(t, dsn))
			first.effects()
			all := []*fixture{first}
			for len(all) < instances {
				all = append(all, first.another(dsn))
			}
			for _, f := range all {
				f.unstable("Wallet", bus.ConsumerConfig{MaxAttempts: 1000})
				f.counting("Points", bus.ConsumerConfig{})
				f.run(outbox.PublisherConfig{Poll: 20 * time.Millisecond, BatchSize: 10})
			}
			var g errgroup.Group
			for a := range aggregates {
				g.Go(func() error {
					for seq := range each { // one writer per aggregate: its commits have an order
						f := all[(a+seq)%instances]
						if err := f.trySave(orderPaid{OrderID: fmt.Sprintf("order-%d", a), Seq: seq}); err != nil {
							return err
						}
					}
					return nil
				})
			}
			require.NoError(t, g.Wait())
			first.eventually(func() bool {
				first.impatient()
				return first.statuses()[outbox.StatusSent] == aggregates*each
			}, "everything is delivered")
			for _, consumer := range []string{"Wallet", "Points"} {
				for a := range aggregates {
					var seq []int
					require.NoError(t, first.db.NewRaw("SELECT seq FROM effect WHERE consumer = ? AND aggregate = ? ORDER BY id", consumer,
						fmt.Sprintf("order-%d", a)).Scan(t.Context(), &seq))
					require.Equal(t, upTo(each), seq, "%s, order-%d", consumer, a)
				}
			}
			require.Equal(t, map[consumelog.Status]int{consumelog.Success: 2 * aggregates * each}, first.deliveries())
		})
	}
}

// impatient shortens the backoff of failed deliveries, which is seconds, to nothing.
func (f *fixture) impatient() {
	f.t.Helper()
	past := map[string]string{
		"mysql": "UTC_TIMESTAMP(6)", "pg": "now()", "sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')",
	}[f.db.Dialect().Name().String()]
	// A deadlock with the engine's own writes is possible here, and harmless: the next look repeats it.
	_, _ = f.db.ExecContext(context.Background(), "UPDATE bc_event_consume_log SET next_retry_at = "+past+" WHERE status IN ('PENDING', "+
		"'FAILED') AND next_retry_at > "+past)
}

func upTo(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// An event whose transaction commits late takes its place behind those that committed before it
// for other aggregates, and none is skipped: the state column is the only cursor.
func TestLateCommitIsNeverSkipped(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Servers() { // SQLite has one writer at a time
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, testdb.Open(t, dialect))
			f.effects()
			f.counting("Counter", bus.ConsumerConfig{})
			slow, err := f.db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			require.NoError(t, f.ob.Save(t.Context(), slow, orderPaid{OrderID: "slow"})) // has the lower id
			f.save(orderPaid{OrderID: "fast"})
			f.once()
			require.Equal(t, []string{"fast"}, f.sequenceOf("SELECT aggregate FROM effect"))
			require.NoError(t, slow.Commit())
			f.once()
			require.Equal(t, []string{"fast", "slow"}, f.sequenceOf("SELECT aggregate FROM effect ORDER BY id"))
		})
	}
}

func (f *fixture) sequenceOf(query string) []string {
	f.t.Helper()
	var out []string
	require.NoError(f.t, f.db.NewRaw(query).Scan(context.Background(), &out))
	return out
}

// A consumer without order lets later events pass an earlier one that failed.
func TestUnorderedConsumerDoesNotWait(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		for name, unordered := range map[string]bool{"Ordered": false, "Unordered": true} {
			bus.On(f.bus.Consumer(name, bus.ConsumerConfig{Unordered: unordered}),
				func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
					if m.Payload.Seq == 0 {
						return errHandler
					}
					return effect(ctx, tx, m, m.Payload.Seq)
				})
		}
		for i := range 3 {
			f.save(orderPaid{OrderID: "1", Seq: i})
		}
		f.once()
		require.ElementsMatch(t, []string{"1", "2"}, f.sequenceOf("SELECT seq FROM effect WHERE consumer = 'Unordered'"))
		require.Empty(t, f.sequenceOf("SELECT seq FROM effect WHERE consumer = 'Ordered'"))
	})
}

// Promise 5: a consumer that hangs keeps no other consumer waiting.
func TestSlowConsumerDelaysNobody(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Servers() { // SQLite has one writer: a handler that hangs in its transaction stops all
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, testdb.Open(t, dialect))
			f.effects()
			f.counting("Fast", bus.ConsumerConfig{})
			gate := make(chan struct{})
			slow := []string{"Slow", "Slow2", "Slow3", "Slow4"} // which together ask for more connections than there are
			for _, name := range slow {
				bus.On(f.bus.Consumer(name, bus.ConsumerConfig{Queue: 5}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
					<-gate
					return effect(ctx, tx, m, m.Payload.Seq)
				})
			}
			f.run(outbox.PublisherConfig{Poll: 20 * time.Millisecond, BatchSize: 10})
			var release sync.Once
			open := func() { release.Do(func() { close(gate) }) }
			defer open()
			for i := range 60 { // more than the slow one's queue and hands can take
				f.save(orderPaid{OrderID: fmt.Sprint(i % 20), Seq: i})
			}
			f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect WHERE consumer = 'Fast'") == 60 }, "the fast one is done")
			require.Equal(t, 60, f.count("SELECT COUNT(*) FROM effect"))
			open()
			f.eventually(func() bool { return f.statuses()[outbox.StatusSent] == 60 }, "the slow ones catch up")
			require.Equal(t, 60*(1+len(slow)), f.count("SELECT COUNT(*) FROM effect"))
		})
	}
}

// However many events wait behind one that another instance has in flight, those of other aggregates do not.
func TestLongBlockedAggregateHoldsUpNobody(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("A", bus.ConsumerConfig{})
		f.leasedByAnother()
		blocked := f.count("SELECT COUNT(*) FROM bc_outbox_event")
		behind := make([]bus.Event, 500)
		for i := range 3000 {
			behind[i%500] = orderPaid{OrderID: "1", Seq: i + 10}
			if i%500 == 499 {
				f.save(behind...)
			}
		}
		f.save(orderPaid{OrderID: "2", Seq: 1})
		f.run(outbox.PublisherConfig{})
		f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == 1 }, "the other aggregate's event is delivered")
		f.eventually(func() bool {
			return f.count("SELECT COUNT(*) FROM bc_outbox_event WHERE status <> 'SENT'") == 3000+blocked
		}, "and nothing else")
	})
}
