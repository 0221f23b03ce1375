package outbox_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"go.opentelemetry.io/otel/trace"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// pointsGiven is what a handler of orderPaid saves.
type pointsGiven struct {
	OrderID string `json:"orderId"`
}

func (pointsGiven) EventType() string              { return "points.given" }
func (e pointsGiven) Aggregate() (kind, id string) { return "POINTS", e.OrderID }

// tenants says of each event of a type to which tenant and store it belongs, by aggregate.
func (f *fixture) tenants(eventType string) map[string]string {
	f.t.Helper()
	rows, err := f.db.QueryContext(f.t.Context(), "SELECT aggregate_id, COALESCE(tenant_id, 0), COALESCE(store_id, 0) "+
		"FROM bc_outbox_event WHERE event_type = ?", eventType)
	require.NoError(f.t, err)
	defer rows.Close()
	found := make(map[string]string)
	for rows.Next() {
		var id string
		var tenant, store int64
		require.NoError(f.t, rows.Scan(&id, &tenant, &store))
		found[id] = fmt.Sprintf("%d/%d", tenant, store)
	}
	require.NoError(f.t, rows.Err())
	return found
}

// One event's entries and options are not those of another that was made of the same event.
func TestEventsWithOptionsShareNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		base := outbox.With(orderPaid{OrderID: "1"}, outbox.Meta("source", "import"))
		first := outbox.With(base, outbox.Meta("line", "1"))
		second := outbox.With(base, outbox.Meta("line", "2"), outbox.Meta("source", "file"))
		f.save(base, first, second)
		var got []bus.Metadata
		bus.OnBatch(f.bus.Consumer("Reader", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, ms []bus.Message[orderPaid]) error {
			got = nil
			for _, m := range ms {
				delete(m.Metadata, "instance")
				got = append(got, m.Metadata)
			}
			return nil
		})
		f.once()
		require.Equal(t, []bus.Metadata{{"source": "import"}, {"source": "import", "line": "1"}, {"source": "file", "line": "2"}}, got)
	})
}

// What a handler saves belongs to the tenant and store of its message, unless outbox.Tenant says otherwise.
func TestFollowUpEventsInheritTheTenant(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		bus.On(f.bus.Consumer("Points", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
			ctx = bus.WithMetadata(ctx, bus.Metadata{"step": "points"}) // does not hide the message
			return f.ob.Save(ctx, tx, pointsGiven{m.AggregateID}, outbox.With(pointsGiven{m.AggregateID + "-elsewhere"}, outbox.Tenant(9, 0)),
				outbox.With(pointsGiven{m.AggregateID + "-nobody"}, outbox.Tenant(0, 0)))
		})
		bus.OnExternal(f.bus.Consumer("Mail", bus.ConsumerConfig{}), func(ctx context.Context, m bus.Message[orderPaid]) error {
			return f.db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
				return f.ob.Save(ctx, tx, pointsGiven{m.AggregateID + "-mail"})
			})
		})
		f.bus.Unconsumed("points.given")
		f.save(outbox.With(orderPaid{OrderID: "a"}, outbox.Tenant(7, 3)), orderPaid{OrderID: "b"})
		f.once()
		require.Equal(t, map[string]string{
			"a": "7/3", "a-elsewhere": "9/0", "a-nobody": "0/0", "a-mail": "7/3",
			"b": "0/0", "b-elsewhere": "9/0", "b-nobody": "0/0", "b-mail": "0/0",
		}, f.tenants("points.given"))
	})
}

// A handler of many messages says by Message.Context of which one it speaks: tenant, metadata and trace are that one's.
func TestBatchHandlerSpeaksOfOneMessage(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		most := 0
		var said error
		bus.OnBatch(f.bus.Consumer("Points", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, ms []bus.Message[orderPaid]) error {
			most = max(most, len(ms))
			ctx = bus.WithMetadata(ctx, bus.Metadata{"step": "points"})
			for _, m := range ms {
				if err := f.ob.Save(m.Context(ctx), tx, pointsGiven{m.AggregateID}); err != nil {
					said = err
					return err
				}
			}
			return nil
		})
		got := make(map[string]bus.Metadata)
		bus.On(f.bus.Consumer("Reader", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[pointsGiven]) error {
			got[m.AggregateID] = m.Metadata
			return nil
		})
		traces := make(map[string]string)
		for i, id := range ids(4) {
			request := trace.NewSpanContext(trace.SpanContextConfig{
				TraceID: trace.TraceID{byte(i + 1)}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled,
			})
			ctx := bus.WithMetadata(trace.ContextWithSpanContext(t.Context(), request), bus.Metadata{bus.MetaRequestID: "of " + id})
			require.NoError(t, db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
				return f.ob.Save(ctx, tx, outbox.With(orderPaid{OrderID: id}, outbox.Tenant(int64(i), 0)))
			}))
			traces[id] = request.TraceID().String()
		}
		f.once()
		f.once()
		require.Greater(t, most, 1, "a call was for several messages")
		require.NoError(t, said)
		require.Equal(t, map[string]string{"order-0": "0/0", "order-1": "1/0", "order-2": "2/0", "order-3": "3/0"}, f.tenants("points.given"))
		for _, id := range ids(4) {
			require.Equal(t, "of "+id, got[id][bus.MetaRequestID], id)
			require.Equal(t, "points", got[id]["step"], id)
			require.Equal(t, traces[id], got[id][bus.MetaTraceID], id)
		}
	})
}

// A handler of many messages that saves without saying of which one it speaks: if they are all of one tenant, it is that one's.
// If they are not, the call is refused, and repeated one by one, where it is clear.
func TestBatchHandlerLosesNoTenant(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		var said error
		most := 0
		bus.OnBatch(f.bus.Consumer("Points", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, ms []bus.Message[orderPaid]) error {
			most = max(most, len(ms))
			for _, m := range ms {
				if err := f.ob.Save(ctx, tx, pointsGiven{m.AggregateID}); err != nil {
					said = err
					return err
				}
			}
			return nil
		})
		f.bus.Unconsumed("points.given")
		for _, id := range ids(3) {
			f.save(outbox.With(orderPaid{OrderID: id}, outbox.Tenant(7, 3)))
		}
		f.once()
		require.Greater(t, most, 1, "a call was for several messages")
		require.NoError(t, said)
		require.Equal(t, map[string]string{"order-0": "7/3", "order-1": "7/3", "order-2": "7/3"}, f.tenants("points.given"))
		f.exec("DELETE FROM bc_outbox_event WHERE event_type = 'points.given'")

		for i, id := range []string{"x", "y", "z"} {
			f.save(outbox.With(orderPaid{OrderID: id}, outbox.Tenant(int64(i+1), 0)))
		}
		f.once()
		require.ErrorIs(t, said, outbox.ErrInvalidEvent)
		require.ErrorContains(t, said, "m.Context(ctx)")
		require.Equal(t, map[string]string{"x": "1/0", "y": "2/0", "z": "3/0"}, f.tenants("points.given"))
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 6}, f.deliveries())
	})
}
