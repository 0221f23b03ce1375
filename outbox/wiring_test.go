package outbox_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// hiddenPaid is what somebody writes who keeps fields to the module.
type hiddenPaid struct {
	orderID string
	cents   int64
}

func (hiddenPaid) EventType() string              { return "order.paid" }
func (e hiddenPaid) Aggregate() (kind, id string) { return "ORDER", e.orderID }

// cents hides what it is worth, and weighed has it in it.
type (
	cents   struct{ of int }
	weighed struct {
		OrderID string `json:"orderID"`
		Price   cents  `json:"price"`
	}
)

func (weighed) EventType() string              { return "order.weighed" }
func (e weighed) Aggregate() (kind, id string) { return "ORDER", e.OrderID }

// shopClosed is a fact without data.
type shopClosed struct{}

func (shopClosed) EventType() string            { return "shop.closed" }
func (shopClosed) Aggregate() (kind, id string) { return "SHOP", "1" }

// optionalPaid may have nothing to say.
type optionalPaid struct {
	Note  string `json:"note,omitempty"`
	cache string //nolint:unused // it is not part of the fact
}

func (optionalPaid) EventType() string            { return "order.optional" }
func (optionalPaid) Aggregate() (kind, id string) { return "ORDER", "1" }

// An event that JSON would make {} of, whatever it holds, is refused with the right way; others that are {} are not.
func TestEventWithOnlyUnexportedFieldsIsRefused(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		for _, e := range []bus.Event{hiddenPaid{"7", 4200}, &hiddenPaid{"7", 4200}, outbox.With(hiddenPaid{"7", 4200}, outbox.Tenant(1, 0))} {
			err := f.trySave(e)
			require.ErrorIs(t, err, outbox.ErrInvalidEvent)
			require.ErrorContains(t, err, "outbox_test.hiddenPaid has only unexported fields (orderID, cents), so its payload would be {}: "+
				"export what is to be saved, such as OrderID string `json:\"orderID\"`")
		}
		err := f.trySave(weighed{"7", cents{4200}})
		require.ErrorIs(t, err, outbox.ErrInvalidEvent)
		require.ErrorContains(t, err, "outbox_test.weighed: the field Price is of type outbox_test.cents, which has only unexported fields "+
			"(of), so it would be saved as {}")
		require.Zero(t, f.count("SELECT COUNT(*) FROM bc_outbox_event"))
		f.save(shopClosed{}, optionalPaid{})
		require.Equal(t, 2, f.count("SELECT COUNT(*) FROM bc_outbox_event"))
	})
}

// A delivery is not skipped without a word: it is DEAD, and says what to write.
func TestSkipWithoutAReasonIsDead(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		bus.On(f.bus.Consumer("Careless", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[orderPaid]) error {
			return bus.Skip([]string{"", " \n", "\x00"}[m.Payload.Seq])
		})
		f.save(orderPaid{OrderID: "1"}, orderPaid{OrderID: "2", Seq: 1}, orderPaid{OrderID: "3", Seq: 2})
		f.once()
		require.Equal(t, map[consumelog.Status]int{consumelog.Dead: 3}, f.deliveries())
		require.Equal(t, 3, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE error_message LIKE 'bus.Skip needs a reason%'"))
	})
}

// A bus of another database would leave every event parked: its consumers are asked where the event is not.
func TestBusOfAnotherDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f, other := newFixture(t, db), testdb.Open(t, "sqlite")
		b := bus.New(other, bus.Config{Logger: logger()})
		bus.On(b.Consumer("Wallet", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[orderPaid]) error { return nil })
		_, err := outbox.NewPublisher(f.ob, b, outbox.PublisherConfig{})
		require.ErrorContains(t, err, "the bus and the outbox work on different pools: give both the same *bun.DB, outbox.New(db, "+
			"outbox.Config{}) and bus.New(db, bus.Config{})")

		same := bus.New(db.WithQueryHook(nothing{}), bus.Config{Logger: logger()})
		_, err = outbox.NewPublisher(f.ob, same, outbox.PublisherConfig{})
		require.NoError(t, err, "a copy with a hook of its own is on the same pool")
	})
}

type nothing struct{}

func (nothing) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }
func (nothing) AfterQuery(context.Context, *bun.QueryEvent)                        {}

// Nothing panics while a program is put together: whoever starts it reads everything that is wrong at once.
func TestNewPublisherReturnsAllMistakesAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testdb.Open(t, "sqlite"))
	b := bus.New(testdb.Open(t, "sqlite"), bus.Config{Logger: logger()})
	bus.On(b.Consumer("Wallet Consumer", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[orderPaid]) error { return nil })
	bus.On(b.Consumer("Slow", bus.ConsumerConfig{Concurrency: -1}), func(context.Context, bun.Tx, bus.Message[orderPaid]) error { return nil })
	points := b.Consumer("Points", bus.ConsumerConfig{})
	bus.On(points, func(context.Context, bun.Tx, bus.Message[hiddenPaid]) error { return nil })
	bus.OnBatch[orderPaid](points, nil)
	bus.OnExternal(points, func(context.Context, bus.Message[*orderPaid]) error { return nil })
	b.Consumer("points", bus.ConsumerConfig{})
	b.Consumer("Idle", bus.ConsumerConfig{})
	b.Upcast("order.priced", 1, func(p json.RawMessage) (json.RawMessage, error) { return p, nil })
	b.Unconsumed("Order Closed")
	_, err := outbox.NewPublisher(f.ob, b, outbox.PublisherConfig{BatchSize: -1})
	for _, says := range []string{
		"9 mistakes in the wiring:", `bus.Consumer: name "Wallet Consumer" is not a valid name`,
		`bus.Consumer "Slow": ConsumerConfig.Concurrency is -1`,
		`bus.On of consumer "Points": outbox_test.hiddenPaid has only unexported fields`, `bus.OnBatch of consumer "Points": the handler is nil`,
		`bus.OnExternal of consumer "Points": the event type *outbox_test.orderPaid must be a value type`,
		`bus.Consumer "points": its name "points" collides with the name "Points" of consumer "Points"`, `bus.Consumer "Idle" has no handler`,
		`bus.Upcast "order.priced" from version 1: no consumer has a handler for that type`,
		`bus.Unconsumed: event type "Order Closed" is not a valid name`,
		"the bus and the outbox work on different pools", "outbox.PublisherConfig.BatchSize is -1",
	} {
		require.ErrorContains(t, err, says)
	}
	require.Len(t, strings.Split(err.Error(), "\n"), 12, "one mistake a line: %v", err)
	_, err = outbox.NewPublisher(f.ob, bus.New(nil, bus.Config{}), outbox.PublisherConfig{})
	require.EqualError(t, err, "outbox.NewPublisher: bus.New: db is nil: give it the database of the outbox, bus.New(db, bus.Config{})")
}

// What is registered while a publisher runs ends it, as nobody would run it.
func TestLateRegistrationEndsThePublisher(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testdb.Open(t, "sqlite"))
	f.effects()
	f.counting("Early", bus.ConsumerConfig{})
	f.save(orderPaid{OrderID: "1"})
	stop, done := f.begin(outbox.PublisherConfig{Poll: 10 * time.Millisecond})
	defer stop()
	f.eventually(func() bool { return f.statuses()[outbox.StatusSent] == 1 }, "the publisher runs")
	f.counting("Late", bus.ConsumerConfig{})
	select {
	case err := <-done:
		require.ErrorContains(t, err, `bus.Consumer "Late" was registered after a publisher had started`)
	case <-time.After(5 * time.Minute):
		t.Fatal("the publisher runs on")
	}
	_, err := outbox.NewPublisher(f.ob, f.bus, outbox.PublisherConfig{})
	require.ErrorContains(t, err, `bus.On of consumer "Late" was registered after a publisher had started`)
}
