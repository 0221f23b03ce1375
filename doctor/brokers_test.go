package doctor_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/doctor"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// stream is a broker with settings.
type stream struct {
	settings []string
	err      error
}

func (stream) Broker() string                              { return "nats://mq/ORDERS" }
func (s stream) Examine(context.Context) ([]string, error) { return s.settings, s.err }

// A broker that a running instance does not reach, or that loses what it has confirmed, is found.
func TestBrokersThatLoseOrAreAwayAreFound(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		now := map[string]string{
			"mysql": "UTC_TIMESTAMP(6)", "pg": "now()", "sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')",
		}[db.Dialect().Name().String()]
		const row = "INSERT INTO bc_broker (role, name, instance, broker, state, last_error, seen_at) VALUES "
		for _, s := range []string{
			row + "('RELAY', 'Relay', 'one', 'nats://mq/ORDERS', 'CONNECTED', 'it was away', " + now + ")",
			row + "('RELAY', 'Relay', 'dead', 'nats://mq/ORDERS', 'AWAY', 'nobody listens', '2026-01-01 00:00:00')",
		} {
			_, err := db.ExecContext(t.Context(), s)
			require.NoError(t, err)
		}
		require.Equal(t, doctor.OK, examine(t, db, doctor.Config{Brokers: []doctor.Broker{stream{}}})["brokers"].Level)
		found := examine(t, db, doctor.Config{Brokers: []doctor.Broker{stream{settings: []string{"it is in memory"}}}})["brokers"]
		require.Equal(t, []string{"broker_setting", "nats://mq/ORDERS: it is in memory"}, []string{found.Rule, found.Says})
		found = examine(t, db, doctor.Config{Brokers: []doctor.Broker{stream{err: errors.New("no permission")}}})["brokers"]
		require.Equal(t, []string{"broker_unexamined", "nats://mq/ORDERS could not be examined: no permission"}, []string{found.Rule, found.Says})
		_, err := db.ExecContext(t.Context(), row+"('INBOX', 'shop', 'one', 'nats://mq/ORDERS', 'REFUSES', 'wrong password', "+now+")")
		require.NoError(t, err)
		found = examine(t, db, doctor.Config{})["brokers"]
		require.Equal(t, doctor.Warn, found.Level)
		require.Equal(t, "shop in one does not get through to nats://mq/ORDERS: wrong password", found.Says)
	})
}
