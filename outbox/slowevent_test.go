package outbox_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// gated registers a consumer that writes an effect for each event, for the event "slow" only when the gate has opened.
// It tells when it has begun with that one.
func (f *fixture) gated(cfg bus.ConsumerConfig) (gate chan struct{}, entered <-chan struct{}) {
	gate, in := make(chan struct{}), make(chan struct{}, 100)
	bus.On(f.bus.Consumer("A", cfg), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
		if m.Payload.OrderID == "slow" {
			in <- struct{}{}
			select {
			case <-gate:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return effect(ctx, tx, m, m.Payload.Seq)
	})
	return gate, in
}

// warmUp lets the consumer run many events, so that the engine knows how quick its handler is.
func (f *fixture) warmUp() (effects int) {
	f.t.Helper()
	var events []bus.Event
	for _, id := range ids(300) {
		events = append(events, orderPaid{OrderID: "warm-" + id})
	}
	f.save(events...)
	f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == len(events) }, "the consumer is warm")
	return len(events)
}

// While one event of a consumer is slow, the other aggregates of the same consumer go on, however few of them wait.
// (SQLite has one writer: a handler in its transaction stops all. Handlers without one are tested on SQLite too.)
func TestSlowEventHoldsUpNoOtherAggregate(t *testing.T) {
	t.Parallel()
	testdb.EachServer(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		gate, entered := f.gated(bus.ConsumerConfig{Timeout: 5 * time.Minute})
		open := sync.OnceFunc(func() { close(gate) })
		f.run(outbox.PublisherConfig{})
		t.Cleanup(open)
		n := f.warmUp()
		f.save(orderPaid{OrderID: "slow"})
		<-entered
		f.save(orderPaid{OrderID: "slow", Seq: 1}) // waits in the lane, and holds up nobody either
		for i := range 20 {
			f.save(orderPaid{OrderID: fmt.Sprint(i)})
			n++
			f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == n }, "another aggregate goes on")
		}
		open()
		f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect WHERE aggregate = 'slow'") == 2 }, "the slow one ends")
		require.Len(t, entered, 1, "each of its events ran once")
	})
}

// The same for handlers without a transaction, on SQLite too.
func TestSlowExternalCallHoldsUpNoOtherAggregate(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		gate, entered := make(chan struct{}), make(chan struct{})
		var calls atomic.Int64
		cfg := bus.ConsumerConfig{Timeout: 5 * time.Minute}
		bus.OnExternal(f.bus.Consumer("A", cfg), func(ctx context.Context, m bus.Message[orderPaid]) error {
			if m.Payload.OrderID == "slow" {
				close(entered)
				select {
				case <-gate:
				case <-ctx.Done():
				}
			}
			calls.Add(1)
			return ctx.Err()
		})
		open := sync.OnceFunc(func() { close(gate) })
		f.run(outbox.PublisherConfig{})
		t.Cleanup(open)
		f.save(orderPaid{OrderID: "slow"})
		<-entered
		for i := range 20 {
			f.save(orderPaid{OrderID: fmt.Sprint(i)})
		}
		f.eventually(func() bool { return calls.Load() == 20 }, "the other aggregates go on")
		open()
		f.eventually(func() bool { return f.statuses()[outbox.StatusSent] == 21 }, "all are done")
	})
}

// An event that was handed over and put back, because an earlier one had not been claimed yet, is claimed again: it does not
// wait for a slow consumer of an earlier event.
func TestEventPutBackDoesNotWaitForASlowConsumer(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("B", bus.ConsumerConfig{})
		gate, entered := make(chan struct{}), make(chan struct{}, 10)
		slow := bus.ConsumerConfig{Timeout: 10 * time.Minute}
		bus.OnExternal(f.bus.Consumer("Slow", slow), func(ctx context.Context, _ bus.Message[orderPaid]) error {
			entered <- struct{}{}
			select {
			case <-gate:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		f.save(orderPaid{OrderID: "1", Seq: 1})
		f.run(outbox.PublisherConfig{Poll: 20 * time.Millisecond})
		t.Cleanup(sync.OnceFunc(func() { close(gate) }))
		<-entered
		f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == 1 }, "the other consumer has had the first event")
		require.Equal(t, 1, f.statuses()[outbox.StatusDispatching], "which is in flight")
		f.savePutBack(orderPaid{OrderID: "1", Seq: 2})
		f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == 2 }, "and gets the second one")
		require.Empty(t, entered, "which the slow one has not begun")
	})
}

// savePutBack saves an event as if it had been claimed once and put back.
func (f *fixture) savePutBack(ev bus.Event) {
	f.t.Helper()
	require.NoError(f.t, f.db.RunInTx(f.t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
		if err := f.ob.Save(ctx, tx, ev); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "UPDATE bc_outbox_event SET lock_version = 1 WHERE status = 'NEW'")
		return err
	}))
}
