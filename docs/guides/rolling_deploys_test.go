package guides_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/bustest"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

// ShippedInKilos is how release 1 saves order.shipped.
type ShippedInKilos struct {
	OrderID string
	Kilos   float64
}

func (ShippedInKilos) EventType() string              { return "order.shipped" }
func (e ShippedInKilos) Aggregate() (kind, id string) { return "ORDER", e.OrderID }

// OrderShipped is how release 2 saves it.
type OrderShipped struct {
	OrderID string
	Grams   int
}

func (OrderShipped) EventType() string              { return "order.shipped" }
func (e OrderShipped) Aggregate() (kind, id string) { return "ORDER", e.OrderID }
func (OrderShipped) SchemaVersion() int             { return 2 }

func kilosToGrams(payload json.RawMessage) (json.RawMessage, error) {
	var old struct {
		OrderID string
		Kilos   float64
	}
	if err := json.Unmarshal(payload, &old); err != nil {
		return nil, err
	}
	return json.Marshal(OrderShipped{OrderID: old.OrderID, Grams: int(old.Kilos * 1000)})
}

func registerTracking(b *bus.Bus, note func(order string, grams int)) {
	b.Upcast("order.shipped", 1, kilosToGrams)
	bus.On(b.Consumer("Tracking", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[OrderShipped]) error {
		note(m.Payload.OrderID, m.Payload.Grams)
		return nil
	})
}

// release is an instance of one release of the program.
func release(t *testing.T, db *bun.DB, register func(*bus.Bus)) (*outbox.Outbox, func()) {
	require.NoError(t, migrations.Up(t.Context(), db))
	ob, err := outbox.New(db, outbox.Config{})
	require.NoError(t, err)
	b := bus.New(db, bus.Config{})
	register(b)
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	require.NoError(t, err)
	return ob, func() {
		_, err := pub.RunOnce(t.Context())
		require.NoError(t, err)
	}
}

// Both releases run side by side: the old one leaves what it does not know, the new one reads what the old one has saved.
func TestTwoReleasesSideBySide(t *testing.T) {
	t.Parallel()
	db := bustest.NewDB(t)
	var said []string
	oldOutbox, oldRuns := release(t, db, func(b *bus.Bus) {
		bus.On(b.Consumer("Tracking", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[ShippedInKilos]) error {
			said = append(said, fmt.Sprint("old: ", m.Payload.OrderID, " ", m.Payload.Kilos, " kg"))
			return nil
		})
	})
	newOutbox, newRuns := release(t, db, func(b *bus.Bus) {
		registerTracking(b, func(order string, grams int) { said = append(said, fmt.Sprint("new: ", order, " ", grams, " g")) })
	})
	save(t, db, newOutbox, OrderShipped{OrderID: "7", Grams: 420})
	oldRuns()
	counts, err := newOutbox.Log().Counts(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, counts[consumelog.Pending], "it is left for an instance that knows version 2")
	save(t, db, oldOutbox, ShippedInKilos{OrderID: "8", Kilos: 0.5})
	newRuns()
	require.ElementsMatch(t, []string{"new: 7 420 g", "new: 8 500 g"}, said)
}

// A renamed consumer keeps its key, and does nothing twice.
func TestRenamedConsumer(t *testing.T) {
	t.Parallel()
	db := bustest.NewDB(t)
	n := 0
	ob, oldRuns := release(t, db, func(b *bus.Bus) {
		bus.On(b.Consumer("Points", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[OrderPaid]) error { n++; return nil })
	})
	save(t, db, ob, OrderPaid{OrderID: "7"})
	oldRuns()
	exec(t, db, "UPDATE bc_outbox_event SET status = 'NEW'") // as if the instance had died before it settled the event
	_, newRuns := release(t, db, func(b *bus.Bus) {
		c := b.Consumer("Loyalty", bus.ConsumerConfig{Key: "Points"}) // was called Points
		bus.On(c, func(context.Context, bun.Tx, bus.Message[OrderPaid]) error { n++; return nil })
	})
	newRuns()
	require.Equal(t, 1, n)
}

// Events wait for a consumer until somebody retires it.
func TestRetiredConsumer(t *testing.T) {
	t.Parallel()
	db := bustest.NewDB(t)
	ctx := t.Context()
	nothing := func(context.Context, bun.Tx, bus.Message[OrderPaid]) error { return nil }
	_, oldRuns := release(t, db, func(b *bus.Bus) { bus.On(b.Consumer("Points", bus.ConsumerConfig{}), nothing) })
	oldRuns()
	ob, newRuns := release(t, db, func(b *bus.Bus) { bus.On(b.Consumer("Wallet", bus.ConsumerConfig{}), nothing) })
	save(t, db, ob, OrderPaid{OrderID: "7"})
	newRuns()
	counts, err := ob.Log().Counts(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 1, counts[consumelog.Pending])

	op := outbox.Operation{Actor: "anna", Reason: "points moved to another program"}
	err = ob.Retire(ctx, op, "Points")

	require.NoError(t, err)
	save(t, db, ob, OrderPaid{OrderID: "8"})
	newRuns()
	counts, err = ob.Log().Counts(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 1, counts[consumelog.Pending], "order 8 does not wait for it")
	require.EqualValues(t, 2, counts[consumelog.Success])
}
