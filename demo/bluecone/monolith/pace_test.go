package monolith

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/coupon"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/order"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/points"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/wallet"
	"github.com/bluecone-go/bluecone/demo/bluecone/settings"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ops"
)

// saveOrders saves the events of so many orders, which nobody delivers.
func saveOrders(t *testing.T, a *App, n int) {
	t.Helper()
	events := make([]bus.Event, n)
	for i := range events {
		events[i] = order.CheckoutLocked{OrderID: order.ID(fmt.Sprintf("%d-of-%d", i, n)), UserID: "7", TotalCents: 100}
	}
	require.NoError(t, a.DB.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error { return a.Outbox.Save(ctx, tx, events...) }))
}

func TestTheBusLagsWhenMoreIsPendingThanItDeliversInSeconds(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		a, err := New(t.Context(), Options{DB: db, Settings: settings.Default(), Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		lags := func() bool {
			lagging, err := a.Pace.measure(t.Context())
			require.NoError(t, err)
			return lagging
		}
		runOnce := func() {
			_, err := a.Publisher.RunOnce(t.Context())
			require.NoError(t, err)
		}
		runOnce() // announces the consumers
		by := ops.Operation{Actor: "anna", Reason: "the accounts are being moved"}
		for _, c := range []string{coupon.Consumer, wallet.Consumer, points.Consumer} {
			require.NoError(t, a.Ops.Pause(t.Context(), by, c, 0))
		}
		saveOrders(t, a, mostPending)
		require.False(t, lags())
		saveOrders(t, a, 1)
		require.True(t, lags(), "nothing waits for the paused consumers yet")

		runOnce()
		b, err := a.Outbox.Backlog(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, mostPending+1, b.Pending)
		testdb.Eventually(t, func() bool { return !lags() }, "what waits for paused consumers slows no customer down")
	})
}

func TestAConsumerIsHeldUpWhenDeliveriesWaitForItInVain(t *testing.T) {
	t.Parallel()
	some := ops.Count{Count: 1}
	for _, state := range []ops.State{ops.Running, ops.Paused, ops.CircuitOpen, ops.Unregistered} {
		require.Equal(t, state != ops.Running, isHeldUp(ops.Consumer{State: state, Waiting: some}), state)
		require.Equal(t, state != ops.Running, isHeldUp(ops.Consumer{State: state, Failed: some}), state)
		require.False(t, isHeldUp(ops.Consumer{State: state, Dead: some}), state)
	}
}

func TestAnOrderWaitsForASecondAtMost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p Pace
		took := func(ctx context.Context) time.Duration {
			began := time.Now()
			p.Wait(ctx)
			return time.Since(began)
		}
		require.Zero(t, took(t.Context()), "the bus keeps up")

		p.lagging.Store(true)
		require.Equal(t, longestWait, took(t.Context()))

		time.AfterFunc(longestWait/2, func() { p.lagging.Store(false) })
		require.Less(t, took(t.Context()), longestWait, "the bus has caught up")

		p.lagging.Store(true)
		gone, cancel := context.WithTimeout(t.Context(), longestWait/4)
		defer cancel()
		require.Equal(t, longestWait/4, took(gone), "the customer has gone")
	})
}
