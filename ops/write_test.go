package ops_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

func (f *fixture) actions(target string) []string {
	f.t.Helper()
	p, err := f.ops.Audit(f.t.Context(), ops.AuditQuery{Target: target})
	require.NoError(f.t, err)
	out := make([]string, len(p.Rows))
	for i, r := range p.Rows {
		require.Equal(f.t, op.Actor, r.Actor)
		require.Equal(f.t, op.Reason, r.Reason)
		out[len(out)-1-i] = r.Action
	}
	return out
}

func TestRetrySkipAndDiscardOneEvent(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{}).consumers()
		for _, id := range []string{"1", "2", "3"} {
			f.save(paid{OrderID: id, Note: "die"})
		}
		f.once()
		require.NoError(t, f.ops.Skip(t.Context(), op, paidID("1"), "Moody"))
		require.NoError(t, f.ops.Discard(t.Context(), op, paidID("2")))
		f.heal()
		require.NoError(t, f.ops.Retry(t.Context(), op, paidID("3")))
		require.Equal(t, consumelog.Pending, delivery(f.event("3"), "Moody").Status)
		f.once()
		require.Equal(t, []string{"Moody 3"}, f.runs()[3:])
		for id, want := range map[string]consumelog.Status{"1": consumelog.Skipped, "2": consumelog.Skipped, "3": consumelog.Success} {
			e := f.event(id)
			require.Equal(t, outbox.StatusSent, e.Status, id)
			require.Equal(t, want, delivery(e, "Moody").Status, id)
		}
		require.Equal(t, "anna: a test", delivery(f.event("2"), "Moody").Error)
		require.Equal(t, []string{"skip"}, f.actions(paidID("1")))
		require.Equal(t, []string{"discard"}, f.actions(paidID("2")))
		require.Equal(t, []string{"retry"}, f.actions(paidID("3")))
		require.ErrorIs(t, f.ops.Retry(t.Context(), op, paidID("3")), ops.ErrNotFound, "again")
		require.ErrorIs(t, f.ops.Discard(t.Context(), op, paidID("3")), ops.ErrNotFound, "it is done")
		require.ErrorContains(t, f.ops.Discard(t.Context(), ops.Operation{Actor: "anna"}, paidID("3")), "reason")
		require.Equal(t, []string{"retry"}, f.actions(paidID("3")), "what changed nothing leaves nothing")
	})
}

// An event that nobody has been called for yet can be given up too; later ones of its aggregate pass.
func TestDiscardAnEventThatNobodyHasTaken(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{}).consumers()
		f.once() // registers
		f.save(paid{OrderID: "1"})
		require.NoError(t, f.ops.Discard(t.Context(), op, paidID("1")))
		f.once()
		require.Empty(t, f.runs())
		e := f.event("1")
		require.Equal(t, outbox.StatusSent, e.Status)
		require.Len(t, e.Deliveries, 2)
		for _, d := range e.Deliveries {
			require.Equal(t, consumelog.Skipped, d.Status)
		}
	})
}

func TestReplayIsOnceMoreAndVisible(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{}).consumers()
		f.save(paid{OrderID: "1"}, noted{OrderID: "1"})
		f.once()
		require.ErrorIs(t, f.ops.Replay(t.Context(), op, paidID("1"), "Moody"), ops.ErrNotReplayable)
		require.ErrorIs(t, f.ops.Replay(t.Context(), op, "nobody", "Steady"), ops.ErrNotFound)
		for range 2 { // it can be replayed again when it is done
			require.NoError(t, f.ops.Replay(t.Context(), op, paidID("1"), "Steady"))
			require.ErrorIs(t, f.ops.Replay(t.Context(), op, paidID("1"), "Steady"), ops.ErrNotFound, "it waits already")
			require.Equal(t, outbox.StatusFailed, f.event("1").Status, "a delivery waits")
			f.once()
			require.Equal(t, outbox.StatusSent, f.event("1").Status)
		}
		require.Equal(t, []string{"Steady 1 again", "Steady 1 again"}, f.runs()[3:])
		replays := delivery(f.event("1"), consumelog.ReplayName("Steady"))
		require.True(t, replays.Replay)
		require.True(t, replays.Registered)
		require.Equal(t, consumelog.Success, replays.Status)
		require.Equal(t, consumelog.Success, delivery(f.event("1"), "Steady").Status)
		require.Equal(t, []string{"replay", "replay"}, f.actions(paidID("1")))
	})
}

// Replays of an aggregate keep their order, and do not wait for events that nobody replays.
func TestReplaysKeepTheirOrder(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{})
		fails := true
		c := f.bus.Consumer("Ledger", bus.ConsumerConfig{Replayable: true})
		bus.On(c, func(_ context.Context, _ bun.Tx, m bus.Message[noted]) error {
			if m.Replay && m.Payload.Note == "b" && fails {
				fails = false
				return context.DeadlineExceeded
			}
			return f.note(m.Consumer, m.Payload.Note, m.Replay)
		})
		f.save(noted{OrderID: "1", Note: "a"}, noted{OrderID: "1", Note: "b"}, noted{OrderID: "1", Note: "c"})
		f.once()
		p, err := f.ops.Events(t.Context(), ops.Query{AggregateID: "1"})
		require.NoError(t, err)
		for _, e := range []ops.Event{p.Rows[0], p.Rows[1]} { // c and b
			require.NoError(t, f.ops.Replay(t.Context(), op, e.EventID, "Ledger"))
		}
		for range 4 {
			f.exec("UPDATE bc_event_consume_log SET next_retry_at = " + f.now(-1*time.Second) + " WHERE status IN ('PENDING', 'FAILED')")
			f.once()
		}
		require.Equal(t, []string{"Ledger b again", "Ledger c again"}, f.runs()[3:])
	})
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{}).consumers()
		f.once()
		require.NoError(t, f.ops.Pause(t.Context(), op, "Steady", time.Hour))
		require.Equal(t, ops.Paused, f.consumer("Steady").State)
		require.WithinDuration(t, time.Now().Add(time.Hour), f.consumer("Steady").PausedUntil, time.Minute)
		f.save(paid{OrderID: "1"})
		f.once()
		require.Equal(t, []string{"Moody 1"}, f.runs())
		require.Eventually(t, func() bool {
			return f.consumer("Steady").Waiting.Count == 1
		}, 30*time.Second, 50*time.Millisecond, "answers are shared for a second")
		require.NoError(t, f.ops.Resume(t.Context(), op, "Steady"))
		f.once()
		require.Equal(t, []string{"Moody 1", "Steady 1"}, f.runs())
		require.Equal(t, []string{"pause", "resume"}, f.actions("Steady"))
		require.NoError(t, f.ops.Pause(t.Context(), op, "Steady", 0))
		require.Zero(t, f.consumer("Steady").PausedUntil)
		require.Error(t, f.ops.Pause(t.Context(), op, "Nobody", 0))
	})
}

func (f *fixture) consumer(name string) ops.Consumer {
	f.t.Helper()
	all, err := f.ops.Consumers(f.t.Context())
	require.NoError(f.t, err)
	for _, c := range all {
		if c.Name == name {
			return c
		}
	}
	require.Fail(f.t, "no consumer "+name)
	return ops.Consumer{}
}

func TestPayloadIsRedactedAndItsRevealAudited(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{Personal: []string{"userId"}})
		f.save(outbox.With(paid{OrderID: "1", Cents: 12345678901234567, Phone: "555-1234"}, outbox.Meta(bus.MetaUserID, "secret-user")))
		p, err := f.ops.Payload(t.Context(), op, paidID("1"))
		require.NoError(t, err)
		require.True(t, p.Redacted)
		require.Contains(t, p.Payload, `"cents":12345678901234567`)
		require.Contains(t, p.Payload, `"phone":"(hidden)"`)
		require.NotContains(t, p.Metadata, "secret-user")
		require.Equal(t, []string{"reveal payload"}, f.actions(paidID("1")))
		_, err = f.ops.Payload(t.Context(), op, "nobody")
		require.ErrorIs(t, err, ops.ErrNotFound)
		_, err = f.ops.Payload(t.Context(), ops.Operation{Actor: "anna"}, paidID("1"))
		require.Error(t, err)
	})
}

func TestPublishAMissingEvent(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{}).consumers()
		m := ops.Manual{EventType: "order.paid", Payload: `{"orderId":"1","cents":12345678901234567}`}
		would, err := f.ops.CheckManual(t.Context(), m)
		require.NoError(t, err)
		require.Equal(t, ops.Published{
			EventID: paidID("1"), EventType: "order.paid", AggregateType: "ORDER", AggregateID: "1", IdempotencyKey: "order:1:paid",
		}, would)
		require.Zero(t, f.count("SELECT COUNT(*) FROM bc_outbox_event"))
		did, err := f.ops.Publish(t.Context(), op, m)
		require.NoError(t, err)
		require.True(t, did.Created)
		did, err = f.ops.Publish(t.Context(), op, m)
		require.NoError(t, err)
		require.True(t, did.Exists)
		require.False(t, did.Created)
		require.Equal(t, []string{"publish"}, f.actions(paidID("1")))
		other, err := f.ops.Publish(t.Context(), op, ops.Manual{EventType: "order.noted", Payload: `{"orderId":"1"}`, TenantID: 7})
		require.NoError(t, err)
		e, err := f.ops.Event(t.Context(), other.EventID)
		require.NoError(t, err)
		require.EqualValues(t, 7, e.TenantID)
		require.Equal(t, "manual", e.Source)
		f.once()
		require.ElementsMatch(t, []string{"Steady 1", "Moody 1", "Steady 1"}, f.runs())
		for name, bad := range map[string]ops.Manual{
			"type":    {EventType: "order.lost", Payload: "{}"},
			"field":   {EventType: "order.paid", Payload: `{"orderID":"1","centz":1}`},
			"json":    {EventType: "order.paid", Payload: `{`},
			"twice":   {EventType: "order.paid", Payload: `{"orderId":"1"} {}`},
			"invalid": {EventType: "order.paid", Payload: `{"orderId":""}`},
		} {
			_, err := f.ops.CheckManual(t.Context(), bad)
			require.ErrorIs(t, err, ops.ErrInvalid, name)
			_, err = f.ops.Publish(t.Context(), op, bad)
			require.ErrorIs(t, err, ops.ErrInvalid, name)
		}
		sample, err := f.ops.Sample("order.paid")
		require.NoError(t, err)
		require.Contains(t, sample, `"orderId": ""`)
	})
}
