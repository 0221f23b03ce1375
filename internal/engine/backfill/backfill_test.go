package backfill_test

import (
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/backfill"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// A new consumer gets the past page by page, in the order in which it was saved, and once. Its lane delivers each page at once, and
// what was SENT is SENT again when it has.
func TestNewConsumerGetsThePast(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		p := newProcess(t, db, beginning())
		past := numbered(600)
		p.sent(past...)
		p.register()
		require.Equal(t, backfill.Result{IsGiven: true}, p.step())
		require.Equal(t, past[:500], p.calls())
		require.Equal(t, "RUNNING: 500 seen, 500 given, 0 passed", p.operation())
		require.Equal(t, backfill.Result{IsGiven: true}, p.step())
		require.Equal(t, past, p.calls())
		require.Equal(t, "DONE: 600 seen, 600 given, 0 passed", p.operation())
		require.EqualValues(t, 600, p.Seen())
		require.Equal(t, 600, testdb.Count(t, db, "SELECT COUNT(*) FROM bc_outbox_event WHERE status = 'SENT'"))

		p.register() // it is not new any more
		require.Equal(t, backfill.Result{}, p.step())
		require.Equal(t, past, p.calls())
	})
}

// Of the past a consumer gets what it takes, from its time on, and what was delivered to others, whatever became of that. It does not
// get what it has had, and what is still to be claimed gets to it by itself.
func TestOnlyWhatIsWantedIsGiven(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		p := newProcess(t, db, time.Now().Add(-48*time.Hour))
		p.Lanes.Quiesce(t.Context()) // the deliveries stay as they were made
		p.sent("too old", "other type", "new", "scheduled", "sent", "failed", "dead", "had")
		p.set("too old", "created_at = "+p.Dialect.After, -dialect.Micro(72*time.Hour))
		p.set("other type", "event_type = 'c.d'")
		p.set("new", "status = 'NEW'")
		p.set("scheduled", "status = 'SCHEDULED'")
		p.set("failed", "status = 'FAILED'")
		p.set("dead", "status = 'DEAD'")
		p.Exec("INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, outbox_id, aggregate_type, aggregate_id) " +
			"SELECT 'C', event_id, event_type, 'SKIPPED', id, aggregate_type, aggregate_id FROM bc_outbox_event WHERE event_id = 'had'")
		p.register()
		require.Equal(t, backfill.Result{IsGiven: true}, p.step())
		require.Equal(t, []string{"sent", "failed", "dead", "had"}, p.given())
		require.Equal(t, "DONE: 8 seen, 3 given, 5 passed", p.operation())
		require.Equal(t, 3, testdb.Count(t, db, "SELECT COUNT(*) FROM bc_event_consume_log WHERE status = 'PENDING'"))
		require.Equal(t, 3, testdb.Count(t, db, "SELECT COUNT(*) FROM bc_outbox_event WHERE status = 'FAILED' "+
			"AND event_id IN ('sent', 'failed', 'dead')"), "their deliveries wait")
	})
}

// A past of which the consumer takes nothing is passed over.
func TestAPastThatNobodyWantsIsPassedOver(t *testing.T) {
	t.Parallel()
	p := newProcess(t, testdb.Open(t, "sqlite"), beginning())
	p.sent("other type")
	p.set("other type", "event_type = 'c.d'")
	p.register()
	require.Equal(t, backfill.Result{IsGiven: true}, p.step())
	require.Empty(t, p.given())
	require.Equal(t, "DONE: 1 seen, 0 given, 1 passed", p.operation())
	require.Equal(t, "SENT", p.Status("other type"))
}

// An event that an instance has in flight holds up the backfill: what was before it is given, and the rest when it is settled.
func TestAnEventInFlightHoldsUpTheBackfill(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		p := newProcess(t, db, beginning())
		p.sent("first", "in flight", "last")
		p.set("in flight", "status = 'DISPATCHING', locked_by = 'elsewhere', next_retry_at = "+p.Dialect.After, dialect.Micro(time.Hour))
		p.register()
		require.Equal(t, backfill.Result{IsGiven: true}, p.step())
		require.Equal(t, []string{"first"}, p.calls())
		require.Equal(t, backfill.Result{}, p.step())
		require.Equal(t, "RUNNING: 1 seen, 1 given, 0 passed", p.operation())
		p.set("in flight", "status = 'SENT', locked_by = NULL")
		require.Equal(t, backfill.Result{IsGiven: true}, p.step())
		require.Equal(t, []string{"first", "in flight", "last"}, p.calls())
		require.Equal(t, "DONE: 3 seen, 3 given, 0 passed", p.operation())
	})
}

// While half a page waits for its handlers, a consumer gets no other page.
func TestHandlersThatHaveEnoughToDoGetNoMore(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		p := newProcess(t, db, beginning())
		past := numbered(501)
		p.sent(past...)
		p.register().pause(true)
		require.Equal(t, backfill.Result{IsGiven: true}, p.step())
		require.Equal(t, backfill.Result{IsHeldBack: true}, p.step())
		require.Empty(t, p.calls())
		p.Exec("UPDATE bc_event_consume_log SET status = 'SKIPPED', next_retry_at = NULL WHERE outbox_id > " +
			"(SELECT MIN(id) + 248 FROM bc_outbox_event)") // 249 wait
		require.Equal(t, backfill.Result{IsGiven: true}, p.step())
		require.Equal(t, past, p.given())
		p.pause(false)
		require.NoError(t, p.Lanes.Retry(t.Context(), []string{"C"}))
		require.Len(t, p.calls(), 250)
	})
}

// A backfill that an operator has stopped gives nothing, and so does one that another instance has locked.
func TestABackfillThatIsNotItsOwnGivesNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		p := newProcess(t, db, beginning())
		p.sent("past")
		p.register()
		p.Exec("UPDATE bc_bulk_operation SET state = 'FAILED'")
		require.Equal(t, backfill.Result{}, p.step())
		p.Exec("UPDATE bc_bulk_operation SET state = 'RUNNING'")
		if p.Dialect.Name != "sqlite" { // which has one writer
			tx, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			_, err = tx.ExecContext(t.Context(), "UPDATE bc_bulk_operation SET actor = 'another'")
			require.NoError(t, err)
			require.Equal(t, backfill.Result{}, p.step())
			require.NoError(t, tx.Rollback())
		}
		require.Empty(t, p.given())
		require.Equal(t, backfill.Result{IsGiven: true}, p.step())
		require.Equal(t, []string{"past"}, p.calls())
	})
}

// Whichever statement fails, a step is done whole or not at all: another one goes on.
func TestAStepIsDoneWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	failed := 0
	for failing := 1; failing == failed+1; failing++ {
		var f testdb.Faults
		p := newProcess(t, f.Connect(t, testdb.File(t)), beginning())
		p.Lanes.Quiesce(t.Context()) // they claim nothing beside
		past := numbered(3)
		p.sent(past...)
		p.register()
		f.FailOnce(failing, io.ErrUnexpectedEOF)
		did, err := p.Step(t.Context())
		if f.Sent() < failing {
			require.NoError(t, err, "no statement was left to fail")
			break
		}
		failed++
		require.Error(t, err)
		f.Fail(nil)
		if did.IsGiven { // only the lanes were not told
			require.Equal(t, past, p.given())
			require.Equal(t, backfill.Result{}, p.step())
		} else {
			require.Empty(t, p.given())
			require.Zero(t, p.Seen())
			require.Equal(t, backfill.Result{IsGiven: true}, p.step())
		}
		require.Equal(t, past, p.given())
		require.Equal(t, "DONE: 3 seen, 3 given, 0 passed", p.operation())
	}
	require.Greater(t, failed, 8, "what waits, the operation, the past, the locks, the deliveries, the status, the lanes")
}

// run runs the backfills until the test ends, or end is called.
func (p *process) run() (end func()) {
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		p.Run(stop)
	}()
	end = sync.OnceFunc(func() {
		close(stop)
		<-ended
	})
	p.T.Cleanup(end)
	return end
}

// While no backfill is open nothing is asked. Pages follow each other without a pause.
func TestRunGivesPageAfterPage(t *testing.T) {
	t.Parallel()
	dsn := testdb.File(t)
	synctest.Test(t, func(t *testing.T) {
		var f testdb.Faults
		p := newProcess(t, f.Connect(t, dsn), beginning())
		p.Lanes.Quiesce(t.Context())
		p.sent(numbered(1200)...)
		p.register()
		p.Exec("CREATE TRIGGER taken AFTER INSERT ON bc_event_consume_log BEGIN " +
			"UPDATE bc_event_consume_log SET status = 'SUCCESS', next_retry_at = NULL WHERE id = NEW.id; END")
		end := p.run()
		<-time.After(5 * time.Millisecond) // three pages, of which a trigger does the handlers' work
		synctest.Wait()
		require.Len(t, p.given(), 1200)
		require.NoError(t, p.Roster.Refresh(t.Context()))
		before := f.Sent()
		<-time.After(time.Hour)
		synctest.Wait()
		require.Equal(t, before, f.Sent())
		end()
	})
}

// What holds a backfill back is looked at again after 0.2 s, then after twice as long, at last every 2 s.
func TestRunLooksLessOftenAtBusyHandlers(t *testing.T) {
	t.Parallel()
	dsn := testdb.File(t)
	synctest.Test(t, func(t *testing.T) {
		var f testdb.Faults
		p := newProcess(t, f.Connect(t, dsn), beginning())
		p.sent(numbered(600)...)
		p.register().pause(true)
		require.Equal(t, backfill.Result{IsGiven: true}, p.step())
		looks := f.Sent()
		p.run()
		synctest.Wait()
		looks++
		for _, ms := range []int{200, 400, 800, 1600, 2000, 2000} {
			<-time.After(time.Duration(ms-1) * time.Millisecond)
			synctest.Wait()
			require.Equal(t, looks, f.Sent(), "not before %d ms", ms)
			<-time.After(time.Millisecond)
			synctest.Wait()
			looks++
			require.Equal(t, looks, f.Sent(), "after %d ms", ms)
		}
		require.Len(t, p.given(), 500)
	})
}

// A step that fails is said, and the next one tries again.
func TestRunTriesAgain(t *testing.T) {
	t.Parallel()
	dsn := testdb.File(t)
	synctest.Test(t, func(t *testing.T) {
		var f testdb.Faults
		p := newProcess(t, f.Connect(t, dsn), beginning())
		p.sent("past")
		p.register()
		f.Fail(errors.New("no statement today"))
		p.run()
		<-time.After(150 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, 2, strings.Count(p.Logged.String(), `level=WARN msg="past events could not be given to a consumer`))
		f.Fail(nil)
		<-time.After(100 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, []string{"past"}, p.calls())
	})
}

// Who wants nothing of the past, and whose backfill is over, costs no statement.
func TestConsumersWithoutABackfillCostNothing(t *testing.T) {
	t.Parallel()
	for name, startFrom := range map[string]time.Time{"wants nothing": {}, "is registered already": beginning()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var f testdb.Faults
			db := f.Connect(t, testdb.File(t))
			newProcess(t, db, time.Time{}).register()
			p := newProcess(t, db, startFrom)
			p.sent("past")
			p.register()
			before := f.Sent()
			require.Equal(t, backfill.Result{}, p.step())
			require.Equal(t, before, f.Sent())
		})
	}
}
