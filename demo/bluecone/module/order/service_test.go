package order_test

import (
	"context"
	"database/sql/driver"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/dburl"
	"github.com/bluecone-go/bluecone/demo/bluecone/database"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/order"
	"github.com/bluecone-go/bluecone/outbox"
)

// A database that is away while a payment is recorded is no reason to refuse it: the callback may come again.
func TestLostConnectionIsNoRefusal(t *testing.T) {
	t.Parallel()
	db, err := dburl.Open(t.Context(), "sqlite://"+filepath.Join(t.TempDir(), "demo.db"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	require.NoError(t, database.Up(t.Context(), db))
	ob, err := outbox.New(db, outbox.Config{})
	require.NoError(t, err)
	_, err = db.ExecContext(t.Context(), "INSERT INTO demo_order (id, user_id, status, total_cents, wallet_cents, points, coupon_id, "+
		"coupon_cents, payable_cents, earned, refund_id) VALUES ('o', 'u', 'WAIT_PAY', 1, 0, 0, '', 0, 1, 0, '')")
	require.NoError(t, err)
	var failure error
	orders, err := order.New(db, ob, order.Assets{
		FreezeFailed:  func(context.Context, string) (bool, error) { return false, nil },
		RecordPayment: func(context.Context, bun.Tx, string, string) error { return failure },
	})
	require.NoError(t, err)
	var refusal *order.Error

	failure = driver.ErrBadConn
	_, err = orders.Pay(t.Context(), "o", "p", false)
	require.ErrorIs(t, err, driver.ErrBadConn)
	require.NotErrorAs(t, err, &refusal)

	failure = order.ErrPayNoUsed
	_, err = orders.Pay(t.Context(), "o", "p", false)
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, "PAY_NO_USED", refusal.Code)

	failure = nil
	o, err := orders.Pay(t.Context(), "o", "p", false)
	require.NoError(t, err)
	require.Equal(t, order.StPaid, o.Status)
}
