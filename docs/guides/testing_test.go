package guides_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/bustest"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/outbox"
)

// ReminderDue says that an order has not been paid for a day.
type ReminderDue struct{ OrderID string }

func (ReminderDue) EventType() string              { return "reminder.due" }
func (e ReminderDue) Aggregate() (kind, id string) { return "ORDER", e.OrderID }

func TestPaymentGivesPoints(t *testing.T) {
	t.Parallel()
	db, h := shop(t) // bustest.NewDB(t), the tables of the shop, and bustest.New(t, db)
	bus.On(h.Bus.Consumer("Points", bus.ConsumerConfig{}), addPoints)

	require.NoError(t, pay(t.Context(), db, h.Outbox, "7"))

	paid := bustest.RequireSaved[OrderPaid](h) // exactly one, and committed
	require.Equal(t, 4200, paid.Payload.Cents)
	require.Equal(t, bustest.Report{consumelog.Success: 1}, h.Drain()) // delivers it, and then once more
	require.Equal(t, 42, number(t, db, "SELECT points FROM accounts"))
}

func TestPaymentThatFailsSavesNothing(t *testing.T) {
	t.Parallel()
	db, h := shop(t)
	err := db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
		require.NoError(t, h.Outbox.Save(ctx, tx, OrderPaid{OrderID: "7"}))
		return fmt.Errorf("the card was refused")
	})
	require.ErrorContains(t, err, "refused")
	bustest.RequireNotSaved[OrderPaid](h)
}

func TestPointsSurviveEveryFault(t *testing.T) {
	t.Parallel()
	for _, fault := range []bustest.Fault{
		bustest.FailBeforeCommit, bustest.FailAfterCommit, bustest.LoseLease, bustest.HandlerError, bustest.HandlerPanic, bustest.Duplicate,
	} {
		db, h := shop(t)
		bus.On(h.Bus.Consumer("Points", bus.ConsumerConfig{}), addPoints)
		h.Break(fault)
		bustest.Deliver(h, OrderPaid{OrderID: "7", Cents: 4200})
		h.Drain()
		require.Equal(t, 42, number(t, db, "SELECT points FROM accounts"), "fault %v", fault)
	}
}

func TestReminderComesAfterADay(t *testing.T) {
	t.Parallel()
	h := bustest.New(t, bustest.NewDB(t), bustest.DeliverOnce())
	sent := 0
	bus.OnExternal(h.Bus.Consumer("Mail", bus.ConsumerConfig{}), func(context.Context, bus.Message[ReminderDue]) error {
		sent++
		return nil
	})
	bustest.Deliver(h, outbox.With(ReminderDue{OrderID: "7"}, outbox.DeliverAt(time.Now().Add(24*time.Hour))))
	h.Drain()
	require.Zero(t, sent)
	h.Advance(24 * time.Hour)
	h.Drain()
	require.Equal(t, 1, sent)
}

func TestOldPayloadsAreRead(t *testing.T) {
	t.Parallel()
	h := bustest.New(t, bustest.NewDB(t))
	registerTracking(h.Bus, func(string, int) {})
	stored := &bus.Envelope{Type: "order.shipped", SchemaVersion: 1, Data: json.RawMessage(`{"OrderID":"7","Kilos":0.42}`)}
	e, err := bus.Decode[OrderShipped](h.Bus, stored)
	require.NoError(t, err)
	require.Equal(t, OrderShipped{OrderID: "7", Grams: 420}, e)
}

func TestWiring(t *testing.T) {
	t.Parallel()
	db := bustest.NewDB(t)
	b := bus.New(db, bus.Config{})
	registerTracking(b, func(string, int) {}) // what your main registers
	require.NoError(t, b.Err())
}
