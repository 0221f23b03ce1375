package store_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/internal/testplan"
)

func (f logFixture) ask(g store.Gate, ds ...store.Delivery) []store.Answer {
	f.t.Helper()
	var asked []store.Asked
	for _, d := range ds {
		asked = append(asked, store.Asked{Event: leaseOf(d), Aggregate: d.Aggregate()})
	}
	answers, err := f.log.Ask(f.t.Context(), f.db, g, asked)
	require.NoError(f.t, err)
	var in []store.Answer
	for _, d := range ds {
		in = append(in, answers[d.OutboxID])
	}
	return in
}

// An event may run when nothing earlier of its aggregate is unfinished for the consumer, and while its lease is held.
func TestTheAnswersOfTheGate(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		gate := f.gate("me")
		first, second, other := f.event("first", "1"), f.event("second", "1"), f.event("other", "2")
		require.Equal(f.t, []store.Answer{store.MayRun, store.Blocked, store.MayRun}, f.ask(gate, first, second, other))
		unordered := gate
		unordered.Ordered = false
		require.Equal(f.t, []store.Answer{store.MayRun}, f.ask(unordered, second))
		stranger := gate
		stranger.Owner = "other"
		require.Equal(f.t, []store.Answer{store.Lost, store.Lost}, f.ask(stranger, first, second))
		waiting := store.Asked{Event: dialect.Pair{ID: first.OutboxID}, Aggregate: first.Aggregate()}
		answers, err := f.log.Ask(f.t.Context(), f.db, stranger, []store.Asked{waiting})
		require.NoError(f.t, err)
		require.Equal(f.t, store.MayRun, answers[first.OutboxID], "a delivery from the log has no lease of its event")
		notTaken := gate
		notTaken.Types = []string{"c.d"}
		require.Equal(f.t, []store.Answer{store.MayRun}, f.ask(notTaken, second), "the consumer does not take the type of the first")

		require.NoError(f.t, f.log.Defer(f.t.Context(), f.db, []store.Delivery{first}, 0))
		replay := gate
		replay.Replay, replay.Consumer = true, store.ReplayName("C")
		require.Equal(f.t, []store.Answer{store.MayRun}, f.ask(replay, second), "replays wait for replays")
		for status, answer := range map[string]store.Answer{
			"PENDING": store.Blocked, "FAILED": store.Blocked, "DEAD": store.Blocked, "SUCCESS": store.MayRun, "SKIPPED": store.MayRun,
		} {
			f.set("first", "status = ?", status)
			require.Equal(f.t, []store.Answer{answer}, f.ask(gate, second), status)
		}
		f.set("first", "status = 'DEAD'")
		passing := gate
		passing.PassDead = true
		require.Equal(f.t, []store.Answer{store.MayRun}, f.ask(passing, second))

		testdb.Exec(f.t, f.db, "UPDATE bc_outbox_event SET status = 'SENT' WHERE event_id = 'first'")
		require.Equal(f.t, []store.Answer{store.Closed, store.MayRun}, f.ask(gate, first, second))
		testdb.Exec(f.t, f.db, "DELETE FROM bc_outbox_event WHERE event_id = 'second'")
		third := f.event("third", "1")
		require.Equal(f.t, []store.Answer{store.Gone, store.MayRun}, f.ask(gate, second, third), "the next of the aggregate is asked by")
	})
}

// An event waits while another instance runs a delivery of its aggregate, even a later one.
func TestTheGateWaitsForWhatRunsElsewhere(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		first, later := f.event("first", "1"), f.event("later", "1")
		require.NoError(f.t, f.log.Defer(f.t.Context(), f.db, []store.Delivery{later}, 0))
		f.set("later", "status = 'PROCESSING', locked_by = 'other', next_retry_at = "+f.d.After, time.Hour.Microseconds())
		require.Equal(f.t, []store.Answer{store.Blocked}, f.ask(f.gate("me"), first))
		require.Equal(f.t, []store.Answer{store.Lost}, f.ask(f.gate("other"), first))
		f.set("later", "next_retry_at = "+f.d.Now)
		require.Equal(f.t, []store.Answer{store.MayRun}, f.ask(f.gate("me"), first), "that lease has run out")
	})
}

// What is put off behind an event is found by its aggregate, and woken with what waits behind it; what has failed is not.
func TestTheNextOfAnAggregateIsWoken(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		ctx := f.t.Context()
		first := f.waiting("first", "1")
		for _, of := range [][2]string{{"second", "1"}, {"pausing", "1"}, {"elsewhere", "2"}} {
			f.waiting(of[0], of[1])
			f.set(of[0], "next_retry_at = "+f.d.After, time.Hour.Microseconds())
		}
		f.set("pausing", "status = 'FAILED'")
		f.set("first", "status = 'SUCCESS', next_retry_at = NULL")
		heads := []int64{first.OutboxID}
		putOff := func(consumer string) []store.PutOffAggregate {
			found, err := f.log.PutOffIn(ctx, f.db, consumer, heads)
			require.NoError(f.t, err)
			return found
		}
		require.Empty(f.t, putOff("D"), "another consumer")
		require.Equal(f.t, []store.PutOffAggregate{{Aggregate: first.Aggregate(), After: first.OutboxID}}, putOff("C"))
		behind := func(most int) []int64 {
			ids, err := f.log.Behind(ctx, f.db, "C", putOff("C"), most)
			require.NoError(f.t, err)
			return ids
		}
		require.Len(f.t, behind(1), 1)
		require.Len(f.t, behind(10), 2)
		require.NoError(f.t, f.log.WakeUp(ctx, f.db, behind(10)))
		require.Equal(f.t, []string{"now", "later", "later"}, []string{f.row("second").due, f.row("pausing").due, f.row("elsewhere").due})
		f.set("second", "status = 'FAILED', next_retry_at = "+f.d.After, time.Hour.Microseconds())
		require.Empty(f.t, putOff("C"), "what has failed waits for its pause")
	})
}

// What another instance runs is seen behind deliveries of earlier events that came into the log later: delayed ones, say.
func TestWhatRunsElsewhereIsSeenBehindOthers(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		first, second, alone := f.waiting("first", "1"), f.waiting("second", "1"), f.waiting("alone", "2")
		f.waiting("third", "1")
		for _, trusts := range []bool{false, true} {
			g := f.gate("me")
			g.TrustsOwner = trusts
			f.set("third", "status = 'PROCESSING', locked_by = 'elsewhere', next_retry_at = "+f.d.After, dialect.Micro(time.Hour))
			require.Equal(f.t, []store.Answer{store.Blocked}, f.ask(g, first))
			require.Equal(f.t, []store.Answer{store.MayRun, store.Blocked, store.Blocked}, f.ask(g, alone, first, second))
			f.set("third", "locked_by = 'me'")
			require.Equal(f.t, []store.Answer{store.MayRun}, f.ask(g, first), "an instance keeps its own apart itself")
			f.set("third", "locked_by = 'elsewhere', next_retry_at = "+f.d.After, dialect.Micro(-time.Second))
			require.Equal(f.t, []store.Answer{store.MayRun}, f.ask(g, first), "a lease that has run out")
		}
	})
}

// PostgreSQL plans the question of the order a few times, and then no more: to plan it takes longer than to answer it.
func TestTheQuestionOfTheOrderIsPlannedOnce(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		if f.d.Name != "postgres" {
			return // it is the only one that keeps plans, and chooses whether to
		}
		testplan.Fill(f.t, f.db, 5000, "1", "C")
		testdb.Exec(f.t, f.db, "UPDATE bc_outbox_event SET aggregate_id = id::text, status = 'DISPATCHING' WHERE id <= 500")
		testdb.Exec(f.t, f.db, "ANALYZE")
		f.db.SetMaxOpenConns(1) // plans belong to a connection
		stmts := prepared.New(f.db)
		order, gate := store.NewOrder(f.d, stmts), f.gate("me")
		gate.Marked = true
		plans := func(which string) (n int) {
			require.NoError(f.t, f.db.QueryRowContext(f.t.Context(),
				"SELECT COALESCE(SUM("+which+"), 0) FROM pg_prepared_statements WHERE statement LIKE 'SELECT e.id, e.status%'").Scan(&n))
			return n
		}
		for _, heads := range []int64{1, 3, 30} {
			for i := range int64(20) {
				var asked []store.Asked
				for id := i + 1; id <= i+heads; id++ {
					a := store.Aggregate{Type: "ORDER", ID: strconv.FormatInt(id, 10)}
					asked = append(asked, store.Asked{Event: dialect.Pair{ID: id}, Aggregate: a})
				}
				_, err := order.Ask(f.t.Context(), f.db, gate, asked)
				require.NoError(f.t, err)
				stmts.Learn(f.t.Context())
			}
		}
		require.Zero(f.t, plans("CASE WHEN statement LIKE '%UNION%' THEN 1 END"), "no aggregate has others to ask about")
		require.LessOrEqual(f.t, plans("custom_plans"), 5, "PostgreSQL tries five before it decides")
		require.Greater(f.t, plans("generic_plans"), 50)
	})
}
