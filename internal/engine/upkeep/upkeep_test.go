package upkeep_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/roomtest"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// A third of a lease later the leases of events in flight and of deliveries that run are renewed. An event that another instance has
// by now is lost.
func TestLeasesAreRenewed(t *testing.T) {
	t.Parallel()
	dsn := testdb.File(t)
	synctest.Test(t, func(t *testing.T) {
		var f testdb.Faults
		r := newRun(t, f.Connect(t, dsn))
		fly := func(id, owner string) func() bool {
			row := eventrow.Row{OutboxID: r.leased(id, owner, 10*time.Second), ID: id, LockVersion: 1}
			flight := r.flights.Begin(row, time.Now().Add(roomtest.Lease).UnixMicro(), nil)
			flight.Route([]string{"C"}, 1)
			return flight.Lease.IsLost
		}
		isMineLost, isOthersLost := fly("mine", me), fly("another's", "elsewhere")
		r.Block()
		r.deliver("runs", "runs", 0, "")
		require.NoError(t, r.Lanes.Retry(t.Context(), []string{"C"}))
		synctest.Wait()
		require.Equal(t, []string{"runs"}, r.Calls())
		short := func() {
			for _, table := range []string{events, deliveries} {
				r.Exec("UPDATE "+table+" SET next_retry_at = "+r.Dialect.After+" WHERE event_id IN ('mine', 'runs')", dialect.Micro(10*time.Second))
			}
		}
		isRenewed := func() []bool {
			return []bool{!r.isDue(events, "mine", roomtest.Lease/2), !r.isDue(deliveries, "runs", roomtest.Lease/2)}
		}
		short()
		stop, ended := make(chan struct{}), make(chan struct{})
		end := sync.OnceFunc(func() { close(stop) })
		defer end()
		go func() {
			defer close(ended)
			r.RenewLeases(stop)
		}()
		pass := func() {
			<-time.After(roomtest.Lease / 3)
			synctest.Wait()
		}
		synctest.Wait()
		require.Equal(t, []bool{false, false}, isRenewed())
		pass()
		require.Equal(t, []bool{true, true}, isRenewed())
		require.Equal(t, []bool{false, true}, []bool{isMineLost(), isOthersLost()})

		short()
		f.Fail(errors.New("no statement today"))
		pass()
		require.Equal(t, 1, strings.Count(r.Logged.String(), `level=WARN msg="leases could not be renewed`))
		f.Fail(io.ErrUnexpectedEOF)
		pass()
		require.Equal(t, 1, strings.Count(r.Logged.String(), `level=DEBUG msg="leases could not be renewed`), "an outage is said once")
		f.Fail(nil)
		require.Equal(t, []bool{false, false}, isRenewed())
		pass()
		require.Equal(t, []bool{true, true}, isRenewed())

		end()
		<-ended
		short()
		pass()
		require.Equal(t, []bool{false, false}, isRenewed())
	})
}

// A sweep settles what a crash has left FAILED although no delivery waits.
func TestSweepRepairsWhatACrashHasLeft(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		r := newRun(t, db).register()
		r.deliver("done", "1", 0, "status = 'SUCCESS', next_retry_at = NULL")
		r.deliver("dead", "2", 0, "status = 'DEAD', next_retry_at = NULL")
		r.deliver("waits", "3", time.Hour, "")
		require.NoError(t, r.Sweep(t.Context()))
		require.Equal(t, []string{"SENT", "DEAD", "FAILED"}, []string{r.Status("done"), r.Status("dead"), r.Status("waits")})
	})
}

// A sweep is not repeated within a minute. One that fails is repeated at once, whichever statement failed.
func TestSweepIsOnceAMinute(t *testing.T) {
	t.Parallel()
	dsn := testdb.File(t)
	synctest.Test(t, func(t *testing.T) {
		var f testdb.Faults
		r := newRun(t, f.Connect(t, dsn)).register()
		n := 0
		crash := func() (id string) {
			n++
			id = fmt.Sprint("e", n)
			r.deliver(id, id, 0, "status = 'SUCCESS', next_retry_at = NULL")
			return id
		}
		require.NoError(t, r.Sweep(t.Context()))
		id := crash()
		<-time.After(59 * time.Second)
		require.NoError(t, r.Sweep(t.Context()))
		require.Equal(t, "FAILED", r.Status(id))
		<-time.After(2 * time.Second)
		require.NoError(t, r.Sweep(t.Context()))
		require.Equal(t, "SENT", r.Status(id))

		failed := 0
		for failing := 1; failing == failed+1; failing++ {
			<-time.After(2 * time.Minute)
			id := crash()
			f.FailOnce(failing, io.ErrUnexpectedEOF)
			err := r.Sweep(t.Context())
			if f.Sent() < failing {
				require.NoError(t, err, "no statement was left to fail")
				break
			}
			failed++
			require.ErrorContains(t, err, "outbox: ")
			f.Fail(nil)
			require.NoError(t, r.Sweep(t.Context()))
			require.Equal(t, "SENT", r.Status(id), "at once")
		}
		require.Greater(t, failed, 3, "what the sweep looks for and writes, and what was left")
	})
}

// A delivery that was left to others for longer than the grace time is reported once for each consumer, event type and version. That
// of a paused consumer waits for something else.
func TestSweepReportsWhatNobodyTakes(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		reports := func(r *run) int {
			t.Helper()
			require.NoError(t, r.Sweep(t.Context()))
			return strings.Count(r.Logged.String(), "no running instance knows the schema version of an event")
		}
		r := newRun(t, db).register()
		r.deliver("left", "1", 0, "next_retry_at = "+r.Dialect.Never)
		require.Zero(t, reports(newRun(t, db)), "the grace time is not over")
		r.Exec("UPDATE bc_event_consume_log SET updated_at = "+r.Dialect.After, -dialect.Micro(2*grace))
		require.Equal(t, 1, reports(r))
		require.Contains(t, r.Logged.String(), "left")

		r = newRun(t, db)
		r.Exec("UPDATE bc_consumer SET paused_until = "+r.Dialect.After, dialect.Micro(time.Hour))
		require.NoError(t, r.Roster.Refresh(t.Context()))
		require.Zero(t, reports(r), "it is paused")
	})
}

// What is reported once is not reported by the next sweep, another version is.
func TestSweepReportsEachVersionOnce(t *testing.T) {
	t.Parallel()
	dsn := testdb.File(t)
	synctest.Test(t, func(t *testing.T) {
		r := newRun(t, new(testdb.Faults).Connect(t, dsn)).register()
		r.deliver("left", "1", 0, "next_retry_at = "+r.Dialect.Never+", updated_at = "+r.Dialect.After, -dialect.Micro(2*grace))
		reports := func() int {
			t.Helper()
			<-time.After(2 * time.Minute)
			require.NoError(t, r.Sweep(t.Context()))
			return strings.Count(r.Logged.String(), "no running instance knows the schema version of an event")
		}
		require.Equal(t, 1, reports())
		require.Equal(t, 1, reports())
		r.Exec("UPDATE bc_outbox_event SET schema_version = 7")
		require.Equal(t, 2, reports())
	})
}

// A run ends the leases of the one before it under its name, of events and deliveries, however many. It leaves those of others alone,
// its own, and those of one that has said that it ends.
func TestRunEndsTheLeasesOfItsPredecessor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		last      string // run under this name
		hasEnded  bool
		isExpired bool
	}{
		"that has died":            {last: before, isExpired: true},
		"that is about to end":     {last: before, hasEnded: true},
		"that is this run":         {last: me},
		"that nobody has heard of": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db *bun.DB) {
				r := newRun(t, db).register()
				if c.last != "" {
					require.NoError(t, store.NewInstances(r.Dialect).Announce(t.Context(), db, store.Instance{
						Name: "here", Run: c.last, IsDraining: c.hasEnded,
					}))
				}
				for _, owner := range []string{before, me, "elsewhere"} {
					r.leased("event of "+owner, owner, time.Hour)
					r.deliver("delivery of "+owner, owner, time.Hour, "status = 'PROCESSING', lock_version = 1, locked_by = ?", owner)
				}
				r.SucceedPredecessor(t.Context())
				require.Empty(t, r.Logged.String())
				for _, owner := range []string{before, me, "elsewhere"} {
					want := owner == before && c.isExpired
					require.Equal(t, want, r.isDue(events, "event of "+owner, 0), owner)
					require.Equal(t, want, r.isDue(deliveries, "delivery of "+owner, 0), owner)
				}
			})
		})
	}
}

// More leases than one statement ends are ended by several.
func TestRunEndsAllLeasesOfItsPredecessor(t *testing.T) {
	t.Parallel()
	r := newRun(t, testdb.Open(t, "sqlite"))
	require.NoError(t, store.NewInstances(r.Dialect).Announce(t.Context(), r.DB, store.Instance{Name: name, Run: before}))
	r.Exec("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i <= ?) INSERT INTO bc_outbox_event (aggregate_type, "+
		"aggregate_id, event_type, event_id, event_payload, status, locked_by, lock_version, next_retry_at) "+
		"SELECT 'A', i, 'a.b', 'e' || i, '{}', 'DISPATCHING', ?, 1, datetime('now', '+1 hour') FROM n", dialect.MostIDs, before)
	r.SucceedPredecessor(t.Context())
	require.Equal(t, dialect.MostIDs+1, testdb.Count(t, r.DB, "SELECT COUNT(*) FROM bc_outbox_event WHERE lock_version = 2"))
}

// A run that starts wakes what a dead process has put off, and leaves alone what has a reason to wait.
func TestRunWakesWhatADeadProcessPutOff(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		r := newRun(t, db).register()
		r.deliver("forgotten", "1", time.Hour, "")
		r.deliver("first", "2", time.Hour, "status = 'FAILED', attempts = 1")
		r.deliver("blocked", "2", time.Hour, "")
		r.SucceedPredecessor(t.Context())
		testdb.Eventually(t, func() bool { return len(r.Calls()) > 0 && r.Lanes.AreIdle() }, "what is woken is delivered")
		require.Equal(t, []string{"forgotten"}, r.Calls())
		require.False(t, r.isDue(deliveries, "blocked", time.Minute))
		require.NotContains(t, r.Logged.String(), "level=WARN")
	})
}

// Whichever statement fails when a run starts, it says once what could not be done, and does the rest.
func TestRunStartsAlthoughAStatementFails(t *testing.T) {
	t.Parallel()
	dsn := testdb.File(t)
	const (
		leases = "the leases of the run before this one could not be ended"
		due    = "waiting deliveries could not be made due"
	)
	said := make(map[string]int)
	for failing, isOver := 1, false; !isOver; failing++ {
		synctest.Test(t, func(t *testing.T) {
			var f testdb.Faults
			r := newRun(t, f.Connect(t, dsn)).register()
			for _, table := range []string{events, deliveries, "bc_instance"} {
				r.Exec("DELETE FROM " + table)
			}
			require.NoError(t, store.NewInstances(r.Dialect).Announce(t.Context(), r.DB, store.Instance{Name: name, Run: before}))
			r.leased("event", before, time.Hour)
			r.deliver("put off", "1", time.Hour, "")
			r.Lanes.Quiesce(t.Context()) // they claim nothing beside
			f.FailOnce(failing, io.ErrUnexpectedEOF)
			r.SucceedPredecessor(t.Context())
			if isOver = f.Sent() < failing; isOver {
				require.Empty(t, r.Logged.String())
				return
			}
			f.Fail(nil)
			require.Equal(t, 1, strings.Count(r.Logged.String(), "the database does not answer as it should"))
			var what []string
			for _, message := range []string{leases, due} {
				if strings.Contains(r.Logged.String(), message) {
					what = append(what, message)
					said[message]++
				}
			}
			require.Len(t, what, 1)
			if what[0] == due {
				require.True(t, r.isDue(events, "event", 0))
			} else {
				require.True(t, r.isDue(deliveries, "put off", 0))
			}
		})
	}
	require.Greater(t, said[leases], 2, "who was before, its events, its deliveries")
	require.Greater(t, said[due], 1, "whose deliveries are put off, whom to wake")
}

// After leases of others have run out, what is put off is woken at most once within the length of a lease.
func TestExpiryWakesOnceALease(t *testing.T) {
	t.Parallel()
	dsn := testdb.File(t)
	synctest.Test(t, func(t *testing.T) {
		var f testdb.Faults
		r := newRun(t, f.Connect(t, dsn)).register()
		wake := func(want ...string) {
			t.Helper()
			require.NoError(t, r.WakeAfterExpiry(t.Context()))
			synctest.Wait()
			require.Equal(t, want, r.Calls())
		}
		r.deliver("1", "1", time.Hour, "")
		wake("1")
		r.deliver("2", "2", time.Hour, "")
		<-time.After(roomtest.Lease - time.Second)
		wake("1")
		<-time.After(2 * time.Second)
		wake("1", "2")
		<-time.After(roomtest.Lease)
		f.Fail(errors.New("no statement today"))
		require.ErrorContains(t, r.WakeAfterExpiry(t.Context()), "outbox: ")
	})
}
