package bus_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

type paid struct{ ID string }

func (paid) EventType() string            { return "order.paid" }
func (paid) Aggregate() (kind, id string) { return "ORDER", "1" }

type badName struct{}

func (badName) EventType() string            { return "Order Paid" }
func (badName) Aggregate() (kind, id string) { return "ORDER", "1" }

type noJSON struct{ C chan int }

func (noJSON) EventType() string            { return "order.closed" }
func (noJSON) Aggregate() (kind, id string) { return "ORDER", "1" }

type byPointer struct{}

func (*byPointer) EventType() string            { return "order.paid" }
func (*byPointer) Aggregate() (kind, id string) { return "ORDER", "1" }

func handle[E bus.Event](context.Context, bun.Tx, bus.Message[E]) error { return nil }

type hiddenOnly struct{ orderID string } //nolint:unused // that it is not encoded is the point

func (hiddenOnly) EventType() string            { return "order.hidden" }
func (hiddenOnly) Aggregate() (kind, id string) { return "ORDER", "1" }

type paidTwo struct{ ID string }

func (paidTwo) EventType() string            { return "order.paid" }
func (paidTwo) Aggregate() (kind, id string) { return "ORDER", "1" }
func (paidTwo) SchemaVersion() int           { return 2 }

func step(p json.RawMessage) (json.RawMessage, error) { return p, nil }

// Wiring mistakes are collected, with the names in the text, and an example where the right way is not plain.
func TestWiringMistakesAreCollectedWithTheirNames(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "sqlite")
	for says, fn := range map[string]func(b *bus.Bus){
		"name is empty":                    func(b *bus.Bus) { b.Consumer("", bus.ConsumerConfig{}) },
		`"Wallet Consumer" is not a valid`: func(b *bus.Bus) { b.Consumer("Wallet Consumer", bus.ConsumerConfig{}) },
		`"Wallet " is not a valid name`:    func(b *bus.Bus) { b.Consumer("Wallet ", bus.ConsumerConfig{}) },
		"has 129 bytes, the limit is 128":  func(b *bus.Bus) { b.Consumer(strings.Repeat("x", 129), bus.ConsumerConfig{}) },
		`its name "Wallet" collides with the name "Wallet" of consumer "Wallet"`: func(b *bus.Bus) {
			b.Consumer("Wallet", bus.ConsumerConfig{})
			b.Consumer("Wallet", bus.ConsumerConfig{})
		},
		`its name "wallet" collides with the name "Wallet"`: func(b *bus.Bus) {
			b.Consumer("Wallet", bus.ConsumerConfig{})
			b.Consumer("wallet", bus.ConsumerConfig{})
		},
		`its name "OLD" collides with the Key "Old" of consumer "New"`: func(b *bus.Bus) {
			b.Consumer("New", bus.ConsumerConfig{Key: "Old"})
			b.Consumer("OLD", bus.ConsumerConfig{})
		},
		`its Key "old" collides with the name "Old" of consumer "Old"`: func(b *bus.Bus) {
			b.Consumer("Old", bus.ConsumerConfig{Key: "Oldest"})
			b.Consumer("New", bus.ConsumerConfig{Key: "old"})
		},
		`its Key "One" collides with the Key "One" of consumer "First"`: func(b *bus.Bus) {
			b.Consumer("First", bus.ConsumerConfig{Key: "One"})
			b.Consumer("Second", bus.ConsumerConfig{Key: "One"})
		},
		"Concurrency is -1":              func(b *bus.Bus) { b.Consumer("A", bus.ConsumerConfig{Concurrency: -1}) },
		"Batch is 501: the limit is 500": func(b *bus.Bus) { b.Consumer("A", bus.ConsumerConfig{Batch: 501}) },
		"Timeout is -1s":                 func(b *bus.Bus) { b.Consumer("A", bus.ConsumerConfig{Timeout: -time.Second}) },
		"which is in the future: it must be a time in the past, or bus.Beginning()": func(b *bus.Bus) {
			b.Consumer("A", bus.ConsumerConfig{StartFrom: time.Now().Add(time.Hour)})
		},
		"DeadPolicy is 7":          func(b *bus.Bus) { b.Consumer("A", bus.ConsumerConfig{DeadPolicy: 7}) },
		`ConsumerConfig.Key "a b"`: func(b *bus.Bus) { b.Consumer("A", bus.ConsumerConfig{Key: "a b"}) },
		`bus.On of consumer "A": the consumer has two handlers for order.paid`: func(b *bus.Bus) {
			c := b.Consumer("A", bus.ConsumerConfig{})
			bus.On(c, handle[paid])
			bus.On(c, handle[paid])
		},
		`bus.OnSQL of consumer "A": the consumer has two handlers for order.paid, the other by bus.On:`: func(b *bus.Bus) {
			c := b.Consumer("A", bus.ConsumerConfig{})
			bus.On(c, handle[paid])
			bus.OnSQL(c, func(context.Context, bus.Tx, bus.Message[paid]) error { return nil })
		},
		`bus.On of consumer "A": the consumer has two handlers for order.paid, the other by bus.OnSQLBatch:`: func(b *bus.Bus) {
			c := b.Consumer("A", bus.ConsumerConfig{})
			bus.OnSQLBatch(c, func(context.Context, bus.Tx, []bus.Message[paid]) error { return nil })
			bus.On(c, handle[paid])
		},
		"ConsumerConfig.Backoff(3) is -1s: it must not be negative; 0 means at once": func(b *bus.Bus) {
			b.Consumer("A", bus.ConsumerConfig{Backoff: func(n int) time.Duration { return time.Duration(2-n) * time.Second }})
		},
		"ConsumerConfig.Backoff(40) panicked: runtime error": func(b *bus.Bus) {
			b.Consumer("A", bus.ConsumerConfig{MaxAttempts: 40, Backoff: func(n int) time.Duration { return make([]time.Duration, 40)[n] }})
		},
		"bus.Use: the middleware is nil": func(b *bus.Bus) { b.Use(nil) },
		"the handler is nil": func(b *bus.Bus) {
			bus.On[paid](b.Consumer("A", bus.ConsumerConfig{}), nil)
		},
		"*bus_test.byPointer must be a valu": func(b *bus.Bus) {
			bus.On(b.Consumer("A", bus.ConsumerConfig{}), handle[*byPointer])
		},
		"bus.Event must be a value type": func(b *bus.Bus) {
			bus.On(b.Consumer("A", bus.ConsumerConfig{}), handle[bus.Event])
		},
		`"Order Paid" is not a valid name`: func(b *bus.Bus) {
			bus.On(b.Consumer("A", bus.ConsumerConfig{}), handle[badName])
		},
		"noJSON cannot be encoded as JSON": func(b *bus.Bus) {
			bus.On(b.Consumer("A", bus.ConsumerConfig{}), handle[noJSON])
		},
		`bus.Upcast "order.paid": from is 0: it must be at least 1`:   func(b *bus.Bus) { b.Upcast("order.paid", 0, step) },
		`bus.Upcast "order.paid" from version 1: the function is nil`: func(b *bus.Bus) { b.Upcast("order.paid", 1, nil) },
		`bus.Upcast "order.paid" from version 1: there is such a step already`: func(b *bus.Bus) {
			bus.On(b.Consumer("A", bus.ConsumerConfig{}), handle[paidTwo])
			b.Upcast("order.paid", 1, step)
			b.Upcast("order.paid", 1, step)
		},
		`bus.Upcast "order.piad" from version 1: no consumer has a handler for that type`: func(b *bus.Bus) {
			bus.On(b.Consumer("A", bus.ConsumerConfig{}), handle[paidTwo])
			b.Upcast("order.piad", 1, step)
		},
		`such as b.Upcast("order.paid", 3, fn) (handled: order.paid)`: func(b *bus.Bus) {
			bus.On(b.Consumer("A", bus.ConsumerConfig{}), handle[paidTwo])
			b.Upcast("order.piad", 3, step)
		},
		`the handlers take version 2, so nobody would take the step: ` +
			`let the Go type E of the event say func (E) SchemaVersion() int { return 3 }`: func(b *bus.Bus) {
			bus.On(b.Consumer("A", bus.ConsumerConfig{}), handle[paidTwo])
			b.Upcast("order.paid", 2, step)
		},
		`bus.Consumer "Idle" has no handler, so it would never get an event: register one, such as bus.On(c, func`: func(b *bus.Bus) {
			b.Consumer("Idle", bus.ConsumerConfig{})
		},
		"bus_test.hiddenOnly has only unexported fields (orderID), so its payload would be {}: export what is to be saved, such as OrderID " +
			"string `json:\"orderID\"`": func(b *bus.Bus) {
			bus.On(b.Consumer("A", bus.ConsumerConfig{}), handle[hiddenOnly])
		},
		`event type "X" is not a valid name`: func(b *bus.Bus) { b.Unconsumed("X") },
		`bus.Consumer "Late" was registered after a publisher had started: ` +
			`register everything first, then call outbox.NewPublisher`: func(b *bus.Bus) {
			open(b)
			b.Consumer("Late", bus.ConsumerConfig{})
		},
		`bus.On of consumer "Early" was registered after`: func(b *bus.Bus) {
			c := b.Consumer("Early", bus.ConsumerConfig{})
			open(b)
			bus.On(c, handle[paid])
		},
		`bus.Upcast "order.paid" was registered after`:     func(b *bus.Bus) { open(b); b.Upcast("order.paid", 1, step) },
		`bus.Unconsumed ["order.paid"] was registered aft`: func(b *bus.Bus) { open(b); b.Unconsumed("order.paid") },
	} {
		b := bus.New(db, bus.Config{Logger: slog.New(slog.DiscardHandler)})
		fn(b)
		require.ErrorContains(t, b.Err(), says)
	}
	require.ErrorContains(t, bus.New(nil, bus.Config{}).Err(), "bus.New: db is nil: give it the database of the outbox")
}

// open lets a publisher start.
func open(b *bus.Bus) { handler.Of(b).Close() }

// What is right is no mistake, and what follows from a mistake is not said again.
func TestWiringIsJudgedOnce(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "sqlite")
	b := bus.New(db, bus.Config{})
	require.NoError(t, b.Err(), "a bus without consumers is for a process that only saves")
	bus.On(b.Consumer("Wallet", bus.ConsumerConfig{Key: "Wallet"}), handle[paidTwo])
	bus.On(b.Consumer("Points", bus.ConsumerConfig{}), handle[paid])
	b.Upcast("order.paid", 1, step)
	b.Unconsumed("order.closed")
	require.NoError(t, b.Err())
	bus.On(b.Consumer("Coupon", bus.ConsumerConfig{}), handle[badName])
	bus.On(b.Consumer("wallet", bus.ConsumerConfig{}), handle[paid])
	require.EqualError(t, b.Err(), `2 mistakes in the wiring:
bus.On of consumer "Coupon": bus_test.badName.EventType() "Order Paid" is not a valid name: `+
		`it must be lower-case words joined by "." or "-", such as "order.paid"
bus.Consumer "wallet": its name "wallet" collides with the name "Wallet" of consumer "Wallet": give it another (not only in case)`)
}

// One mistake of a consumer hides no other.
func TestAllMistakesOfAConsumerAreReportedAtOnce(t *testing.T) {
	t.Parallel()
	b := bus.New(testdb.Open(t, "sqlite"), bus.Config{})
	key := strings.Repeat("x", 128)
	bus.On(b.Consumer("Wallet", bus.ConsumerConfig{Key: key}), handle[paid])
	b.Consumer("Two Words", bus.ConsumerConfig{Key: key, Replayable: true, Concurrency: -1, Batch: 501})
	for _, says := range []string{
		"4 mistakes in the wiring:", `bus.Consumer: name "Two Words" is not a valid name`,
		`bus.Consumer "Two Words": ConsumerConfig.Concurrency is -1`, "ConsumerConfig.Batch is 501: the limit is 500",
		"has 135 bytes, the limit is 128", `bus.Consumer "Two Words": its Key "` + key + `" collides with the Key`,
	} {
		require.ErrorContains(t, b.Err(), says)
	}
}

type runner struct{ runs chan struct{} }

func (r *runner) Run(context.Context) error { close(r.runs); return nil }

// A consumer without a bus cannot have its mistake returned by the bus: registering with it says so at once.
func TestAConsumerWithoutABusPanicsWithTheReason(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]*bus.Consumer{"nil": nil, "zero": {}} {
		for verb, register := range map[string]func(){
			"On": func() { bus.On(c, handle[paid]) },
			"OnBatch": func() {
				bus.OnBatch(c, func(context.Context, bun.Tx, []bus.Message[paid]) error { return nil })
			},
			"OnExternal": func() { bus.OnExternal(c, func(context.Context, bus.Message[paid]) error { return nil }) },
		} {
			require.PanicsWithValue(t, "bus."+verb+": the consumer was not made by Bus.Consumer, so there is no bus that could return this "+
				"mistake: "+
				"write bus."+verb+"(b.Consumer(\"Points\", bus.ConsumerConfig{}), …)", register, "%s: %s", verb, what)
		}
	}
}

// A runner that is nil, because the error of its constructor was dropped, is refused before any runs.
func TestRunRefusesNil(t *testing.T) {
	t.Parallel()
	var typed *runner
	r := &runner{make(chan struct{})}
	err := bus.Run(t.Context(), r, nil, typed)
	require.ErrorContains(t, err, "bus.Run: runner 2 of 3 is nil: check the error of its constructor, such as pub, err := outbox.NewPublisher")
	require.ErrorContains(t, err, "runner 3 of 3 is nil")
	select {
	case <-r.runs:
		t.Fatal("the first one ran")
	default:
	}
	require.NoError(t, bus.Run(t.Context(), r))
	<-r.runs
}

func TestBackoffDoublesWithJitterUpToItsCap(t *testing.T) {
	t.Parallel()
	for n, whole := range map[int]time.Duration{
		0: time.Second, 1: 2 * time.Second, 5: 32 * time.Second, 9: 512 * time.Second,
		10: 10 * time.Minute, 1000: 10 * time.Minute,
	} {
		least, most := whole, time.Duration(0)
		for range 500 {
			d := bus.Backoff(n)
			least, most = min(least, d), max(most, d)
		}
		require.GreaterOrEqual(t, least, whole/2)
		require.LessOrEqual(t, most, whole)
		require.Greater(t, most-least, whole/4, "jitter")
	}
}

func TestAnswersKeepTheirCause(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	require.ErrorIs(t, bus.Permanent(cause), cause)
	require.True(t, bus.IsPermanent(fmt.Errorf("wrapped: %w", bus.Permanent(cause))))
	require.False(t, bus.IsPermanent(cause))
	require.ErrorIs(t, bus.RetryAfter(cause, time.Second), cause)
	require.NoError(t, bus.Permanent(nil))
	require.NoError(t, bus.RetryAfter(nil, time.Second))
	require.EqualError(t, bus.Skip("not mine"), "skipped: not mine")
	for _, reason := range []string{"", " \t\n"} {
		require.True(t, bus.IsPermanent(bus.Skip(reason)))
		require.EqualError(t, bus.Skip(reason), `bus.Skip needs a reason, such as bus.Skip("a test order"): nothing was skipped`)
	}
}

// The context carries metadata to every event saved under it; deeper entries win.
func TestMetadataTravelsWithTheContext(t *testing.T) {
	t.Parallel()
	require.Empty(t, bus.MetadataFrom(t.Context()))
	outer := bus.WithMetadata(t.Context(), bus.Metadata{"a": "1", "b": "1"})
	inner := bus.WithMetadata(outer, bus.Metadata{"b": "2"})
	require.Equal(t, bus.Metadata{"a": "1", "b": "2"}, bus.MetadataFrom(inner))
	require.Equal(t, bus.Metadata{"a": "1", "b": "1"}, bus.MetadataFrom(outer))
}
