package view_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store/view"
)

// An event is read by its id or its row, with no more of its texts than is asked for.
func TestAnEventIsReadWithoutItsPayload(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		ctx, events := f.t.Context(), must[[]view.Event](f.t)
		id := f.event("a", "NEW", 2*time.Hour)
		f.event("b", "NEW", 0)
		f.exec("UPDATE bc_outbox_event SET tenant_id = 7, store_id = 8, trace_id = 'trace', event_key = 'key', last_error = ?, "+
			"event_metadata = ?, retry_count = 2, schema_version = 3, locked_by = 'me' WHERE event_id = 'a'",
			long(50), `{"text":"`+strings.Repeat("x", 100)+`"}`)
		found := events(view.EventsByID(ctx, f.Reader, view.Events, []string{"a", "missing"}, 10))
		require.Len(f.t, found, 1)
		e := found[0]
		require.Equal(f.t, found, events(view.EventsByRow(ctx, f.Reader, view.Events, []int64{id, id + 100}, 10)))
		f.ago(2*time.Hour, e.CreatedAt)
		f.ago(2*time.Hour, e.NextRetryAt)
		require.True(f.t, e.SentAt.IsZero())
		require.Equal(f.t, long(50)[:11], e.LastError, "one character more tells that it was cut")
		require.Len(f.t, e.Metadata, 31)
		require.Equal(f.t, view.Event{
			OutboxID: id, EventID: "a", EventType: "a.b", SchemaVersion: 3, AggregateType: "A", AggregateID: "1", TenantID: 7, StoreID: 8,
			Status: "NEW", TraceID: "trace", Key: "key", Metadata: e.Metadata, LastError: e.LastError, LockedBy: "me", Expired: 2,
			CreatedAt: e.CreatedAt, UpdatedAt: e.UpdatedAt, NextRetryAt: e.NextRetryAt,
		}, e)
		require.Empty(f.t, events(view.EventsByID(ctx, f.Reader, view.EventsArchive, []string{"a"}, 10)))

		tenant, ok, err := view.TenantOf(ctx, f.Reader, view.Events, "a")
		require.NoError(f.t, err)
		require.Equal(f.t, []any{int64(7), true}, []any{tenant, ok})
		tenant, ok, err = view.TenantOf(ctx, f.Reader, view.Events, "b")
		require.NoError(f.t, err)
		require.Equal(f.t, []any{int64(0), true}, []any{tenant, ok})
		_, ok, err = view.TenantOf(ctx, f.Reader, view.Events, "missing")
		require.NoError(f.t, err)
		require.False(f.t, ok)
	})
}

// A payload is read in a transaction, as far as it is asked for.
func TestAPayloadIsRead(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		f.event("a", "NEW", 0)
		require.NoError(f.t, f.db.RunInTx(f.t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
			p, ok, err := view.PayloadOf(ctx, tx, f.Reader, view.Events, "a", 100)
			require.NoError(f.t, err)
			require.True(f.t, ok)
			require.Equal(f.t, "a.b", p.EventType)
			require.JSONEq(f.t, `{"n":1}`, p.Payload)
			p, _, err = view.PayloadOf(ctx, tx, f.Reader, view.Events, "a", 2)
			require.NoError(f.t, err)
			require.Len(f.t, p.Payload, 3)
			_, ok, err = view.PayloadOf(ctx, tx, f.Reader, view.Events, "missing", 2)
			require.False(f.t, ok)
			return err
		}))
	})
}

// Deliveries and their attempts are read by the ids of their events; one that was left has no time.
func TestDeliveriesAndAttemptsOfEventsAreRead(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		ctx := f.t.Context()
		id := f.event("a", "DISPATCHING", 0)
		f.delivery("a", "C", "FAILED", 2*time.Hour)
		f.delivery("a", "left", "PENDING", 0)
		f.delivery("other", "C", "FAILED", 0)
		f.exec("UPDATE bc_event_consume_log SET next_retry_at = " + f.D.Never + " WHERE consumer_name = 'left'")
		f.exec("UPDATE bc_event_consume_log SET attempts = 3, idempotency_key = 'key', consume_result = '{}', tenant_id = 7, locked_by = 'me' " +
			"WHERE consumer_name = 'C' AND event_id = 'a'")
		found := make(map[string]view.Delivery)
		require.NoError(f.t, view.DeliveriesOf(ctx, f.Reader, view.Deliveries, []string{"a"}, 4, func(d view.Delivery) error {
			found[d.Consumer] = d
			return nil
		}))
		require.Len(f.t, found, 2)
		require.True(f.t, found["left"].IsLeft)
		require.True(f.t, found["left"].NextRetryAt.IsZero())
		d := found["C"]
		f.ago(2*time.Hour, d.CreatedAt)
		f.ago(2*time.Hour, d.NextRetryAt)
		require.Equal(f.t, view.Delivery{
			Consumer: "C", EventID: "a", EventType: "a.b", Status: "FAILED", Attempts: 3, Error: "it br", Key: "key", Result: "{}", LockedBy: "me",
			CreatedAt: d.CreatedAt, ConsumedAt: d.ConsumedAt, UpdatedAt: d.UpdatedAt, NextRetryAt: d.NextRetryAt, OutboxID: id, TenantID: 7,
			AggregateType: "A", AggregateID: "1",
		}, d)

		f.attempt("a", "C", 1, "FAILED")
		f.attempt("a", "C", 2, "DEAD")
		f.attempt("other", "C", 1, "FAILED")
		var attempts []view.Attempt
		require.NoError(f.t, view.AttemptsOf(ctx, f.Reader, []string{"a"}, 4, func(a view.Attempt) error {
			a.At = time.Time{}
			attempts = append(attempts, a)
			return nil
		}))
		want := view.Attempt{
			EventID: "a", Consumer: "C", Attempt: 1, Outcome: "FAILED", Error: "it br", Instance: "me", Duration: 1500 * time.Microsecond,
		}
		second := want
		second.Attempt, second.Outcome = 2, "DEAD"
		require.Equal(f.t, []view.Attempt{want, second}, attempts)
	})
}

// What is looked up is found in its table, within its tenants, up to its limit.
func TestLookupsStayWithinTenantsAndLimits(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		ctx, texts := f.t.Context(), must[[]string](f.t)
		require.Empty(f.t, texts(view.AggregateTypes(ctx, f.Reader, view.Events, 10)))
		first := f.event("a", "NEW", 3*time.Hour)
		f.event("b", "NEW", 2*time.Hour)
		last := f.event("c", "NEW", time.Hour)
		f.exec("UPDATE bc_outbox_event SET tenant_id = 7, event_key = 'key', event_type = 'c.d', aggregate_type = 'B' WHERE event_id <> 'a'")
		f.consumer("C", 0)
		require.Equal(f.t, []string{"a.b"}, texts(view.RegisteredTypes(ctx, f.Reader, 10)))
		require.ElementsMatch(f.t, []string{"a.b", "c.d"}, texts(view.RecentTypes(ctx, f.Reader, nil, 10)))
		require.Equal(f.t, []string{"c.d"}, texts(view.RecentTypes(ctx, f.Reader, nil, 2)))
		require.Equal(f.t, []string{"a.b"}, texts(view.RecentTypes(ctx, f.Reader, []int64{0}, 10)))
		require.Equal(f.t, []string{"A", "B"}, texts(view.AggregateTypes(ctx, f.Reader, view.Events, 10)))
		require.Equal(f.t, []string{"A"}, texts(view.AggregateTypes(ctx, f.Reader, view.Events, 1)))
		require.Equal(f.t, []string{"c", "b"}, texts(view.EventIDsOfKey(ctx, f.Reader, view.Events, "key", 0, nil, 10)))
		require.Equal(f.t, []string{"c"}, texts(view.EventIDsOfKey(ctx, f.Reader, view.Events, "key", 7, []int64{7, 8}, 1)))
		require.Empty(f.t, texts(view.EventIDsOfKey(ctx, f.Reader, view.Events, "key", 0, []int64{8}, 10)))
		f.delivery("a", "C", "SUCCESS", 0)
		f.exec("UPDATE bc_event_consume_log SET idempotency_key = 'mine'")
		require.Equal(f.t, []string{"a"}, texts(view.EventIDsOfKey(ctx, f.Reader, view.Deliveries, "mine", 0, nil, 10)))
		require.Equal(f.t, []int64{7}, must[[]int64](f.t)(view.RecentTenants(ctx, f.Reader, 10, 10)))

		from, to, err := view.IDRange(ctx, f.Reader, view.Events)
		require.NoError(f.t, err)
		require.Equal(f.t, []int64{first, last}, []int64{from, to})
		from, to, err = view.IDRange(ctx, f.Reader, view.EventsArchive)
		require.NoError(f.t, err)
		require.Zero(f.t, from+to)
		since := func(ago time.Duration) int64 {
			var now int64
			require.NoError(f.t, f.db.QueryRowContext(ctx, "SELECT "+f.D.Micros(f.D.Now)).Scan(&now))
			return must[int64](f.t)(view.FirstSince(ctx, f.Reader, view.Events, first, last, view.Instant(now-dialect.Micro(ago))))
		}
		require.Equal(f.t, first, since(10*time.Hour))
		require.Equal(f.t, last, since(90*time.Minute))
		require.Equal(f.t, last+1, since(time.Minute), "none is so young")
		f.ago(3*time.Hour, must[time.Time](f.t)(view.SavedAt(ctx, f.Reader, view.Events, first)))
		require.Zero(f.t, must[time.Time](f.t)(view.SavedAt(ctx, f.Reader, view.Events, last+1)))
	})
}
