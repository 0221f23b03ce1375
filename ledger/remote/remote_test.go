package remote_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ledger/ledgerv1"
	"github.com/bluecone-go/bluecone/ledger/remote"
	"github.com/bluecone-go/bluecone/outbox"
)

// The handlers of a module run elsewhere as they are: each event once, in the order of its aggregate, and the ledger knows the results.
func TestHandlersMoveUnchanged(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db, 0)
		var mu sync.Mutex
		seen := make(map[string][]int)
		w.consume(func(_ context.Context, m bus.Message[paid]) error {
			mu.Lock()
			defer mu.Unlock()
			seen[m.Payload.Order] = append(seen[m.Payload.Order], m.Payload.Seq)
			return nil
		}, remote.Config{})
		const orders, each = 5, 6
		var all []string
		for _, order := range []string{"A", "B", "C", "D", "E"} {
			all = append(all, w.publish(order, each)...)
		}
		w.done(orders * each)
		slices.Sort(all)
		require.Equal(t, all, w.effects(), "each once")
		for order, seqs := range seen { // a batch that has run twice may say so twice
			require.True(t, slices.IsSorted(seqs), "%s: %v", order, seqs)
		}
		w.becomes(all[0], `SUCCESS 1 {"points":0} `)
	})
}

// What a handler answers is what becomes of the delivery; what does not count as an attempt in a monolith does not count here.
func TestAnswers(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db, 0)
		var laters, calls atomic.Int32
		w.consume(func(_ context.Context, m bus.Message[paid]) error {
			switch m.Payload.Order {
			case "skips":
				return bus.Skip("a test")
			case "dies":
				return bus.Permanent(errors.New("hopeless"))
			case "fails":
				if m.Attempt == 1 {
					return errors.New("once")
				}
			case "later":
				if laters.Add(1) <= 3 {
					return bus.RetryAfter(errors.New("not yet"), time.Millisecond)
				}
			case "unreached":
				if calls.Add(1) == 1 {
					return fmt.Errorf("call the partner: %w", syscall.ECONNREFUSED)
				}
			}
			return nil
		}, remote.Config{})
		ids := make(map[string]string)
		for _, order := range []string{"skips", "dies", "fails", "later", "fine"} {
			ids[order] = w.publish(order, 1)[0]
		}
		w.becomes(ids["fine"], `SUCCESS 1 {"points":0} `)
		w.becomes(ids["later"], `SUCCESS 1 {"points":0} `)
		w.becomes(ids["skips"], "SKIPPED 1  a test")
		w.becomes(ids["dies"], "DEAD 1  hopeless")
		w.becomes(ids["fails"], `SUCCESS 2 {"points":0} `)
		w.becomes(w.publish("unreached", 1)[0], `SUCCESS 1 {"points":0} `) // alone: of a batch it would run again at once
		require.Len(t, w.effects(), 4, "what has failed has no effect")
	})
}

// A consumer that is paused gets nothing, and what has waited when it is resumed.
func TestPausedConsumerGetsNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db, 0)
		stop := w.consume(nothing, remote.Config{})
		w.publish("A", 1)
		w.done(1)
		stop()
		op := outbox.Operation{Actor: "ann", Reason: "a test"}
		require.NoError(t, w.ob.Pause(t.Context(), op, consumer, time.Hour))
		id := w.publish("A", 1)[0]
		require.Eventually(t, func() bool { return w.state(id) == "PENDING 0  " }, testdb.Patience(), 20*time.Millisecond)
		got, err := w.client.Fetch(t.Context(), &ledgerv1.FetchRequest{Consumer: consumer, EventTypes: []string{"order.paid"}})
		require.NoError(t, err)
		require.Empty(t, got.GetDeliveries())
		begun, err := w.client.BeginConsume(t.Context(), &ledgerv1.BeginConsumeRequest{Consumer: consumer, EventId: id})
		require.NoError(t, err)
		require.Equal(t, "IN_PROGRESS", begun.GetDecision())
		w.consume(nothing, remote.Config{})
		require.NoError(t, w.ob.Resume(t.Context(), op, consumer))
		w.done(2)
	})
}

// A run that has lost its lease, because its process was frozen, say, does nothing beside the one that has it now.
func TestLostLeaseDoesNothingTwice(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db, time.Second)
		var runs atomic.Int32
		frozen, thawed := make(chan struct{}), make(chan struct{})
		w.consume(func(context.Context, bus.Message[paid]) error {
			if runs.Add(1) == 1 {
				close(frozen)
				<-thawed
			}
			return nil
		}, remote.Config{Heartbeat: 30 * time.Second}) // the lease is not renewed
		id := w.publish("A", 1)[0]
		<-frozen
		w.consume(nothing, remote.Config{})
		require.Eventually(t, func() bool { // somebody else has it
			got, err := w.client.QueryConsumption(t.Context(), &ledgerv1.QueryConsumptionRequest{EventId: id})
			require.NoError(t, err)
			return got.GetConsumers()[0].GetAttempts() >= 2
		}, testdb.Patience(), 50*time.Millisecond)
		close(thawed)
		w.done(1)
		require.Len(t, w.effects(), 1)
	})
}

// Handlers without a transaction are called, too; a lease that runs for long is renewed.
func TestExternalHandlersKeepTheirLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testdb.Open(t, "sqlite"), time.Minute)
	b := bus.New(w.db, bus.Config{Logger: logger()})
	var runs atomic.Int32
	end := make(chan struct{})
	bus.OnExternal(b.Consumer(consumer, bus.ConsumerConfig{}), func(ctx context.Context, _ bus.Message[paid]) error {
		runs.Add(1)
		select {
		case <-end:
		case <-ctx.Done():
		}
		return ctx.Err()
	})
	r, err := remote.Consumer(b, w.client, remote.Config{Heartbeat: 100 * time.Millisecond, Wait: time.Second, Logger: logger()})
	require.NoError(t, err)
	w.beside(r.Run)
	id := w.publish("A", 1)[0]
	require.Eventually(t, func() bool { return runs.Load() == 1 }, testdb.Patience(), 10*time.Millisecond)
	var before time.Duration
	require.Eventually(t, func() bool { // what is left of the lease becomes less, unless it is renewed
		begun, err := w.client.BeginConsume(t.Context(), &ledgerv1.BeginConsumeRequest{Consumer: consumer, EventId: id})
		require.NoError(t, err)
		require.Equal(t, "IN_PROGRESS", begun.GetDecision())
		left := begun.GetRetryAfter().AsDuration()
		renewed := before != 0 && left > before
		before = left
		return renewed
	}, testdb.Patience(), 20*time.Millisecond)
	close(end)
	w.becomes(id, "SUCCESS 1  ")
	require.EqualValues(t, 1, runs.Load())
}

// What cannot work is said at the start.
func TestMistakes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testdb.Open(t, "sqlite"), 0)
	b := bus.New(w.db, bus.Config{Logger: logger()})
	register(b, nothing)
	_, err := remote.Consumer(b, w.client, remote.Config{Max: 501, Consumers: []string{"Nobody"}})
	require.ErrorContains(t, err, "remote.Config.Max is 501")
	_, err = remote.Consumer(b, w.client, remote.Config{Consumers: []string{"Nobody"}})
	require.ErrorContains(t, err, `no consumer with the key "Nobody"`)

	other := bus.New(w.db, bus.Config{Logger: logger()})
	bus.On(other.Consumer("Stranger", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[paid]) error { return nil })
	r, err := remote.Consumer(other, w.client, remote.Config{})
	require.NoError(t, err)
	require.ErrorContains(t, r.Run(t.Context()), "permission_denied")

	bare := testdb.OpenDSN(t, testdb.DSN(t, "sqlite"))
	b = bus.New(bare, bus.Config{Logger: logger()})
	register(b, nothing)
	c, err := clientOf(w.url, http.DefaultClient)
	require.NoError(t, err)
	r, err = remote.Consumer(b, c, remote.Config{})
	require.NoError(t, err)
	require.ErrorContains(t, r.Run(t.Context()), "migrations.Up")
}
