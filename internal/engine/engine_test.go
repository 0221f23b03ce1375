package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/engine"
	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/faultdb"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/schedule"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

func TestHandedOverEventIsDelivered(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.consumer("C", false, nil)
	p.consumer("D", false, nil)
	r := p.run()
	p.save("e")
	p.engine.Handover().Put([]string{"e"})
	p.becomes("SENT", "e")
	require.Equal(t, []string{"e", "e"}, p.called(), "once for each consumer")
	require.Equal(t, 2, p.count("bc_event_consume_log WHERE status = 'SUCCESS' AND event_id = 'e'"))
	require.Equal(t, 1, p.count("bc_outbox_event WHERE lock_version = 2 AND locked_by IS NULL"), "leased and settled, once each")
	r.stop()
}

// More than can be handed over are claimed.
func TestWhatIsTooMuchForTheHandOverIsClaimed(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.consumer("C", false, nil)
	r := p.run()
	var ids []string
	for i := range claim.MostHandedOver + 10 {
		ids = append(ids, fmt.Sprintf("e%02d", i))
	}
	p.save(ids...)
	p.engine.Handover().Put(ids)
	p.becomes("SENT", ids...)
	require.ElementsMatch(t, ids, p.called())
	r.stop()
}

func TestWakeLooksForEvents(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.consumer("C", false, nil)
	r := p.run()
	p.save("e")
	p.engine.Wake()
	p.becomes("SENT", "e")
	r.stop()
}

func TestPollFindsEventsOfOtherProcesses(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.cfg.Poll = 10 * time.Millisecond
	p.consumer("C", false, nil)
	r := p.run()
	p.save("e")
	p.becomes("SENT", "e")
	p.saveOf("delayed", "delayed", "status = 'SCHEDULED'")
	p.becomes("SENT", "delayed")
	r.stop()
}

// An event that was handed over behind one that another instance has leased is given back, and claimed when that has ended.
func TestHandedOverEventBehindAnotherInstanceWaits(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.consumer("C", false, nil)
	p.saveOf("first", "a", "status = 'DISPATCHING', locked_by = 'elsewhere', lock_version = 1, "+inAnHour)
	r := p.run()
	p.saveOf("second", "a")
	p.engine.Handover().Put([]string{"second"})
	p.eventually(func() bool { return p.count("bc_outbox_event WHERE event_id = 'second' AND lock_version = 2") == 1 }, "it is given back")
	require.Equal(t, "NEW", p.status("second"))
	require.Empty(t, p.called())
	p.exec("UPDATE bc_outbox_event SET status = 'SENT', locked_by = NULL WHERE event_id = 'first'")
	p.engine.Wake()
	p.becomes("SENT", "second")
	r.stop()
}

// One run delivers every kind of due work, and tells how much that was.
func TestOnceDeliversAllThatIsDue(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	var succeeds atomic.Bool
	p.consumer("C", false, func(_ context.Context, event string) error {
		if event == "retried" && !succeeds.Load() {
			return errors.New("not yet")
		}
		return nil
	})
	p.save("new", "retried")
	p.saveOf("delayed", "delayed", "status = 'SCHEDULED'")
	p.saveOf("parked", "parked", "status = 'SCHEDULED', lock_version = 2")
	p.saveOf("expired", "expired", "status = 'DISPATCHING', locked_by = 'dead', lock_version = 1, "+anHourAgo)
	p.engine = engine.New(p.cfg)
	claimed, retried, err := p.engine.Once(t.Context())
	require.NoError(t, err)
	require.Equal(t, 5, claimed)
	require.LessOrEqual(t, retried, 1, "a suspect delivery waits in the log")
	require.Equal(t, "FAILED", p.status("retried"))
	succeeds.Store(true)
	p.exec("UPDATE bc_event_consume_log SET " + anHourAgo + " WHERE status = 'FAILED'")
	claimed, retried, err = p.engine.Once(t.Context())
	require.NoError(t, err)
	require.Zero(t, claimed)
	require.Equal(t, 1, retried)
	p.becomes("SENT", "new", "retried", "delayed", "parked", "expired")
	require.Subset(t, p.called(), []string{"new", "retried", "delayed", "parked", "expired"})
}

// A backlog of one tenant, a batch after the other, does not keep the events of others from their turn.
func TestOnceWorksOffABacklog(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.cfg.BatchSize = 10
	p.consumer("C", false, nil)
	for i := range 80 {
		p.saveOf(fmt.Sprintf("e%02d", i), fmt.Sprint(i%7), "tenant_id = 1")
	}
	p.saveOf("other", "other", "tenant_id = 2")
	p.engine = engine.New(p.cfg)
	claimed, _, err := p.engine.Once(t.Context())
	require.NoError(t, err)
	require.Equal(t, 81, claimed)
	require.Equal(t, 81, p.count("bc_outbox_event WHERE status = 'SENT'"))
	calls := p.called()
	require.Len(t, calls, 81)
	last := make(map[string]string) // of each aggregate
	for _, id := range calls {
		if id == "other" {
			continue
		}
		var n int
		_, err := fmt.Sscanf(id, "e%d", &n)
		require.NoError(t, err)
		require.Less(t, last[fmt.Sprint(n%7)], id, "the order of an aggregate")
		last[fmt.Sprint(n%7)] = id
	}
}

// The end of the context lets handlers that run end, and settles their events.
func TestDrainWaitsForHandlers(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	began, mayEnd := make(chan struct{}), make(chan struct{})
	begin := sync.OnceFunc(func() { close(began) })
	// Without a transaction: it would hold SQLite's one writer, for which whatever the engine writes meanwhile waits.
	p.consumer("C", true, func(context.Context, string) error {
		begin()
		<-mayEnd
		return nil
	})
	r := p.run()
	p.save("e")
	p.engine.Wake()
	<-began
	r.end()
	p.eventually(func() bool { return !p.engine.IsTaking() }, "it takes nothing more")
	require.Empty(t, r.ended, "it waits for the handler")
	close(mayEnd)
	require.NoError(t, r.result())
	require.Equal(t, "SENT", p.status("e"))
}

// When the drain time is over the handlers' contexts end, and what they had is given back.
func TestDrainTimeEndsHandlers(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.cfg.DrainTimeout = 10 * time.Millisecond
	began := make(chan struct{})
	begin := sync.OnceFunc(func() { close(began) })
	p.consumer("C", false, func(ctx context.Context, _ string) error {
		begin()
		<-ctx.Done()
		return ctx.Err()
	})
	r := p.run()
	p.save("e")
	p.engine.Wake()
	<-began
	p.engine.Handover().Put([]string{"e"})
	p.eventually(func() bool { return len(p.engine.Handover().Calls()) == 0 }, "the loop waits for the handler's transaction to end")
	r.end()
	require.ErrorContains(t, r.result(), "handlers were still running 10ms after the end")
	require.Equal(t, "NEW", p.status("e"), "it is due at once")
	require.Zero(t, p.count("bc_event_consume_log WHERE attempts > 0"), "no attempt")
}

// An outage is said once, and what was saved meanwhile is delivered when the database is back.
func TestOutageIsSaidOnce(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.cfg.Poll = 10 * time.Millisecond
	p.consumer("C", false, nil)
	r := p.run()
	p.isAway.Store(true)
	p.save("e")
	p.eventually(func() bool { return strings.Contains(p.log(), "the database does not answer as it should") }, "it says so")
	require.Equal(t, "NEW", p.status("e"))
	p.isAway.Store(false)
	p.becomes("SENT", "e")
	p.eventually(func() bool { return strings.Contains(p.log(), "the database answers again") }, "it says so")
	require.Equal(t, 1, strings.Count(p.log(), "the database does not answer as it should"))
	r.stop()
}

// A look at everything that fails is tried again when the database answers, not at its next time.
func TestAFullLookThatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.cfg.Poll = 10 * time.Millisecond
	p.consumer("C", false, nil)
	isSweep := func(s faultdb.Step) bool {
		return strings.Contains(s.Query, "NOT EXISTS") && strings.Contains(s.Query, "'FAILED'")
	}
	for try, isInTime := 0, false; !isInTime; try++ {
		at := time.Now().UTC().Add(3 * time.Second).Truncate(time.Second)
		var err error
		p.cfg.Cron, err = schedule.Parse(at.Format("5 4 15") + " * * ?") // once a day
		require.NoError(t, err)
		first, left := fmt.Sprint("first", try), fmt.Sprint("left", try)
		r := p.run()
		p.save(first)
		p.becomes("SENT", first)
		p.saveOf(left, left, "status = 'FAILED', next_retry_at = NULL")
		p.exec("INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status) VALUES ('C', ?, ?, 'SUCCESS')", left, anEvent)
		p.fails.Store(&isSweep)
		if isInTime = time.Now().Before(at); isInTime {
			p.becomes("SENT", left)
			require.Nil(t, p.fails.Load(), "it has not failed")
		}
		r.stop()
	}
}

// An engine that starts during an outage waits for its end, and one that is told to stop meanwhile does.
func TestStartDuringAnOutage(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.consumer("C", false, nil)
	p.isAway.Store(true)
	r := p.begin()
	p.eventually(func() bool { return strings.Contains(p.log(), "the database does not answer as it should") }, "it says so")
	require.False(t, p.engine.IsTaking())
	r.stop()
	r = p.begin()
	p.save("e")
	p.isAway.Store(false)
	p.becomes("SENT", "e")
	r.stop()
	p.isAway.Store(true)
	_, _, err := p.engine.Once(t.Context())
	require.Error(t, err, "it does not wait")
}

func TestTablesOfAnotherReleaseAreRefused(t *testing.T) {
	t.Parallel()
	p := newProcess(t, testdb.Bare)
	p.consumer("C", false, nil)
	require.ErrorAs(t, p.begin().result(), new(*store.TablesError))
	_, _, err := p.engine.Once(t.Context())
	require.ErrorAs(t, err, new(*store.TablesError))
}

// Run ends when something is registered that no lane was made for.
func TestLateRegistrationEndsTheRun(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.cfg.Poll = 10 * time.Millisecond
	p.consumer("C", false, nil)
	r := p.run()
	p.regs.Lock()
	p.regs.Late = true
	p.regs.Unlock()
	require.NoError(t, r.result())
}

// Events of a type that nobody consumes are parked, which is said once.
func TestUnroutableEventsAreParked(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.consumer("C", false, nil)
	p.saveOf("e1", "1", "event_type = 'nobody.s'")
	p.saveOf("e2", "2", "event_type = 'nobody.s'")
	p.save("e3")
	p.engine = engine.New(p.cfg)
	claimed, _, err := p.engine.Once(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, claimed)
	require.Equal(t, "SENT", p.status("e3"))
	require.Equal(t, 2, p.count("bc_outbox_event WHERE status = 'SCHEDULED' AND last_error LIKE '%no consumer is registered%'"))
	require.Equal(t, 1, strings.Count(p.log(), "events of a type that nobody consumes are parked"))
}

// A delivery whose event has a schema version that no instance knows waits in the log, which a sweep says.
func TestUnknownSchemaVersionWaits(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.consumer("C", false, nil)
	p.saveOf("e", "a", "schema_version = 2")
	p.engine = engine.New(p.cfg)
	_, _, err := p.engine.Once(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, p.count("bc_event_consume_log WHERE status = 'PENDING'"))
	require.Empty(t, p.called())
	_, _, err = p.engine.Once(t.Context())
	require.NoError(t, err)
	require.Contains(t, p.log(), "no running instance knows the schema version of an event")
}

// A run under the name of one that has died ends the leases of that at once.
func TestRunSucceedsItsPredecessor(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.cfg.Poll = 10 * time.Millisecond
	p.consumer("C", false, nil)
	instances := store.NewInstances(p.cfg.Dialect)
	require.NoError(t, instances.Announce(t.Context(), p.db, store.Instance{Name: "here", Run: "here/before"}))
	p.saveOf("e", "a", "status = 'DISPATCHING', locked_by = 'here/before', lock_version = 1, "+inAnHour)
	r := p.run()
	p.becomes("SENT", "e")
	r.stop()
}

// Leases of events whose handlers take longer are renewed.
func TestLeasesAreRenewed(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.cfg.Lease = 3 * time.Second
	began, mayEnd := make(chan struct{}), make(chan struct{})
	begin := sync.OnceFunc(func() { close(began) })
	p.consumer("C", true, func(context.Context, string) error {
		begin()
		<-mayEnd
		return nil
	})
	r := p.run()
	p.save("e")
	p.engine.Wake()
	<-began
	const ends = "SELECT MAX(next_retry_at) FROM bc_event_consume_log WHERE status = 'PROCESSING'"
	var first, now string
	require.NoError(t, p.db.QueryRowContext(t.Context(), ends).Scan(&first))
	p.eventually(func() bool {
		require.NoError(t, p.db.QueryRowContext(t.Context(), ends).Scan(&now))
		return now > first
	}, "it is renewed")
	close(mayEnd)
	p.becomes("SENT", "e")
	r.stop()
}

// What is registered as unconsumed is SENT without a delivery.
func TestUnconsumedTypeIsSent(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.regs.Unconsumed[anEvent] = struct{}{}
	p.save("e")
	p.engine = engine.New(p.cfg)
	claimed, _, err := p.engine.Once(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, claimed)
	require.Equal(t, "SENT", p.status("e"))
	require.Zero(t, p.count("bc_event_consume_log"))
}

// A context that ends ends Once, which says so.
func TestOnceEndsWithItsContext(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	ctx, end := context.WithCancel(t.Context())
	p.consumer("C", false, func(context.Context, string) error {
		end()
		return handler.RetryAfter(errors.New("later"), time.Hour)
	})
	p.save("e")
	p.engine = engine.New(p.cfg)
	_, _, err := p.engine.Once(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, []string{"e"}, p.called())
}
