package guides_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/bustest"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/outbox"
)

func addPoints(ctx context.Context, tx bun.Tx, m bus.Message[OrderPaid]) error {
	_, err := tx.ExecContext(ctx, "UPDATE accounts SET points = points + ?", m.Payload.Cents/100)
	return err
}

func pay(ctx context.Context, db *bun.DB, ob *outbox.Outbox, orderID string) error {
	return db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		res, err := tx.ExecContext(ctx, "UPDATE orders SET status = 'PAID' WHERE id = ? AND status = 'NEW'", orderID)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return err // it is paid already: nothing to do
		}
		return ob.Save(ctx, tx, OrderPaid{OrderID: orderID, Cents: 4200})
	})
}

func bookPoints(ctx context.Context, tx bun.Tx, m bus.Message[OrderPaid]) error {
	key := "order:" + m.Payload.OrderID
	res, err := tx.ExecContext(ctx, "INSERT INTO bookings (booking_key, points) VALUES (?, ?) ON CONFLICT (booking_key) DO NOTHING",
		key, m.Payload.Cents/100)
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err != nil {
		return err
	}
	if n == 0 {
		return bus.Skip("the points of this order are booked already")
	}
	m.RecordKey(key) // the consume log shows it, and the console finds it
	return addPoints(ctx, tx, m)
}

func shop(t *testing.T) (*bun.DB, *bustest.Harness) {
	db := bustest.NewDB(t)
	exec(t, db, "CREATE TABLE orders (id TEXT PRIMARY KEY, status TEXT NOT NULL)", "INSERT INTO orders VALUES ('7', 'NEW')",
		"CREATE TABLE accounts (points INT NOT NULL)", "INSERT INTO accounts VALUES (0)",
		"CREATE TABLE bookings (booking_key TEXT PRIMARY KEY, points INT NOT NULL)")
	return db, bustest.New(t, db)
}

// A sum in an UPDATE is right although the world behaves badly, and although everything is delivered twice.
func TestPointsAreAddedOnce(t *testing.T) {
	t.Parallel()
	for _, fault := range []bustest.Fault{bustest.FailBeforeCommit, bustest.FailAfterCommit, bustest.LoseLease, bustest.Duplicate} {
		db, h := shop(t)
		bus.On(h.Bus.Consumer("Points", bus.ConsumerConfig{}), addPoints)
		h.Break(fault)
		require.NoError(t, pay(t.Context(), db, h.Outbox, "7"))
		require.Equal(t, bustest.Report{consumelog.Success: 1}, h.Drain())
		require.Equal(t, 42, number(t, db, "SELECT points FROM accounts"), "fault %v", fault)
	}
}

func TestPayingTwiceSavesOneEvent(t *testing.T) {
	t.Parallel()
	db, h := shop(t)
	h.Bus.Unconsumed("order.paid")
	for range 2 {
		require.NoError(t, pay(t.Context(), db, h.Outbox, "7"))
	}
	bustest.RequireSaved[OrderPaid](h)
	save(t, db, h.Outbox, OrderPaid{OrderID: "7", Cents: 4200}) // whoever saves it without a look at the order
	bustest.RequireSaved[OrderPaid](h)
}

// Two events about one fact, the second written by hand, are booked once.
func TestTheBusinessKeyBooksOnce(t *testing.T) {
	t.Parallel()
	db, h := shop(t)
	bus.On(h.Bus.Consumer("Points", bus.ConsumerConfig{Replayable: true}), bookPoints)
	require.NoError(t, pay(t.Context(), db, h.Outbox, "7"))
	h.Drain()
	exec(t, db, `INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload)
		VALUES ('ORDER', '7', 'order.paid', 'by-hand-1', '{"OrderID": "7", "Cents": 4200}')`)
	require.Equal(t, bustest.Report{consumelog.Success: 1, consumelog.Skipped: 1}, h.Drain())
	require.Equal(t, 42, number(t, db, "SELECT points FROM accounts"))
	require.Equal(t, 1, number(t, db, "SELECT COUNT(*) FROM bc_event_consume_log WHERE idempotency_key = 'order:7'"))
}
