package ops_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

// late is a consumer that was registered after events had been delivered, and what it has had, by order.
type late struct {
	mu  sync.Mutex
	had map[string][]string
}

// register adds the consumer to a bus. It takes order.noted only.
func (l *late) register(b *bus.Bus) {
	l.had = make(map[string][]string)
	bus.On(b.Consumer("Late", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[noted]) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.had[m.Payload.OrderID] = append(l.had[m.Payload.OrderID], m.Payload.Note)
		return nil
	})
}

func (l *late) of(order string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.had[order])
}

func (l *late) total() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, had := range l.had {
		n += len(had)
	}
	return n
}

// afterwards is a deployment whose Steady has had n rounds of events of five orders; a new release has Late, too.
func afterwards(t *testing.T, db *bun.DB, rounds int) (*fixture, *late) {
	t.Helper()
	before := newFixture(t, db, ops.Config{}).consumers()
	for i := range rounds {
		for o := range 5 {
			before.save(noted{OrderID: itoa(o), Note: itoa(i)}, paid{OrderID: fmt.Sprint(o, "-", i)})
		}
	}
	before.once()
	f, l := newFixture(t, db, ops.Config{}).consumers(), &late{}
	l.register(f.bus)
	f.once() // it is registered now
	require.Zero(t, l.total(), "what was delivered before it came is none of its business")
	return f, l
}

func wanted(n int) []string {
	out := make([]string, n)
	for i := range n {
		out[i] = itoa(i)
	}
	return out
}

// A consumer that is registered later gets past events of its types, in order, each once, and live events behind them.
func TestBackfillGivesThePastInOrderBesideLiveEvents(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		const rounds = 8
		f, l := afterwards(t, db, rounds)
		b, err := f.ops.StartBulk(t.Context(), op, ops.NewBulk{
			ID: "past", Action: ops.ActionBackfill, Consumer: "Late", Rate: 10_000, Query: ops.Query{Since: time.Now().Add(-24 * time.Hour)},
		})
		require.NoError(t, err)
		require.EqualValues(t, 10*rounds, b.Total.Count)
		for o := range 5 { // live
			f.save(noted{OrderID: itoa(o), Note: itoa(rounds)})
		}
		f.once()
		require.Zero(t, l.total(), "no live event passes what is not in the log yet, although the consumer is not paused")
		worked, err := f.ops.RunBulkOnce(t.Context())
		require.NoError(t, err)
		require.True(t, worked)
		b, err = f.ops.Bulk(t.Context(), "past")
		require.NoError(t, err)
		require.Equal(t, ops.BulkDone, b.State)
		require.EqualValues(t, 5*rounds, b.Done)
		require.EqualValues(t, 5*rounds, b.Passed, "of a type that it does not take")
		f.once()
		for o := range 5 {
			f.save(noted{OrderID: itoa(o), Note: itoa(rounds + 1)})
		}
		f.hurry()
		f.once()
		for o := range 5 {
			require.Equal(t, wanted(rounds+2), l.of(itoa(o)), "order %d", o)
		}
		require.Zero(t, f.count("SELECT COUNT(*) FROM bc_outbox_event WHERE status <> 'SENT'"))
		require.Zero(t, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE consumer_name = 'Late' AND status <> 'SUCCESS'"))

		again, err := f.ops.StartBulk(t.Context(), op, ops.NewBulk{
			Action: ops.ActionBackfill, Consumer: "Late", Rate: 10_000, Query: ops.Query{EventType: "order.noted"},
		})
		require.NoError(t, err)
		_, err = f.ops.RunBulkOnce(t.Context())
		require.NoError(t, err)
		again, err = f.ops.Bulk(t.Context(), again.ID)
		require.NoError(t, err)
		require.Zero(t, again.Done, "it has had everything")
		f.once()
		require.Equal(t, 5*(rounds+2), l.total())
	})
}

// Later events of an aggregate wait behind a past one that is not delivered yet, although the consumer is not paused.
func TestLiveEventsWaitBehindTheBackfill(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f, l := afterwards(t, db, 1)
		id := f.texts("SELECT event_id FROM bc_outbox_event WHERE event_type = 'order.noted' AND aggregate_id = '3'")[0]
		require.NoError(t, f.ops.Backfill(t.Context(), op, id, "Late"))
		f.save(noted{OrderID: "3", Note: "1"}, noted{OrderID: "4", Note: "1"})
		f.once()
		require.Equal(t, []string{"0", "1"}, l.of("3"))
		require.Equal(t, []string{"1"}, l.of("4"), "nobody has asked for the past of this one")
	})
}

// An instance that dies in the middle leaves its lease: another one goes on, also if the place was not noted, and nothing is
// delivered twice although deliveries go on meanwhile.
func TestBackfillSurvivesItsInstance(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		const rounds = 6
		f, l := afterwards(t, db, rounds)
		_, err := f.ops.StartBulk(t.Context(), op, ops.NewBulk{
			ID: "past", Action: ops.ActionBackfill, Consumer: "Late", Rate: 1, Query: ops.Query{EventType: "order.noted"},
		})
		require.NoError(t, err)
		f.dieAt("past")
		f.once()
		b, err := f.ops.Bulk(t.Context(), "past")
		require.NoError(t, err)
		require.Less(t, b.Done, int64(5*rounds), "its pace is one event a second")
		f.exec("UPDATE bc_bulk_operation SET next_cursor = '', locked_by = 'dead', locked_until = " + f.now(-time.Second))
		f.hurry()
		worked, err := f.ops.RunBulkOnce(t.Context())
		require.NoError(t, err)
		require.True(t, worked)
		f.once()
		for o := range 5 {
			require.Equal(t, wanted(rounds), l.of(itoa(o)), "order %d", o)
		}
		require.Equal(t, 5*rounds, f.count("SELECT COUNT(*) FROM bc_audit_log WHERE action = 'backfill'"))
	})
}

// A bulk operation waits for an event that an instance is delivering: whoever claimed it may not have known the consumer.
func TestBackfillWaitsForWhatIsInFlight(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		const rounds = 6
		f, l := afterwards(t, db, rounds)
		third := f.texts("SELECT event_id FROM bc_outbox_event WHERE event_type = 'order.noted' ORDER BY id")[2]
		f.exec("UPDATE bc_outbox_event SET status = 'DISPATCHING', locked_by = 'old', next_retry_at = "+f.now(time.Hour)+
			" WHERE event_id = ?", third)
		require.ErrorIs(t, f.ops.Backfill(t.Context(), op, third, "Late"), outbox.ErrInFlight)
		_, err := f.ops.StartBulk(t.Context(), op, ops.NewBulk{
			ID: "past", Action: ops.ActionBackfill, Consumer: "Late", Rate: 1000, Query: ops.Query{EventType: "order.noted"},
		})
		require.NoError(t, err)
		ended := make(chan error, 1)
		go func() {
			_, err := f.ops.RunBulkOnce(t.Context())
			ended <- err
		}()
		require.Eventually(t, func() bool { return f.count("SELECT COUNT(*) FROM bc_bulk_operation WHERE done >= 2") == 1 }, 2*time.Minute,
			20*time.Millisecond)
		f.exec("UPDATE bc_outbox_event SET status = 'SENT', locked_by = NULL, next_retry_at = NULL WHERE event_id = ?", third)
		require.NoError(t, <-ended)
		b, err := f.ops.Bulk(t.Context(), "past")
		require.NoError(t, err)
		require.Equal(t, [3]int64{5 * rounds, 5 * rounds, 0}, [3]int64{b.Seen, b.Done, b.Passed})
		f.once()
		require.Equal(t, 5*rounds, l.total())
	})
}

// What is on its way, was had, was skipped by an operator, or is of a type that the consumer does not take, is left alone.
func TestBackfillLeavesAlone(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f, l := afterwards(t, db, 1)
		noted0 := f.texts("SELECT event_id FROM bc_outbox_event WHERE event_type = 'order.noted' AND aggregate_id = '0'")[0]
		for says, attempt := range map[string][2]string{
			"no instance takes order.paid for Late":          {paidID("0-0"), "Late"},
			"no instance takes order.noted for Nobody":       {noted0, "Nobody"},
			"Steady has had the event":                       {noted0, "Steady"},
			`there is no event "gone"`:                       {"gone", "Late"},
			"ops: consumer is empty|name the consumer|empty": {noted0, ""},
		} {
			err := f.ops.Backfill(t.Context(), op, attempt[0], attempt[1])
			require.Error(t, err, says)
			require.True(t, slices.ContainsFunc(strings.Split(says, "|"), func(s string) bool { return strings.Contains(err.Error(), s) }), err)
		}
		require.NoError(t, f.ops.Backfill(t.Context(), op, noted0, "Late"))
		require.NoError(t, f.ops.Skip(t.Context(), op, noted0, "Late"))
		require.ErrorIs(t, f.ops.Backfill(t.Context(), op, noted0, "Late"), ops.ErrNotFound, "an operator has skipped it")
		f.save(noted{OrderID: "9", Note: "0"})
		fresh := f.texts("SELECT event_id FROM bc_outbox_event WHERE aggregate_id = '9'")[0]
		require.ErrorContains(t, f.ops.Backfill(t.Context(), op, fresh, "Late"), "the event is NEW and on its way to every consumer")
		f.once()
		require.Equal(t, []string{"0"}, l.of("9"))
		require.Equal(t, 1, l.total())
		_, err := f.ops.StartBulk(t.Context(), op, ops.NewBulk{Action: ops.ActionBackfill, Query: ops.Query{Status: outbox.StatusSent}})
		require.ErrorContains(t, err, "backfill needs a consumer")
	})
}

// Whoever is limited to a tenant gives a consumer the past of that tenant only.
func TestBackfillStaysWithinTheTenant(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f, l := afterwards(t, db, 2)
		f.exec("UPDATE bc_outbox_event SET tenant_id = CASE WHEN aggregate_id = '1' THEN 7 ELSE 8 END")
		f.exec("UPDATE bc_event_consume_log SET tenant_id = CASE WHEN aggregate_id = '1' THEN 7 ELSE 8 END")
		mine := ops.WithCaller(t.Context(), ops.Caller{Name: "anna", Tenants: []int64{7}})
		_, err := f.ops.StartBulk(mine, op, ops.NewBulk{
			ID: "past", Action: ops.ActionBackfill, Consumer: "Late", Rate: 10_000, Query: ops.Query{EventType: "order.noted"},
		})
		require.NoError(t, err)
		_, err = f.ops.RunBulkOnce(t.Context())
		require.NoError(t, err)
		f.once()
		require.Equal(t, wanted(2), l.of("1"))
		require.Equal(t, 2, l.total())
	})
}

func (f *fixture) texts(query string) []string {
	f.t.Helper()
	var out []string
	require.NoError(f.t, f.db.NewRaw(query).Scan(f.t.Context(), &out))
	return out
}
