package monolith_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/order"
	"github.com/bluecone-go/bluecone/demo/bluecone/monolith"
	"github.com/bluecone-go/bluecone/demo/bluecone/settings"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// A broker that never takes an event of an order is no reason to refuse its payment.
func TestADeadDeliveryToAnotherConsumerKeepsNobodyFromPaying(t *testing.T) {
	t.Parallel()
	app, err := monolith.New(t.Context(), monolith.Options{
		DB: testdb.Open(t, "sqlite"), Settings: settings.Default(), Logger: slog.New(slog.DiscardHandler),
		Register: func(b *bus.Bus) error {
			bus.OnExternal(b.Consumer("Relay", bus.ConsumerConfig{}), func(context.Context, bus.Message[order.CheckoutLocked]) error {
				return bus.Permanent(errors.New("too large"))
			})
			return nil
		},
	})
	require.NoError(t, err)
	u, err := app.Orders.CreateUser(t.Context(), "", order.NewUser{WalletCents: 100})
	require.NoError(t, err)
	o, err := app.Orders.Create(t.Context(), "", order.NewOrder{UserID: u.UserID, TotalCents: 100})
	require.NoError(t, err)
	_, err = app.Publisher.RunOnce(t.Context())
	require.NoError(t, err)
	s, err := app.Stats(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(1), s.Deliveries[consumelog.Dead])
	o, err = app.Orders.Pay(t.Context(), o.OrderID, "pay-1", false)
	require.NoError(t, err)
	require.Equal(t, "PAID", o.Status)
}
