package bus_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
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

// panicText is what fn panics with.
func panicText(t *testing.T, fn func()) (text string) {
	t.Helper()
	defer func() {
		v := recover()
		require.NotNil(t, v, "it should panic")
		text = fmt.Sprint(v)
	}()
	fn()
	return ""
}

// Wiring mistakes panic at start, with the names in the text.
func TestWiringMistakesPanicWithTheirNames(t *testing.T) {
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
		"OnDead is 7":                    func(b *bus.Bus) { b.Consumer("A", bus.ConsumerConfig{OnDead: 7}) },
		`ConsumerConfig.Key "a b"`:       func(b *bus.Bus) { b.Consumer("A", bus.ConsumerConfig{Key: "a b"}) },
		"A has two handlers for order.paid": func(b *bus.Bus) {
			c := b.Consumer("A", bus.ConsumerConfig{})
			bus.On(c, handle[paid])
			bus.On(c, handle[paid])
		},
		"the handler is nil":                 func(b *bus.Bus) { bus.On[paid](b.Consumer("A", bus.ConsumerConfig{}), nil) },
		"the consumer is nil":                func(*bus.Bus) { bus.On(nil, handle[paid]) },
		"*bus_test.byPointer must be a valu": func(b *bus.Bus) { bus.On(b.Consumer("A", bus.ConsumerConfig{}), handle[*byPointer]) },
		"bus.Event must be a value type":     func(b *bus.Bus) { bus.On(b.Consumer("A", bus.ConsumerConfig{}), handle[bus.Event]) },
		`"Order Paid" is not a valid name`:   func(b *bus.Bus) { bus.On(b.Consumer("A", bus.ConsumerConfig{}), handle[badName]) },
		"noJSON cannot be encoded as JSON":   func(b *bus.Bus) { bus.On(b.Consumer("A", bus.ConsumerConfig{}), handle[noJSON]) },
		"from is 0 (must be at least 1)": func(b *bus.Bus) {
			b.Upcast("order.paid", 0, func(p json.RawMessage) (json.RawMessage, error) { return p, nil })
		},
		"version 1 has an upcaster already": func(b *bus.Bus) {
			up := func(p json.RawMessage) (json.RawMessage, error) { return p, nil }
			b.Upcast("order.paid", 1, up)
			b.Upcast("order.paid", 1, up)
		},
		`event type "X" is not a valid name`: func(b *bus.Bus) { b.Unconsumed("X") },
		"registered while a publisher runs": func(b *bus.Bus) {
			b.Open(bus.Host{Instance: "i", Lease: time.Second, Ended: func(context.Context, []string) {}, Refresh: func(context.Context) error { return nil }, Paused: func(string) bool { return false }})
			b.Consumer("Late", bus.ConsumerConfig{})
		},
	} {
		require.Contains(t, panicText(t, func() { fn(bus.New(db, bus.Config{})) }), says)
	}
	require.Contains(t, panicText(t, func() { bus.New(nil, bus.Config{}) }), "db is nil")
}

func TestBackoffDoublesWithJitterUpToItsCap(t *testing.T) {
	t.Parallel()
	for n, whole := range map[int]time.Duration{0: time.Second, 1: 2 * time.Second, 5: 32 * time.Second, 9: 512 * time.Second, 10: 10 * time.Minute, 1000: 10 * time.Minute} {
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
