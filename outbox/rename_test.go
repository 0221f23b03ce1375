package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// wallet is the consumer as the newer release has it: a new name, and the key of old.
func wallet() bus.ConsumerConfig { return bus.ConsumerConfig{Key: "WalletConsumer"} }

// killedBeforeSettling leaves delivered events as a process leaves them that is killed after its handlers'
// COMMIT: leased, for a time that is over.
func (f *fixture) killedBeforeSettling(expiries int) {
	f.t.Helper()
	f.exec("UPDATE bc_outbox_event SET status = 'DISPATCHING', sent_at = NULL, locked_by = 'killed', retry_count = ? "+
		"WHERE status = 'SENT'", expiries)
	f.hurry()
}

func (f *fixture) settleAll() {
	f.t.Helper()
	for range 4 {
		f.once()
		f.hurry()
	}
}

// A handler that has had its effect under the consumer's former name has it once, however the event
// comes to the consumer again.
func TestRenamedConsumerNeverRunsTwice(t *testing.T) {
	t.Parallel()
	ways := map[string]func(t *testing.T, old, fresh *fixture){
		"claimed again": func(_ *testing.T, old, fresh *fixture) {
			old.killedBeforeSettling(0)
			fresh.counting("Wallet", wallet())
			fresh.settleAll()
		},
		"through the log": func(t *testing.T, old, fresh *fixture) {
			old.killedBeforeSettling(0)
			fresh.counting("Wallet", wallet())
			fresh.once() // registered
			require.NoError(t, fresh.ob.Pause(t.Context(), outbox.Operation{Actor: "ops", Reason: "test"}, "Wallet", time.Hour))
			old.killedBeforeSettling(0)
			fresh.settleAll()
			require.NoError(t, fresh.ob.Resume(t.Context(), outbox.Operation{Actor: "ops", Reason: "test"}, "Wallet"))
			fresh.settleAll()
		},
		"after three expiries": func(_ *testing.T, old, fresh *fixture) {
			old.killedBeforeSettling(3)
			fresh.counting("Wallet", wallet())
			fresh.settleAll()
		},
	}
	for name, takeOver := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db *bun.DB) {
				old, fresh := newFixture(t, db), newFixture(t, db)
				old.effects()
				old.counting("WalletConsumer", bus.ConsumerConfig{})
				old.save(orderPaid{OrderID: "1"})
				old.once()
				require.Equal(t, 1, old.count("SELECT COUNT(*) FROM effect"))
				takeOver(t, old, fresh)
				require.Equal(t, 1, fresh.count("SELECT COUNT(*) FROM effect"))
				require.Equal(t, map[consumelog.Status]int{consumelog.Success: 1}, fresh.deliveries())
				require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 1}, fresh.statuses())
			})
		})
	}
}

// In a rolling rename the old release takes over what the new one has delivered.
func TestRollingRenameNeverRunsTwice(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		old, fresh := newFixture(t, db), newFixture(t, db)
		fresh.effects()
		old.counting("WalletConsumer", bus.ConsumerConfig{})
		fresh.counting("Wallet", wallet())
		old.once()
		fresh.save(orderPaid{OrderID: "1"})
		fresh.once()
		fresh.killedBeforeSettling(0)
		old.settleAll()
		require.Equal(t, 1, fresh.count("SELECT COUNT(*) FROM effect"))
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 1}, fresh.statuses())
	})
}

// A keyed event whose row went when it was SENT is saved again after the rename.
func TestRenamedConsumerNeverRunsTwiceForAKeyedEventSavedAgain(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		old, fresh := newFixtureOf(t, db, outbox.Config{DeleteSent: true}), newFixtureOf(t, db, outbox.Config{DeleteSent: true})
		old.effects()
		old.countingKeyed("WalletConsumer", bus.ConsumerConfig{})
		old.save(keyedPaid{orderPaid{OrderID: "1"}})
		old.once()
		require.Equal(t, 0, old.count("SELECT COUNT(*) FROM bc_outbox_event"))
		fresh.countingKeyed("Wallet", wallet())
		fresh.save(keyedPaid{orderPaid{OrderID: "1"}})
		fresh.settleAll()
		require.Equal(t, 1, fresh.count("SELECT COUNT(*) FROM effect"))
	})
}

func (f *fixture) countingKeyed(name string, cfg bus.ConsumerConfig) {
	bus.On(f.bus.Consumer(name, cfg), func(ctx context.Context, tx bun.Tx, m bus.Message[keyedPaid]) error {
		return effect(ctx, tx, m, m.Payload.Seq)
	})
}

// What a rename does not change: the key for effects outside the database, and that operators find the consumer,
// by either name.
func TestRenamedConsumerKeepsItsKey(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		var key, name string
		bus.On(f.bus.Consumer("Wallet", wallet()), func(_ context.Context, _ bun.Tx, m bus.Message[orderPaid]) error {
			key, name = m.Key(), m.Consumer
			return nil
		})
		f.save(orderPaid{OrderID: "1"})
		f.once()
		var id string
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT event_id FROM bc_event_consume_log "+
			"WHERE consumer_name = 'WalletConsumer'").Scan(&id))
		require.Equal(t, "WalletConsumer:"+id, key)
		require.Equal(t, "Wallet", name)
		op := outbox.Operation{Actor: "ops", Reason: "test"}
		for _, is := range []string{"Wallet", "WalletConsumer"} {
			require.NoError(t, f.ob.Pause(t.Context(), op, is, time.Hour))
			require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_consumer WHERE name = 'WalletConsumer' AND display_name = 'Wallet' "+
				"AND paused_until IS NOT NULL"))
			require.NoError(t, f.ob.Resume(t.Context(), op, is))
		}
		f.save(orderPaid{OrderID: "2"})
		require.NoError(t, f.ob.Pause(t.Context(), op, "Wallet", time.Hour))
		f.once()
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT event_id FROM bc_event_consume_log WHERE status = 'PENDING'").Scan(&id))
		require.NoError(t, f.ob.Skip(t.Context(), op, id, "Wallet"))
		require.NoError(t, f.ob.Retire(t.Context(), op, "Wallet"))
		require.Equal(t, 0, f.count("SELECT COUNT(*) FROM bc_consumer"))
	})
}
