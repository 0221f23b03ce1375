package ops_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ops"
)

// Relays and inboxes are listed with what their instances have written; what one wrote that is gone reads as such.
func TestBrokersSayWhoIsGone(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{})
		put := func(role, name, instance string, age time.Duration) {
			f.exec("INSERT INTO bc_broker (role, name, instance, broker, state, window_size, unconfirmed, behind, seen_at) VALUES (?, ?, ?, "+
				"'nats://mq/ORDERS', 'CONNECTED', 512, 3, 7, "+f.now(-age)+")", role, name, instance)
		}
		put("RELAY", "Relay", "alive", 0)
		put("RELAY", "Relay", "dead", 10*time.Minute)
		put("INBOX", "shop", "alive", 0)
		f.exec("INSERT INTO bc_inbox (inbox, partition_name, landed) VALUES ('shop', 'orders/0', 7)")
		found, err := f.ops.Brokers(t.Context())
		require.NoError(t, err)
		require.Len(t, found.Links, 3)
		require.Equal(t, []ops.LinkState{ops.LinkConnected, ops.LinkConnected, ops.LinkGone},
			[]ops.LinkState{found.Links[0].State, found.Links[1].State, found.Links[2].State})
		require.EqualValues(t, 3, found.Links[1].Unconfirmed)
		require.Zero(t, found.Links[2].Unconfirmed, "nobody knows what the dead one had sent")
		require.Equal(t, ops.InboxRole, found.Links[0].Role)
		require.EqualValues(t, 7, found.Links[0].Lag)
		require.Len(t, found.Partitions, 1)
		require.EqualValues(t, 7, found.Partitions[0].Landed)
	})
}
