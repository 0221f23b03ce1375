package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/relay"
	"github.com/bluecone-go/bluecone/relay/inbox"
)

// lagging is a subscriber that knows how far it is behind.
type lagging struct {
	script
	lag int64
	err error
}

func (l lagging) Lag(context.Context) (int64, error) { return l.lag, l.err }
func (lagging) Broker() string                       { return "nats://mq:4222/ORDERS" }
func (lagging) Connect(context.Context) error        { return nil }
func (lagging) Close() error                         { return nil }

// link waits until an inbox has written so much.
func link(t *testing.T, o *ops.Ops, state ops.LinkState, lag int64) ops.BrokerLink {
	t.Helper()
	for deadline := time.Now().Add(testdb.Patience()); ; <-time.After(50 * time.Millisecond) {
		found, err := o.Brokers(t.Context())
		require.NoError(t, err)
		if len(found.Links) > 0 && found.Links[0].State == state && found.Links[0].Lag == lag {
			return found.Links[0]
		}
		require.True(t, time.Now().Before(deadline), "they are %+v", found.Links)
	}
}

// Operators see what a running inbox knows of its broker, and nothing of one that has ended.
func TestAnInboxTellsWhatItKnowsOfItsBroker(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		s := newService(t, db)
		o, err := ops.New(db, s.Outbox, ops.Config{})
		require.NoError(t, err)
		for _, c := range []struct {
			lagging
			state ops.LinkState
			lag   int64
			says  string
		}{
			{lagging{lag: 17}, ops.LinkConnected, 17, ""},
			{lagging{lag: -1}, ops.LinkConnected, -1, ""},
			{lagging{err: errors.New("nobody listens")}, ops.LinkAway, -1, "nobody listens"},
			{lagging{err: fmt.Errorf("%w: wrong password", relay.ErrRefused)}, ops.LinkRefused, -1, "wrong password"},
		} {
			c.script = func(context.Context, relay.Sink) error {
				is := link(t, o, c.state, c.lag)
				require.Equal(t, ops.InboxRole, is.Role)
				require.Equal(t, "shop", is.Name)
				require.Equal(t, s.Outbox.Instance(), is.Instance)
				require.Equal(t, "nats://mq:4222/ORDERS", is.Broker)
				require.Contains(t, is.LastError, c.says)
				return nil
			}
			in, err := inbox.New(s.Outbox, inbox.Config{Source: "shop"}, c)
			require.NoError(t, err)
			require.NoError(t, in.Run(t.Context()))
			var left int
			require.NoError(t, db.NewRaw("SELECT COUNT(*) FROM bc_broker").Scan(t.Context(), &left))
			require.Zero(t, left, "it has ended")
		}
	})
}
