package outbox_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// rounds saves so many events of each aggregate, the first of which has the number from.
func (f *fixture) rounds(from, n int, aggregates ...string) {
	f.t.Helper()
	for seq := from; seq < from+n; seq++ {
		events := make([]bus.Event, len(aggregates))
		for i, a := range aggregates {
			events[i] = orderPaid{OrderID: a, Seq: seq}
		}
		f.save(events...)
	}
}

// had is what a consumer has had of an aggregate, in order.
func (f *fixture) had(consumer, aggregate string) []int {
	f.t.Helper()
	var had []int
	rows := f.texts("SELECT seq FROM effect WHERE consumer = '" + consumer + "' AND aggregate = '" + aggregate + "' ORDER BY id")
	for s := range strings.FieldsSeq(rows) {
		n, err := strconv.Atoi(s)
		require.NoError(f.t, err)
		had = append(had, n)
	}
	return had
}

// settled publishes until every event is SENT: what is put off behind others is made due.
func (f *fixture) settled() {
	f.t.Helper()
	for range 10 {
		f.once()
		if f.count("SELECT COUNT(*) FROM bc_outbox_event WHERE status <> 'SENT'") == 0 {
			return
		}
		f.hurry()
	}
	f.t.Fatalf("events are left: %v", f.statuses())
}

func seqs(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// A consumer that is registered for the first time gets the past, in order and once. Who is registered already gets none of it again:
// neither by a restart nor by another instance.
func TestNewConsumerStartsFromTheBeginning(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		old := newFixture(t, db)
		old.registered("Old")
		aggregates := ids(60)
		old.rounds(0, 10, aggregates...) // more than a page
		old.once()
		newer := func() *fixture {
			f := newFixture(t, db)
			f.counting("Old", bus.ConsumerConfig{StartFrom: bus.Beginning()}) // registered: no effect
			f.counting("Late", bus.ConsumerConfig{StartFrom: bus.Beginning()})
			return f
		}
		f := newer()
		f.rounds(10, 1, aggregates...)
		f.settled()
		for _, a := range aggregates {
			require.Equal(t, seqs(11), f.had("Late", a), a)
			require.Equal(t, seqs(11), f.had("Old", a), a)
		}
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 660}, f.statuses())
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_bulk_operation "+
			"WHERE state = 'DONE' AND action = 'start' AND consumer_name = 'Late' "+
			"AND done = 600 AND total = 660 AND seen = total"))
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_audit_log WHERE action = 'bulk start'"))
		newer().once()
		require.Equal(t, 1320, f.count("SELECT COUNT(*) FROM effect"))
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_bulk_operation"))
	})
}

// What a consumer is still to get of the past it gets from a release, too, whose code does not ask for it any more. Live events would
// wait for it for ever.
func TestStartThatIsTakenOutOfTheCodeIsFinished(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		old := newFixture(t, db)
		old.registered("Old")
		old.rounds(0, 4, "1", "2")
		old.once()
		f := newFixture(t, db)
		f.counting("Late", bus.ConsumerConfig{StartFrom: bus.Beginning()})
		f.once()
		half := f.count("SELECT MIN(id) + 3 FROM bc_outbox_event") // as if it had been stopped there
		f.exec("DELETE FROM bc_event_consume_log WHERE consumer_name = 'Late' AND outbox_id > ?", half)
		f.exec("DELETE FROM effect WHERE seq >= 2")
		f.exec("UPDATE bc_bulk_operation SET state = 'RUNNING', finished_at = NULL, reached = ?", half)
		next := newFixture(t, db)
		next.counting("Old", bus.ConsumerConfig{})
		next.counting("Late", bus.ConsumerConfig{})
		next.rounds(4, 1, "1", "2")
		next.settled()
		require.Equal(t, seqs(5), next.had("Late", "1"))
		require.Equal(t, seqs(5), next.had("Late", "2"))
	})
}

// The past may begin at a time, and is of the consumer's own types.
func TestNewConsumerStartsFromATime(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		old := newFixture(t, db)
		bus.On(old.bus.Consumer("Other", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[renamed]) error { return nil })
		old.registered("Old")
		old.rounds(0, 2, "1", "2")
		old.save(renamed{OrderID: "1"})
		old.once()
		old.exec("UPDATE bc_outbox_event SET created_at = " + old.daysBack(3))
		old.rounds(2, 2, "1", "2")
		old.once()
		f := newFixture(t, db)
		f.counting("Late", bus.ConsumerConfig{StartFrom: time.Now().Add(-48 * time.Hour)})
		f.once()
		require.Equal(t, []int{2, 3}, f.had("Late", "1"))
		require.Equal(t, []int{2, 3}, f.had("Late", "2"))
	})
}

// Live events of an aggregate wait until the backfill has passed its past ones, although nobody paused anything; those of others do
// not wait. An event in flight, whose claim may not have known the consumer, holds up the backfill.
func TestLiveEventsWaitBehindThePast(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		old := newFixture(t, db)
		old.registered("Old")
		old.save(orderPaid{OrderID: "held"})
		old.save(orderPaid{OrderID: "past"})
		old.once()
		old.exec("UPDATE bc_outbox_event SET status = 'DISPATCHING', locked_by = 'another', lock_version = lock_version + 1, next_retry_at = " +
			inAnHour(db) + " WHERE aggregate_id = 'held'")
		f := newFixture(t, db)
		f.counting("Old", bus.ConsumerConfig{})
		f.counting("Late", bus.ConsumerConfig{StartFrom: bus.Beginning()})
		f.once()
		f.save(orderPaid{OrderID: "past", Seq: 1}, orderPaid{OrderID: "live", Seq: 1})
		f.once()
		require.Empty(t, f.had("Late", "past"), "the first one comes first")
		require.Equal(t, []int{1}, f.had("Late", "live"), "it has no past")
		require.Equal(t, seqs(2), f.had("Old", "past"), "nobody else waits")

		f.exec("UPDATE bc_outbox_event SET status = 'SENT', locked_by = NULL WHERE aggregate_id = 'held'")
		f.settled()
		require.Equal(t, seqs(2), f.had("Late", "past"))
		require.Equal(t, seqs(1), f.had("Late", "held"))
		require.Equal(t, 8, f.count("SELECT COUNT(*) FROM effect"))
	})
}

// Several instances start at once, one of them ends in the middle, and live events of the same aggregates are saved all the time.
func TestSeveralInstancesStartANewConsumerBesideLiveEvents(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		const past, live = 70, 15 // more than a page
		aggregates := ids(8)
		old := newFixture(t, db)
		old.registered("Old")
		old.rounds(0, past, aggregates...)
		old.once()
		instance := func() *fixture {
			f := newFixture(t, db)
			f.counting("Old", bus.ConsumerConfig{})
			f.counting("Late", bus.ConsumerConfig{StartFrom: bus.Beginning()})
			return f
		}
		cfg := outbox.PublisherConfig{Poll: 20 * time.Millisecond}
		all := []*fixture{instance(), instance(), instance()}
		stop, ended := all[0].begin(cfg)
		for _, f := range all[1:] {
			f.run(cfg)
		}
		var wg sync.WaitGroup
		wg.Go(func() { all[1].rounds(past, live, aggregates...) })
		f := all[2]
		f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect WHERE consumer = 'Late'") > 0 }, "it has begun")
		stop()
		require.NoError(t, <-ended)
		wg.Wait()
		f.eventually(func() bool {
			return f.statuses()[outbox.StatusSent] == len(aggregates)*(past+live) &&
				f.count("SELECT COUNT(*) FROM effect WHERE consumer = 'Late'") >= len(aggregates)*(past+live)
		}, "all of them have everything")
		for _, a := range aggregates {
			for _, consumer := range []string{"Old", "Late"} {
				require.Equal(t, seqs(past+live), f.had(consumer, a), "%s of %s", consumer, a)
			}
		}
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_bulk_operation WHERE state = 'DONE'"))
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_bulk_operation"))
	})
}

// Mistakes are named when the program is put together.
func TestStartFromThatCannotBe(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "sqlite")
	f := newFixtureOf(t, db, outbox.Config{DeleteSent: true})
	f.counting("Late", bus.ConsumerConfig{StartFrom: time.Now().Add(-time.Hour)})
	f.counting("Early", bus.ConsumerConfig{StartFrom: time.Now().Add(time.Hour)})
	_, err := outbox.NewPublisher(f.ob, f.bus, outbox.PublisherConfig{})
	require.ErrorContains(t, err, "ConsumerConfig.StartFrom is ")
	require.ErrorContains(t, err, "in the future")
	require.ErrorContains(t, err, "Late has a ConsumerConfig.StartFrom, and outbox.Config.DeleteSent leaves no past")
	require.Len(t, slices.Collect(strings.Lines(err.Error())), 2)
}
