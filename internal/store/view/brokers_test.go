package view_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/store/view"
)

// What instances know of brokers is listed as they have written it last, and is gone with them, or a day after.
func TestBrokersAreListed(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		ctx, brokers, list := f.t.Context(), store.NewBrokers(f.D), must[[]view.Broker](f.t)
		require.Empty(f.t, list(view.Brokers(ctx, f.Reader, 10, 100)))
		relay := store.Broker{Role: store.RoleRelay, Name: "Relay", Broker: "nats://mq/ORDERS", Window: 512, Unconfirmed: 3, Behind: -1}
		inbox := store.Broker{Role: store.RoleInbox, Name: "shop", State: store.BrokerUnknown}
		relay.Heard(nil, false)
		require.NoError(f.t, brokers.Put(ctx, f.db, "one", relay))
		relay.Heard(errors.New("nobody listens"), false)
		relay.ErrorAt = relay.ErrorAt.Add(-time.Hour)
		require.NoError(f.t, brokers.Put(ctx, f.db, "one", relay))
		require.NoError(f.t, brokers.Put(ctx, f.db, "two", inbox))
		found := list(view.Brokers(ctx, f.Reader, 10, 100))
		require.Len(f.t, found, 2)
		f.ago(0, found[0].SeenAt)
		f.ago(0, found[1].SeenAt)
		f.ago(time.Hour, found[1].ErrorAt)
		require.Equal(f.t, view.Broker{
			Role: "INBOX", Name: "shop", Instance: "two", State: "UNKNOWN", SeenAt: found[0].SeenAt, SeenFor: found[0].SeenFor,
		}, found[0])
		require.Equal(f.t, view.Broker{
			Role: "RELAY", Name: "Relay", Instance: "one", Broker: "nats://mq/ORDERS", State: "AWAY", Window: 512, Unconfirmed: 3, Behind: -1,
			Error: "nobody listens", ErrorAt: found[1].ErrorAt, SeenAt: found[1].SeenAt, SeenFor: found[1].SeenFor,
		}, found[1])
		require.Len(f.t, list(view.Brokers(ctx, f.Reader, 1, 100)), 1)

		f.exec("UPDATE bc_broker SET seen_at = "+f.D.After+" WHERE instance = 'one'", -int64(25*time.Hour/time.Microsecond))
		require.NoError(f.t, brokers.Forget(ctx, f.db, 24*time.Hour))
		require.Len(f.t, list(view.Brokers(ctx, f.Reader, 10, 100)), 1, "it has died a day ago")
		require.NoError(f.t, brokers.Remove(ctx, f.db, "one", inbox))
		require.Len(f.t, list(view.Brokers(ctx, f.Reader, 10, 100)), 1, "another instance")
		require.NoError(f.t, brokers.Remove(ctx, f.db, "two", inbox))
		require.Empty(f.t, list(view.Brokers(ctx, f.Reader, 10, 100)))
	})
}
