package health

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

func newBrokers(t *testing.T, db *bun.DB, log *testdb.Log) Brokers {
	t.Helper()
	return Brokers{DB: db, Rows: store.NewBrokers(dialectOf(t, db)), Logger: log.Logger(), Instance: "me"}
}

// What is known of each broker is in a row until the instance ends.
func TestBrokersAreNotedUntilTheEnd(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		var log testdb.Log
		b := newBrokers(t, db, &log)
		b.Run(nil) // nothing to read: it returns at once
		stop, over := make(chan struct{}), make(chan struct{})
		relay := func(name string) func(context.Context) store.Broker {
			return func(context.Context) store.Broker {
				return store.Broker{Role: store.RoleRelay, Name: name, Broker: "nats://host", State: store.BrokerConnected}
			}
		}
		go func() {
			defer close(over)
			b.Run(stop, relay("one"), relay("two"))
		}()
		rows := func() int { return testdb.Count(t, db, "SELECT COUNT(*) FROM bc_broker WHERE instance = 'me'") }
		testdb.Eventually(t, func() bool { return rows() == 2 }, "a row for each")
		close(stop)
		<-over
		require.Zero(t, rows())
		require.Empty(t, log.String())
	})
}

// Only what has changed is written, or what was written long ago. What a broker says is cut to what a row holds.
func TestOnlyWhatHasChangedOfABrokerIsWritten(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		var log testdb.Log
		b := newBrokers(t, db, &log)
		is, last := store.Broker{Role: store.RoleInbox, Name: "in", Broker: "nats://host", State: store.BrokerConnected}, noted{}
		written := func() bool {
			testdb.Exec(t, db, "UPDATE bc_broker SET state = 'OLD'")
			b.note(t.Context(), &last, func(context.Context) store.Broker { return is })
			return testdb.Count(t, db, "SELECT COUNT(*) FROM bc_broker WHERE state <> 'OLD'") == 1
		}
		require.True(t, written())
		require.False(t, written(), "nothing has changed")
		is.Heard(errors.New(strings.Repeat("x", 10_000)), false)
		require.True(t, written())
		require.False(t, written(), "the error is the same, also when it is cut")
		last.at = time.Now().Add(-store.BrokerBeat)
		require.True(t, written(), "that was long ago")

		testdb.Exec(t, db, "DROP TABLE bc_broker")
		is.Window++
		b.note(t.Context(), &last, func(context.Context) store.Broker { return is })
		require.Contains(t, log.String(), "it is tried again")
		require.NotEqual(t, is.Window, last.Window, "it is to be written")
	})
}
