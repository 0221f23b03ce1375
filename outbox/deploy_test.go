package outbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// An instance of the old release gets an event first; the consumer of the new release still gets it.
func TestRollingDeployLeavesConsumersOfOtherInstancesTheirDeliveries(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		old, fresh := newFixture(t, db), newFixture(t, db)
		old.effects()
		old.counting("Wallet", bus.ConsumerConfig{})
		fresh.counting("Wallet", bus.ConsumerConfig{})
		fresh.counting("Points", bus.ConsumerConfig{}) // new in this release
		fresh.once()                                   // it has run once, so the deployment knows it
		old.save(orderPaid{OrderID: "1"})
		old.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusFailed: 1}, old.statuses())
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 1, consumelog.Pending: 1}, old.deliveries())
		fresh.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 1}, old.statuses())
		require.Equal(t, 1, old.count("SELECT COUNT(*) FROM effect WHERE consumer = 'Points'"))
		require.Equal(t, 2, old.count("SELECT COUNT(*) FROM effect"))

		require.NoError(t, old.ob.Retire(t.Context(), outbox.Operation{Actor: "ops", Reason: "gone"}, "Points"))
		old.save(orderPaid{OrderID: "2"})
		old.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 2}, old.statuses(), "nobody waits for a retired consumer")
	})
}

// counterOfNewRelease takes a type more than the old release's consumer of the same name.
func (f *fixture) counterOfNewRelease(fail *atomic.Bool) {
	c := f.bus.Consumer("Counter", bus.ConsumerConfig{})
	bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
		return effect(ctx, tx, m, m.Payload.Seq)
	})
	bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[renamed]) error {
		if fail.Load() {
			return errHandler
		}
		return effect(ctx, tx, m, 1)
	})
}

// A consumer that takes a type more in the new release gets events of that type, even if an instance
// of the old release publishes them, and even after that one has announced itself again.
func TestRollingDeployOfAConsumerThatTakesMore(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		old, fresh := newFixture(t, db), newFixture(t, db)
		old.effects()
		old.counting("Counter", bus.ConsumerConfig{})
		for _, f := range []*fixture{old, fresh} {
			bus.On(f.bus.Consumer("Other", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[renamed]) error { return nil })
		}
		fresh.counterOfNewRelease(&atomic.Bool{})
		fresh.once()
		old.once()
		old.save(keyless("1"))
		old.once()
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 1, consumelog.Pending: 1}, old.deliveries())
		fresh.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 1}, old.statuses())
		require.Equal(t, 1, old.count("SELECT COUNT(*) FROM effect WHERE consumer = 'Counter'"))
	})
}

// An event that only the new release takes keeps its place before later ones, on instances of the
// old release too.
func TestRollingDeployKeepsTheOrderOfTypesThatAreNew(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		old, fresh := newFixture(t, db), newFixture(t, db)
		old.effects()
		old.counting("Counter", bus.ConsumerConfig{})
		var fail atomic.Bool
		fail.Store(true)
		fresh.counterOfNewRelease(&fail)
		fresh.save(keyless("1"), orderPaid{OrderID: "1", Seq: 2})
		fresh.once()
		require.Equal(t, map[consumelog.Status]int{consumelog.Failed: 1, consumelog.Pending: 1}, fresh.deliveries())
		old.hurry()
		old.once()
		require.Equal(t, 0, old.count("SELECT COUNT(*) FROM effect"), "the first has not had its effect yet")
		fail.Store(false)
		for range 3 {
			fresh.hurry()
			fresh.once()
		}
		require.Equal(t, []string{"1", "2"}, fresh.sequence("1"))
	})
}

type renamed struct {
	OrderID string `json:"orderId"`
}

func keyless(id string) renamed                { return renamed{OrderID: id} }
func (renamed) EventType() string              { return "order.renamed" }
func (e renamed) Aggregate() (kind, id string) { return "ORDER", e.OrderID }

// sequence is the order in which an aggregate's effects happened.
func (f *fixture) sequence(aggregate string) []string {
	f.t.Helper()
	var out []string
	require.NoError(f.t, f.db.NewRaw("SELECT seq FROM effect WHERE aggregate = ? ORDER BY id", aggregate).Scan(context.Background(), &out))
	return out
}

func TestUnconsumedTypesAreSentAtOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.bus.Unconsumed("order.renamed")
		f.save(keyless("1"))
		f.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 1}, f.statuses())
	})
}

// A renamed consumer does nothing twice, and finishes what its old name left.
func TestRenamedConsumerGoesOnWhereItsOldNameStopped(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		old := newFixture(t, db)
		old.effects()
		a := answer(nil)
		old.failing("WalletConsumer", bus.ConsumerConfig{}, a)
		old.save(orderPaid{OrderID: "done"})
		old.once()
		a.Store(&errHandler)
		old.save(orderPaid{OrderID: "waits"})
		old.once()
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 1, consumelog.Failed: 1}, old.deliveries())

		fresh := newFixture(t, db)
		fresh.counting("Wallet", bus.ConsumerConfig{Key: "WalletConsumer"})
		fresh.exec("UPDATE bc_outbox_event SET status = 'NEW' WHERE aggregate_id = 'done'") // delivered again, by an operator say
		fresh.hurry()
		fresh.once()
		require.Equal(t, 1, fresh.count("SELECT COUNT(*) FROM effect WHERE aggregate = 'done'"))
		require.Equal(t, 1, fresh.count("SELECT COUNT(*) FROM effect WHERE aggregate = 'waits'"))
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 2}, fresh.statuses())
	})
}

// priced has changed its shape twice: cents became money, and the currency came later.
type priced struct {
	Money    int64  `json:"money"`
	Currency string `json:"currency"`
}

func (priced) EventType() string            { return "order.priced" }
func (priced) Aggregate() (kind, id string) { return "ORDER", "1" }
func (priced) SchemaVersion() int           { return 3 }

func TestOldPayloadsAreUpcast(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		var mu sync.Mutex
		var got []priced
		f.bus.Upcast("order.priced", 1, func(p json.RawMessage) (json.RawMessage, error) {
			return json.RawMessage(strings.Replace(string(p), `"cents"`, `"money"`, 1)), nil
		})
		f.bus.Upcast("order.priced", 2, func(p json.RawMessage) (json.RawMessage, error) {
			if !strings.Contains(string(p), "money") {
				return nil, errors.New("no money")
			}
			return json.RawMessage(strings.Replace(string(p), "}", `,"currency":"CNY"}`, 1)), nil
		})
		bus.On(f.bus.Consumer("Reader", bus.ConsumerConfig{DeadPolicy: bus.Continue}),
			func(_ context.Context, _ bun.Tx, m bus.Message[priced]) error {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, m.Payload)
				return nil
			})
		insert := func(id, payload string, version int) {
			f.exec("INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, schema_version) "+
				"VALUES ('ORDER', ?, 'order.priced', ?, ?, ?)", id, id, payload, version)
		}
		insert("v1", `{"cents": 500}`, 1)
		insert("v2", `{"money": 600}`, 2)
		insert("v3", `{"money": 700, "currency": "EUR"}`, 3)
		insert("bad", `{"gold": 1}`, 1)
		insert("future", `{}`, 4)
		f.once()
		require.ElementsMatch(t, []priced{{500, "CNY"}, {600, "CNY"}, {700, "EUR"}}, got)
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE event_id = 'bad' AND status = 'DEAD' "+
			"AND error_message LIKE '%no money%'"))
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE event_id = 'future' AND status = 'PENDING' "+
			"AND attempts = 0"), "it waits for who knows it")
	})
}
