package outbox_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

var ops = outbox.Operation{Actor: "ops", Reason: "ticket 4711"}

// onlyEvent is the id of the only event there is.
func (f *fixture) onlyEvent() (id string) {
	f.t.Helper()
	require.NoError(f.t, f.db.QueryRowContext(f.t.Context(), "SELECT event_id FROM bc_outbox_event").Scan(&id))
	return id
}

func TestOperatorMarksAFailingDeliveryDead(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		a := answer(errHandler)
		runs := f.failing("A", bus.ConsumerConfig{}, a)
		f.save(orderPaid{OrderID: "1"})
		f.once()
		id := f.onlyEvent()
		require.NoError(t, f.ob.MarkDead(t.Context(), ops, id, "A"))
		require.Equal(t, map[outbox.Status]int{outbox.StatusDead: 1}, f.statuses())
		f.hurry()
		f.once()
		require.EqualValues(t, 1, runs.Load(), "the engine leaves it alone")
		require.ErrorIs(t, f.ob.MarkDead(t.Context(), ops, id, "A"), outbox.ErrNotFound, "it is DEAD already")
		a.Store(nil)
		require.NoError(t, f.ob.Retry(t.Context(), ops, id, "A"))
		f.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 1}, f.statuses())
		require.Equal(t, 2, f.count("SELECT COUNT(*) FROM bc_audit_log WHERE target = ? AND reason = 'ticket 4711'", id))
	})
}

// An operator's retry does not wait for another delivery of the event that runs. The handler's transaction has locked that row, and the
// operator's has locked the event, for which retries of other consumers wait. SQLite has one writer.
func TestOperatorDoesNotWaitForAnotherDeliveryThatRuns(t *testing.T) {
	t.Parallel()
	testdb.EachServer(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		a := answer(errHandler)
		f.failing("Dead", bus.ConsumerConfig{}, answer(bus.Permanent(errHandler)))
		inside, gate := make(chan struct{}), make(chan struct{})
		bus.On(f.bus.Consumer("Slow", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[orderPaid]) error {
			if err := a.Load(); err != nil {
				return *err
			}
			close(inside)
			<-gate
			return nil
		})
		f.save(orderPaid{OrderID: "1"})
		f.once()
		a.Store(nil)
		f.hurry()
		f.run(outbox.PublisherConfig{Poll: 10 * time.Millisecond})
		<-inside
		ctx, cancel := context.WithTimeout(t.Context(), testdb.Patience())
		defer cancel()
		err := f.ob.Retry(ctx, ops, f.onlyEvent())
		close(gate)
		require.NoError(t, err)
	})
}

// What has not succeeded is retried in its turn. A replay keeps no order with first runs.
func TestSkippedDeliveryIsNotReplayed(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.failing("A", bus.ConsumerConfig{Replayable: true}, answer(errHandler))
		f.save(orderPaid{OrderID: "1"})
		f.once()
		require.NoError(t, f.ob.Skip(t.Context(), ops, f.onlyEvent(), "A"))
		err := f.ob.Replay(t.Context(), ops, f.onlyEvent(), "A")
		require.ErrorContains(t, err, "A has not succeeded with the event, so there is nothing to repeat (retry it instead)")
		require.Equal(t, map[consumelog.Status]int{consumelog.Skipped: 1}, f.deliveries())
	})
}

// Nothing of an event is discarded while an instance delivers it, from a claim or from the log: the rest would take effect.
func TestDiscardOfWhatIsInFlightIsRefused(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.failing("A", bus.ConsumerConfig{}, answer(errHandler))
		f.failing("B", bus.ConsumerConfig{}, answer(errHandler))
		f.save(orderPaid{OrderID: "1"})
		f.once()
		id := f.onlyEvent()
		for _, inFlight := range []string{
			"UPDATE bc_outbox_event SET status = 'DISPATCHING', locked_by = 'x'",
			"UPDATE bc_event_consume_log SET status = 'PROCESSING', locked_by = 'x' WHERE consumer_name = 'A'",
		} {
			f.exec(inFlight)
			err := f.ob.Discard(t.Context(), ops, id)
			require.ErrorIs(t, err, outbox.ErrInFlight)
			require.ErrorIs(t, err, outbox.ErrNotFound)
			require.Zero(t, f.deliveries()[consumelog.Skipped])
			f.exec("UPDATE bc_outbox_event SET status = 'FAILED', locked_by = NULL")
		}
		f.exec("UPDATE bc_event_consume_log SET status = 'FAILED', locked_by = NULL")
		require.NoError(t, f.ob.Discard(t.Context(), ops, id))
		require.Equal(t, map[consumelog.Status]int{consumelog.Skipped: 2}, f.deliveries())
	})
}

// begins is a hook that lets a delivery begin just after a look for deliveries that run.
type begins struct {
	once  sync.Once
	begin func()
}

func (b *begins) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

func (b *begins) AfterQuery(_ context.Context, ev *bun.QueryEvent) {
	if strings.HasPrefix(ev.Query, "SELECT COUNT(CASE WHEN status = 'PROCESSING'") {
		b.once.Do(b.begin)
	}
}

// A delivery that begins while an event is being discarded is seen too. SQLite has one writer.
func TestDiscardOfWhatHasJustBegunIsRefused(t *testing.T) {
	t.Parallel()
	testdb.EachServer(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.failing("A", bus.ConsumerConfig{}, answer(errHandler))
		f.failing("B", bus.ConsumerConfig{}, answer(errHandler))
		f.save(orderPaid{OrderID: "1"})
		f.once()
		db.AddQueryHook(&begins{begin: func() { //nolint:staticcheck // the library's own statements are to be seen
			f.exec("UPDATE bc_event_consume_log SET status = 'PROCESSING' WHERE consumer_name = 'A'")
		}})
		err := f.ob.Discard(t.Context(), ops, f.onlyEvent())
		require.ErrorIs(t, err, outbox.ErrInFlight)
		require.ErrorIs(t, err, outbox.ErrNotFound)
		require.Equal(t, map[consumelog.Status]int{consumelog.Failed: 1, consumelog.Processing: 1}, f.deliveries())
	})
}

// What is to be retried later is not retried before, although what was before it in its aggregate has ended, and although a publisher
// starts, which wakes what is put off.
func TestDelayedRetryWaitsForItsTime(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		a := answer(bus.Permanent(errHandler))
		f.failing("A", bus.ConsumerConfig{DeadPolicy: bus.Continue}, a)
		f.save(orderPaid{OrderID: "1", Seq: 1}, orderPaid{OrderID: "1", Seq: 2}, orderPaid{OrderID: "2", Seq: 3})
		f.once()
		a.Store(nil)
		for i, id := range f.sequenceOf("SELECT event_id FROM bc_outbox_event ORDER BY id") {
			require.NoError(t, f.ob.Intervene(t.Context(), ops, outbox.Intervention{
				Action: outbox.ActionRetry, EventID: id, Delay: time.Duration(i) * time.Hour,
			}))
		}
		f.once()
		stop, ended := f.begin(outbox.PublisherConfig{})
		f.save(orderPaid{OrderID: "3", Seq: 4})
		f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect WHERE seq = 4") == 1 }, "a publisher has started")
		stop()
		require.NoError(t, <-ended)
		require.Equal(t, []string{"1", "4"}, f.sequenceOf("SELECT seq FROM effect ORDER BY id"))
		f.hurry()
		f.once()
		require.Equal(t, 4, f.count("SELECT COUNT(*) FROM effect"))
	})
}

func TestOperatorActionsNeedAnActorAndAReason(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testdb.Open(t, "sqlite"))
	for _, op := range []outbox.Operation{{}, {Actor: "me"}, {Reason: "why"}, {Actor: " me", Reason: "why"}, {Actor: "me", Reason: " \n"}} {
		require.ErrorContains(t, f.ob.Retry(t.Context(), op, "x"), "operation: ")
		require.ErrorContains(t, f.ob.Skip(t.Context(), op, "x", "A"), "operation: ")
		require.ErrorContains(t, f.ob.MarkDead(t.Context(), op, "x", "A"), "operation: ")
		require.ErrorContains(t, f.ob.Pause(t.Context(), op, "A", 0), "operation: ")
	}
	require.ErrorIs(t, f.ob.Retry(t.Context(), ops, "no-such-event"), outbox.ErrNotFound)
	require.ErrorContains(t, f.ob.Pause(t.Context(), ops, "A", -1), "must not be negative")
	require.Zero(t, f.count("SELECT COUNT(*) FROM bc_audit_log"))
}

// What does not fit together is refused before anything is looked at: a backfill of two consumers would undo what an operator has skipped
// for the second.
func TestInterventionsAreRefusedByTheNameOfTheField(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("Wallet", bus.ConsumerConfig{})
		f.counting("Points", bus.ConsumerConfig{})
		f.save(orderPaid{OrderID: "1"})
		f.once()
		f.exec("UPDATE bc_event_consume_log SET status = 'SKIPPED' WHERE consumer_name = 'Points'")
		f.exec("DELETE FROM bc_event_consume_log WHERE consumer_name = 'Wallet'")
		event := f.onlyEvent()
		for action, says := range map[string]string{
			outbox.ActionBackfill: "Intervention.Consumers has 2 names: name one",
			outbox.ActionReplay:   "Intervention.Consumers has 2 names: name one",
			"reopen":              `there is no action "reopen": the actions are retry, skip, discard, replay, backfill and "mark dead"`,
		} {
			err := f.ob.Intervene(t.Context(), ops, outbox.Intervention{Action: action, EventID: event, Consumers: []string{"Wallet", "Points"}})
			require.ErrorContains(t, err, says)
		}
		for _, action := range []string{outbox.ActionBackfill, outbox.ActionReplay, outbox.ActionSkip, outbox.ActionMarkDead} {
			err := f.ob.Intervene(t.Context(), ops, outbox.Intervention{Action: action, EventID: event})
			require.ErrorContains(t, err, "Intervention.Consumers is empty")
		}
		require.Equal(t, map[consumelog.Status]int{consumelog.Skipped: 1}, f.deliveries())
	})
}

// A consumer with a slow cadence goes on when its attempts are used up, instead of becoming DEAD.
func TestSlowCadenceGoesOnForEver(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		runs := f.failing("A", bus.ConsumerConfig{MaxAttempts: 2, SlowCadence: 6 * time.Hour}, answer(errHandler))
		f.save(orderPaid{OrderID: "1"})
		for range 5 {
			f.once()
			f.hurry()
		}
		require.EqualValues(t, 5, runs.Load())
		require.Equal(t, map[consumelog.Status]int{consumelog.Failed: 1}, f.deliveries())
		f.once()
		log, err := f.log.ByEvents(t.Context(), f.onlyEvent())
		require.NoError(t, err)
		require.Equal(t, 6, log[0].Attempts)
		require.WithinDuration(t, time.Now().Add(6*time.Hour), log[0].NextRetryAt, time.Minute)
	})
}

func TestEventsAreListedByAnIndexInPages(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		for i := range 5 {
			f.save(orderPaid{OrderID: "1", Seq: i}, orderPaid{OrderID: "2", Seq: i})
		}
		var seqs []string
		filter := outbox.Filter{AggregateType: "ORDER", AggregateID: "1", Limit: 2}
		for {
			page, err := f.ob.Events(t.Context(), filter)
			require.NoError(t, err)
			for _, r := range page {
				seqs = append(seqs, string(r.Payload))
				filter.After = r.OutboxID
				require.Equal(t, outbox.StatusNew, r.Status)
				require.WithinDuration(t, time.Now(), r.CreatedAt, time.Minute)
			}
			if len(page) < 2 {
				break
			}
		}
		require.Len(t, seqs, 5)
		require.JSONEq(t, `{"orderId":"1","seq":4}`, seqs[4])
		_, err := f.ob.Events(t.Context(), outbox.Filter{EventType: "order.paid"})
		require.ErrorContains(t, err, "anything else would read the whole table")
		waiting, dead, err := f.ob.OpenEvents(t.Context(), db, 0, "ORDER", "1", "")
		require.NoError(t, err)
		require.Equal(t, []int{5, 0}, []int{waiting, dead})
		backlog, err := f.ob.Backlog(t.Context())
		require.NoError(t, err)
		require.Equal(t, int64(10), backlog.Pending)
	})
}

// What an operator skipped and reopens runs then: behind what has run meanwhile, and before what has not.
func TestWhatIsReopenedRunsBehindWhatRanMeanwhile(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		a := answer(errHandler)
		f.failing("A", bus.ConsumerConfig{}, a)
		f.save(orderPaid{OrderID: "1", Seq: 1})
		f.once()
		skipped := f.onlyEvent()
		require.NoError(t, f.ob.Skip(t.Context(), ops, skipped, "A"))
		a.Store(nil)
		f.save(orderPaid{OrderID: "1", Seq: 2})
		f.once()
		require.NoError(t, f.ob.Retry(t.Context(), ops, skipped, "A"))
		f.save(orderPaid{OrderID: "1", Seq: 3})
		f.once()
		var order []int
		require.NoError(t, db.NewRaw("SELECT seq FROM effect ORDER BY id").Scan(t.Context(), &order))
		require.Equal(t, []int{2, 1, 3}, order)
	})
}
