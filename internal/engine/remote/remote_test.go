package remote_test

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/remote"
	"github.com/bluecone-go/bluecone/internal/spi"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// house is a deployment: a publisher without any handler, and a consumer in another program.
type house struct {
	t   *testing.T
	db  *bun.DB
	d   dialect.Dialect
	ob  *outbox.Outbox
	pub *outbox.Publisher
	rem *remote.Deliveries
}

const (
	lease    = time.Minute
	attempts = 3
	consumer = "PointsConsumer"
)

func newHouse(t *testing.T, db *bun.DB) *house {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	ob, err := outbox.New(db, outbox.Config{Logger: logger})
	require.NoError(t, err)
	pub, err := outbox.NewPublisher(ob, bus.New(db, bus.Config{Logger: logger}), outbox.PublisherConfig{
		Retention: outbox.RetentionConfig{Keep: -1},
	})
	require.NoError(t, err)
	rem, err := spi.NewRemoteDeliveries(db, logger, lease, attempts, func(int) time.Duration { return 2 * time.Second })
	require.NoError(t, err)
	d, err := dialect.Of(db)
	require.NoError(t, err)
	h := &house{t: t, db: db, d: d, ob: ob, pub: pub, rem: rem}
	require.NoError(t, rem.Register(t.Context(), consumer, []string{"order.paid"}))
	return h
}

// save saves events of aggregates, in their order, and lets the publisher write the deliveries.
func (h *house) save(aggregates ...string) (ids []string) {
	h.t.Helper()
	for i, a := range aggregates {
		id := fmt.Sprintf("%s-%d", a, i)
		err := h.db.RunInTx(h.t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
			return h.ob.Save(ctx, tx, &spi.RawEvent{
				ID: id, Type: "order.paid", AggregateType: "ORDER", AggregateID: a, Payload: []byte(`{"n":12345678901234567890}`),
			})
		})
		require.NoError(h.t, err)
		ids = append(ids, id)
	}
	h.publish()
	return ids
}

func (h *house) publish() {
	h.t.Helper()
	_, err := h.pub.RunOnce(h.t.Context())
	require.NoError(h.t, err)
}

func (h *house) fetch(limit int) []remote.Delivery {
	h.t.Helper()
	ds, err := h.rem.Fetch(h.t.Context(), consumer, []string{"order.paid"}, limit, 1<<20)
	require.NoError(h.t, err)
	return ds
}

func (h *house) finish(l remote.Lease, o remote.Outcome) store.Status {
	h.t.Helper()
	st, err := h.rem.Finish(h.t.Context(), remote.Finish{Lease: l, Outcome: o, Error: "no"})
	require.NoError(h.t, err)
	return st
}

// past makes what waits, and what is leased, due for a second.
func (h *house) past() {
	h.t.Helper()
	_, err := h.db.ExecContext(h.t.Context(), "UPDATE bc_event_consume_log SET next_retry_at = "+h.d.After+
		" WHERE status IN ('PENDING', 'FAILED', 'PROCESSING')", -dialect.Micro(time.Second))
	require.NoError(h.t, err)
}

func (h *house) status(eventID string) (s string) {
	h.t.Helper()
	require.NoError(h.t, h.db.QueryRowContext(h.t.Context(), "SELECT status FROM bc_outbox_event WHERE event_id = ?", eventID).Scan(&s))
	return s
}

func ids(ds []remote.Delivery) (out []string) {
	for _, d := range ds {
		out = append(out, d.Event.ID)
	}
	return out
}

// One event of each aggregate is out at a time: the next one comes when it has ended, and the event is SENT then.
func TestFetchKeepsTheOrderOfAnAggregate(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		h := newHouse(t, db)
		h.save("a", "a", "b", "a")
		first := h.fetch(10)
		require.Equal(t, []string{"a-0", "b-2"}, ids(first))
		require.JSONEq(t, `{"n":12345678901234567890}`, string(first[0].Event.Payload))
		require.Equal(t, 1, first[0].Attempt)
		require.Empty(t, h.fetch(10), "the others wait for their predecessor")
		require.Equal(t, store.Success, h.finish(first[0].Lease, remote.Success))
		require.Equal(t, "SENT", h.status("a-0"))
		require.Equal(t, store.Success, h.finish(first[1].Lease, remote.Success))
		next := h.fetch(10)
		require.Equal(t, []string{"a-1"}, ids(next), "its predecessor's end wakes it")
		require.Equal(t, store.Failed, h.finish(next[0].Lease, remote.Failed))
		require.Empty(t, h.fetch(10), "a FAILED delivery waits, and what is behind it")
		h.past()
		again := h.fetch(10)
		require.Equal(t, []string{"a-1"}, ids(again))
		require.Equal(t, 2, again[0].Attempt)
		require.Equal(t, store.Skipped, h.finish(again[0].Lease, remote.Skipped))
		require.Equal(t, []string{"a-3"}, ids(h.fetch(10)))
	})
}

// A call that is repeated changes nothing and has the same answer; so does one whose lease has passed to somebody else, but that
// it says so.
func TestFinishIsFenced(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		h := newHouse(t, db)
		h.save("a", "b", "c", "d")
		ds := h.fetch(10)
		require.Len(t, ds, 4)
		for i, c := range []struct {
			say  remote.Outcome
			want store.Status
		}{{remote.Success, store.Success}, {remote.Permanent, store.Dead}, {remote.Skipped, store.Skipped}, {remote.Failed, store.Failed}} {
			require.Equal(t, c.want, h.finish(ds[i].Lease, c.say))
			require.Equal(t, c.want, h.finish(ds[i].Lease, remote.Failed), "repeated: the first answer")
		}
		h.past()
		again := h.fetch(10)
		require.Equal(t, []string{"d-3"}, ids(again))
		_, err := h.rem.Finish(t.Context(), remote.Finish{Lease: ds[3].Lease, Outcome: remote.Success})
		require.ErrorIs(t, err, remote.ErrLost)
		_, err = h.rem.Heartbeat(t.Context(), ds[3].Lease)
		require.ErrorIs(t, err, remote.ErrLost)
		until, err := h.rem.Heartbeat(t.Context(), again[0].Lease)
		require.NoError(t, err)
		require.False(t, until.Before(again[0].Until))
		unknown := remote.Lease{Row: 1 << 40, Version: 1, Owner: "remote#x"}
		_, err = h.rem.Finish(t.Context(), remote.Finish{Lease: unknown, Outcome: remote.Success})
		require.ErrorIs(t, err, remote.ErrUnknown)
		guessed := again[0].Lease
		guessed.Owner = "remote#guessed"
		_, err = h.rem.Finish(t.Context(), remote.Finish{Lease: guessed, Outcome: remote.Success})
		require.ErrorIs(t, err, remote.ErrLost)
		require.Equal(t, store.Success, h.finish(again[0].Lease, remote.Success))
	})
}

// What a program that has died may have started is handed out alone, and counted: only the delivery that kills ends DEAD.
func TestACrashLoopEndsDeadForTheOneThatKills(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		h := newHouse(t, db)
		h.save("a", "killer", "c")
		require.Len(t, h.fetch(10), 3)
		open := func() bool {
			return h.status("killer-1") != "DEAD" || h.status("a-0") != "SENT" || h.status("c-2") != "SENT"
		}
		for round := 0; open(); round++ {
			require.Less(t, round, 20)
			h.past() // the program has died
			for _, d := range h.fetch(10) {
				if d.Event.AggregateID != "killer" {
					require.Equal(t, store.Success, h.finish(d.Lease, remote.Success))
				}
			}
		}
		var n int
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT attempts FROM bc_event_consume_log WHERE event_id = 'killer-1'").Scan(&n))
		require.LessOrEqual(t, n, attempts+1)
	})
}

// Begin answers as the delivery stands: go, done, in progress, dead, unknown.
func TestBeginAnswersAsTheDeliveryStands(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		h := newHouse(t, db)
		events := h.save("a", "a", "b")
		begin := func(id string) remote.Decision {
			d, err := h.rem.Begin(t.Context(), consumer, id)
			require.NoError(t, err)
			return d
		}
		d := begin(events[0])
		require.True(t, d.IsGo)
		require.Positive(t, begin(events[0]).RetryAfter, "somebody has it")
		require.Positive(t, begin(events[1]).RetryAfter, "its predecessor is unfinished")
		st, err := h.rem.Finish(t.Context(), remote.Finish{Lease: d.Lease, Outcome: remote.Success, Result: `{"points":12345678901234567890}`})
		require.NoError(t, err)
		require.Equal(t, store.Success, st)
		done := begin(events[0])
		require.True(t, done.IsDone)
		require.Contains(t, done.Result, "12345678901234567890")
		d = begin(events[1])
		require.True(t, d.IsGo)
		require.Equal(t, store.Dead, h.finish(d.Lease, remote.Permanent))
		_, err = h.rem.Begin(t.Context(), consumer, events[1])
		require.ErrorIs(t, err, remote.ErrDead)
		_, err = h.rem.Begin(t.Context(), consumer, "nobody")
		require.ErrorIs(t, err, remote.ErrUnknown)
		d, err = h.rem.Begin(t.Context(), "Unheard", events[2])
		require.NoError(t, err)
		require.True(t, d.IsGo, "a consumer that is not registered yet")
	})
}

// A consumer that asks for an event that was SENT before it was heard of has it open: later events of the aggregate wait.
func TestBeginOfASentEventHoldsUpLaterOnes(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		h := newHouse(t, db)
		events := h.save("a", "a")
		for range events {
			require.Equal(t, store.Success, h.finish(h.fetch(10)[0].Lease, remote.Success))
		}
		first, err := h.rem.Begin(t.Context(), "Late", events[0])
		require.NoError(t, err)
		require.True(t, first.IsGo)
		require.Equal(t, "FAILED", h.status(events[0]))
		second, err := h.rem.Begin(t.Context(), "Late", events[1])
		require.NoError(t, err)
		require.Positive(t, second.RetryAfter)
		require.Equal(t, store.Success, h.finish(first.Lease, remote.Success))
		require.Equal(t, "SENT", h.status(events[0]))
		second, err = h.rem.Begin(t.Context(), "Late", events[1])
		require.NoError(t, err)
		require.True(t, second.IsGo)
	})
}

// The types that a consumer names count whatever another instance was told before: what was parked in between is due.
func TestRegisterSeesWhatAnotherInstanceWasTold(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		h := newHouse(t, db)
		other, err := spi.NewRemoteDeliveries(db, slog.New(slog.DiscardHandler), lease, attempts, func(int) time.Duration { return time.Second })
		require.NoError(t, err)
		require.NoError(t, other.Register(t.Context(), consumer, []string{"order.refunded"}))
		h.save("a")
		require.Equal(t, "SCHEDULED", h.status("a-0"))
		require.NoError(t, h.rem.Register(t.Context(), consumer, []string{"order.paid"}))
		h.publish()
		require.Equal(t, []string{"a-0"}, ids(h.fetch(10)))
	})
}

// What a program that has died may have started is not handed out before an earlier event of its aggregate that the consumer did not
// take when it began.
func TestFetchKeepsTheOrderBeforeWhatMayHaveBeenStarted(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		h := newHouse(t, db)
		both := []string{"order.paid", "order.refunded"}
		require.NoError(t, h.db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
			return h.ob.Save(ctx, tx, &spi.RawEvent{
				ID: "earlier", Type: both[1], AggregateType: "ORDER", AggregateID: "a", Payload: []byte(`{}`),
			})
		}))
		require.Equal(t, []string{"a-0"}, h.save("a"))
		require.Equal(t, []string{"a-0"}, ids(h.fetch(10)), "nobody takes the earlier one")
		require.NoError(t, h.rem.Register(t.Context(), consumer, both))
		h.publish()
		h.past() // the program has died
		ds, err := h.rem.Fetch(t.Context(), consumer, both, 10, 1<<20)
		require.NoError(t, err)
		require.Equal(t, []string{"earlier"}, ids(ds))
	})
}

// Deliveries that all succeed are ended together, or none of them is.
func TestDeliveriesEndTogetherOrNotAtAll(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		h := newHouse(t, db)
		var aggregates []string
		for i := range 30 {
			aggregates = append(aggregates, strconv.Itoa(i))
		}
		events := h.save(aggregates...)
		var all []remote.Finish
		for len(all) < len(events) {
			ds := h.fetch(12)
			require.NotEmpty(t, ds)
			for _, d := range ds {
				all = append(all, remote.Finish{Lease: d.Lease, Outcome: remote.Success})
			}
		}
		stale := append([]remote.Finish{}, all...)
		stale[7].Lease.Version++
		done, err := h.rem.FinishAll(t.Context(), stale)
		require.NoError(t, err)
		require.False(t, done)
		require.NotEqual(t, "SENT", h.status(events[0]))
		done, err = h.rem.FinishAll(t.Context(), all)
		require.NoError(t, err)
		require.True(t, done)
		for _, id := range events {
			require.Equal(t, "SENT", h.status(id))
		}
	})
}

// The types that a consumer names replace those that it took before: events of the others go past it, and what was
// parked for want of a consumer is due at once.
func TestRegisterReplacesTypes(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		h := newHouse(t, db)
		require.NoError(t, h.rem.Register(t.Context(), consumer, []string{"order.refunded"}))
		h.save("a")
		require.Empty(t, h.fetch(10))
		require.Equal(t, "SCHEDULED", h.status("a-0"), "parked: nobody takes it")
		require.NoError(t, h.rem.Register(t.Context(), consumer, []string{"order.paid"}))
		h.publish()
		require.Equal(t, []string{"a-0"}, ids(h.fetch(10)))
	})
}
