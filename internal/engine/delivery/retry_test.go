package delivery

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/inject"
	"github.com/bluecone-go/bluecone/internal/store"
)

// What waits in the consume log is leased and run in the order of each aggregate, and their events are brought up to date.
func TestWaitingDeliveriesRunInOrder(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.consumer("C", handler.Config{}, nil)
	h.open()
	for i, aggregate := range []string{"1", "2", "1", "1"} {
		h.waiting("C", fmt.Sprint(i), aggregate)
	}
	h.retry("C")
	require.Equal(t, 4, h.rows("C", store.Success))
	require.Equal(t, row{store.Success, 1, ""}, h.row("C", "0"))
	require.Equal(t, "SENT", h.status("3"))
	require.EqualValues(t, 4, h.cfg.RollUps.Deliveries())
	var ofOne []string
	for _, id := range h.called() {
		if id != "1" {
			ofOne = append(ofOne, id)
		}
	}
	require.Equal(t, []string{"0", "2", "3"}, ofOne)
}

// A delivery that fails again waits for its next attempt, and the last attempt ends it DEAD.
func TestFailedDeliveryIsTriedUntilItsLastAttempt(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.consumer("C", handler.Config{MaxAttempts: 3}, refuses("e"))
	h.open()
	h.failing("C", "e", "1", 1)
	h.retry("C")
	require.Equal(t, row{store.Failed, 2, "no"}, h.row("C", "e"))
	h.retry("C")
	require.Len(t, h.called(), 1, "it is not due")
	h.due()
	h.retry("C")
	require.Equal(t, row{store.Dead, 3, "no"}, h.row("C", "e"))
	require.Equal(t, "DEAD", h.status("e"))
	require.Len(t, h.dead, 1)
	require.Equal(t, 3, h.dead[0].Attempts)
}

// A consumer with a slow cadence goes on when the attempts are used up.
func TestSlowCadenceGoesOn(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.consumer("C", handler.Config{MaxAttempts: 2, SlowCadence: time.Hour}, refuses("e"))
	h.open()
	h.failing("C", "e", "1", 7)
	h.retry("C")
	require.Equal(t, row{store.Failed, 8, "no"}, h.row("C", "e"))
}

// A delivery that has been tried for too long is DEAD, and its error says why, whatever the handler answers.
func TestDeliveryThatIsTooOldIsDead(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]error{"it fails": errNo, "it asks for another run": handler.RetryAfter(errNo, 0)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			h.consumer("C", handler.Config{MaxAttempts: 100, MaxAge: time.Minute}, always(answer))
			h.open()
			h.failing("C", "e", "1", 1)
			h.retry("C")
			require.Equal(t, store.Dead, h.row("C", "e").status)
			require.Contains(t, h.row("C", "e").err, "because ConsumerConfig.MaxAge is 1m0s: no")
		})
	}
}

// While the circuit is open nothing is tried, and what is too old ends all the same, without a call.
func TestOpenCircuitEndsWhatIsTooOld(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.consumer("C", handler.Config{MaxAge: time.Minute}, always(handler.Unavailable(errNo)))
	h.open()
	h.failing("C", "old", "2", 1)
	h.failing("C", "young", "3", 1)
	h.set("C", "young", "first_run_at = "+h.d.After, -dialect.Micro(time.Second))
	require.Equal(t, 1, h.push("C", h.event("e", "1")))
	h.eventually(func() bool { return h.rows("C", store.Dead) == 1 }, "one is too old")
	require.Contains(t, h.row("C", "old").err, "MaxAge is 1m0s: it failed")
	require.NotContains(t, h.called(), "old")
	require.Equal(t, store.Failed, h.row("C", "young").status)
}

// Whoever is told of what was too old gets the whole event, however much memory all of them would take together.
func TestOpenCircuitEndsWhatIsTooOldWithItsPayload(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.consumer("C", handler.Config{MaxAge: time.Minute}, always(handler.Unavailable(errNo)))
	h.open()
	const many = 3
	payload := `"` + strings.Repeat("x", mostGivenUpBytes*2/many) + `"`
	for i := range many {
		id := fmt.Sprint("old ", i)
		h.failing("C", id, id, 1)
		h.exec("UPDATE bc_outbox_event SET event_payload = ?, event_metadata = '{\"of\": \"it\"}' WHERE event_id = ?", payload, id)
	}
	require.Equal(t, 1, h.push("C", h.event("e", "1")))
	h.eventually(func() bool { return h.rows("C", store.Dead) == many }, "all are too old")
	h.idle()
	h.note(func() {
		require.Len(t, h.dead, many)
		for _, d := range h.dead {
			require.Len(t, d.Event.Payload, len(payload), d.Event.ID)
			require.Equal(t, map[string]string{"of": "it"}, d.Event.Metadata)
			require.NotZero(t, d.Event.CreatedAt)
			require.Contains(t, d.Error, "MaxAge is 1m0s: it failed")
		}
	})
}

// A delivery behind one that fails waits, and is woken when that one has ended.
func TestEndOfADeliveryWakesTheNext(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	fails := true
	h.consumer("C", handler.Config{}, func(_ context.Context, _ bun.Tx, m *handler.Message) error {
		if fails && m.Event.ID == "a" {
			return errNo
		}
		return nil
	})
	h.open()
	h.waiting("C", "a", "1")
	h.waiting("C", "b", "1")
	h.retry("C")
	require.Equal(t, row{store.Failed, 1, "no"}, h.row("C", "a"))
	require.Equal(t, row{store.Pending, 0, ""}, h.row("C", "b"))
	fails = false
	h.set("C", "a", "next_retry_at = "+h.d.Now)
	h.retry("C")
	require.Equal(t, 2, h.rows("C", store.Success), "the lane claims what it has woken by itself")
}

// What is put off although nothing is before it, because a process died before it woke it, is woken by whoever looks.
func TestForgottenDeliveriesAreWoken(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.consumer("C", handler.Config{}, nil)
	h.consumer("U", handler.Config{Unordered: true}, nil)
	h.open()
	for _, c := range []string{"C", "U"} {
		h.waiting(c, "of "+c, c)
		h.set(c, "of "+c, "next_retry_at = "+h.d.After, dialect.Micro(time.Hour))
	}
	h.retry("C", "U", "of another instance")
	require.Empty(t, h.called())
	require.NoError(t, h.lanes.WakeForgotten(t.Context(), []string{"C", "U", "of another instance"}))
	h.idle()
	require.Equal(t, []string{"of C"}, h.called(), "who keeps no order puts nothing off")
}

// A consumer that an operator has paused starts nothing, and gets nothing; a pause stops its replays, too.
func TestPausedConsumerStartsNothing(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.consumer("C", handler.Config{Replayable: true}, nil)
	h.open().pause("C", true)
	h.waiting("C", "a", "1")
	h.waiting(store.ReplayName("C"), "r", "2")
	h.retry("C", store.ReplayName("C"))
	require.Zero(t, h.push("C", h.event("b", "3")))
	require.Empty(t, h.called())
	require.Equal(t, row{store.Pending, 0, ""}, h.row("C", "a"))
	h.pause("C", false)
	h.retry("C", store.ReplayName("C"))
	require.ElementsMatch(t, []string{"a", "r"}, h.called())
	require.Equal(t, store.Success, h.row(store.ReplayName("C"), "r").status)
}

// An event whose row is gone has nothing that could be delivered.
func TestDeliveryWithoutAnEventIsDead(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.consumer("C", handler.Config{}, nil)
	h.open()
	h.waiting("C", "e", "1")
	h.exec("DELETE FROM bc_outbox_event")
	h.retry("C")
	require.Equal(t, row{store.Dead, 1, "the event's row does not exist any more"}, h.row("C", "e"))
	require.Empty(t, h.called())
}

// Payloads that do not fit into the room for them are given back, and claimed when there is room: one that is larger, too.
func TestPayloadsTakeTurnsInTheirRoom(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.cfg.MaxBytes = 100
	most, used := 0, func() (n int) { return 100 - h.lanes.room.bytes.Limit() }
	for _, name := range []string{"A", "B"} {
		h.consumer(name, handler.Config{}, func(context.Context, bun.Tx, *handler.Message) error {
			h.lanes.room.mu.Lock()
			defer h.lanes.room.mu.Unlock()
			most = max(most, used())
			return nil
		})
	}
	h.open()
	for i := range 6 {
		for _, name := range []string{"A", "B"} {
			h.waiting(name, fmt.Sprint(name, i), fmt.Sprint(name, i))
		}
	}
	h.exec("UPDATE bc_outbox_event SET event_payload = ?", `"`+strings.Repeat("x", 40)+`"`)
	h.exec("UPDATE bc_outbox_event SET event_payload = ? WHERE event_id = 'A3'", `"`+strings.Repeat("x", 400)+`"`)
	h.retry("A", "B")
	h.eventually(func() bool { return h.rows("A", store.Success)+h.rows("B", store.Success) == 12 && h.lanes.AreIdle() }, "all have run")
	require.Positive(t, most)
	require.LessOrEqual(t, most, 100)
	require.Equal(t, 100, h.lanes.room.bytes.Limit(), "all is given back")
}

// Events of a schema version that this release does not know are left to an instance that does, which finds them.
func TestUnknownSchemaVersionIsLeftToOthers(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.consumer("C", handler.Config{}, nil)
	h.register("V", handler.Config{}, &handler.Handler{Version: 2}, nil)
	h.open()
	for _, c := range []string{"C", "V"} {
		h.waiting(c, "of "+c, c)
	}
	h.exec("UPDATE bc_outbox_event SET schema_version = 2")
	h.retry("C")
	require.Equal(t, row{store.Pending, 0, ""}, h.row("C", "of C"))
	h.set("V", "of V", "next_retry_at = "+h.d.Never)
	h.idle()
	h.retry("C", "V")
	require.Empty(t, h.called(), "they are never due")
	require.Equal(t, []string{"V"}, h.lanes.Left(), "only this one knows a version that others may not know")
	require.NoError(t, h.lanes.TakeLeft(t.Context(), false))
	h.idle()
	require.Equal(t, []string{"of V"}, h.called())
	require.Empty(t, (&Lanes{}).Left())
}

// Leases of what waits are prolonged; one that has passed to another instance stops its run.
func TestLeasesOfRetriesAreRenewed(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	began := make(chan struct{})
	h.external("C", handler.Config{}, func(ctx context.Context, _ bun.Tx, _ *handler.Message) error {
		close(began)
		<-ctx.Done()
		return context.Cause(ctx)
	})
	h.open()
	h.waiting("C", "e", "1")
	require.NoError(t, h.lanes.Retry(t.Context(), []string{"C"}))
	<-began
	h.set("C", "e", "next_retry_at = "+h.d.Now)
	require.NoError(t, h.lanes.Renew(t.Context()))
	require.Equal(t, 1, h.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE next_retry_at > "+h.d.After, dialect.Micro(lease/2)))
	h.set("C", "e", "locked_by = 'other', lock_version = lock_version + 1")
	require.NoError(t, h.lanes.Renew(t.Context()))
	h.idle()
	require.Equal(t, store.Processing, h.row("C", "e").status, "it is another instance's")
}

// What an earlier run of the instance had leased is free at once, of the consumers that are here.
func TestLeasesOfAnEarlierRunAreEnded(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.consumer("C", handler.Config{}, nil)
	h.open()
	for _, c := range []string{"C", "elsewhere"} {
		h.waiting(c, "of "+c, c)
		h.set(c, "of "+c, "status = 'PROCESSING', locked_by = 'before', next_retry_at = "+h.d.After, dialect.Micro(time.Hour))
	}
	require.NoError(t, h.lanes.Expire(t.Context(), []string{"C", "elsewhere"}, "before"))
	h.retry("C")
	require.Equal(t, store.Success, h.row("C", "of C").status)
	require.Equal(t, store.Processing, h.row("elsewhere", "of elsewhere").status)
	require.True(t, h.lanes.Has([]string{"elsewhere", "C"}))
	require.False(t, h.lanes.Has([]string{"elsewhere"}))
}

// A publisher that cannot tell who is paused claims nothing.
func TestNothingIsClaimedWithoutKnowingWhoIsPaused(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.register("C", handler.Config{}, &handler.Handler{Version: 2}, nil)
	h.open()
	h.waiting("C", "e", "1")
	h.exec("ALTER TABLE bc_consumer RENAME TO gone")
	require.ErrorContains(t, h.lanes.Retry(t.Context(), []string{"C"}), "bc_consumer")
	require.ErrorContains(t, h.lanes.TakeLeft(t.Context(), false), "bc_consumer")
	require.NoError(t, h.lanes.Retry(t.Context(), []string{"of another instance"}), "nobody here has to know")
	h.idle()
	require.Empty(t, h.called())
}

// A claim of which nobody knows whether it is stored is looked up. What fails is tried again.
func TestClaimThatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.consumer("C", handler.Config{}, nil)
	h.open()
	h.waiting("C", "e", "1")
	h.exec("ALTER TABLE bc_event_consume_log RENAME TO gone")
	require.NoError(t, h.lanes.Retry(t.Context(), []string{"C"}))
	h.idle()
	h.exec("ALTER TABLE gone RENAME TO bc_event_consume_log")
	require.Contains(t, h.log(), "waiting deliveries could not be claimed; it is tried again in a moment")
	h.retry("C")
	require.Equal(t, store.Success, h.row("C", "e").status)
}

// A poisoned transaction of a delivery from the log does not count, and it goes back to where it waited.
func TestWaitingDeliveryIsPutOffWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.regs.Inject(inject.Faults{BeforeDelivery: func(string, []string) error { return driver.ErrBadConn }})
	h.consumer("C", handler.Config{}, nil)
	h.open()
	h.failing("C", "e", "1", 1)
	h.retry("C")
	require.Equal(t, row{store.Failed, 1, "it failed"}, h.row("C", "e"))
	require.Contains(t, h.log(), "the database is in trouble")
}
