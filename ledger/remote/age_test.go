package remote_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ledger/remote"
)

// What a handler never gets through to, or always puts off, ends when it is as old as the consumer's MaxAge, as in a monolith.
func TestMaxAgeEndsWhatDoesNotCount(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db, 0)
		letters := make(chan string, 10)
		b := bus.New(w.db, bus.Config{Logger: logger(), OnDeadLetter: func(_ context.Context, d bus.DeadLetter) { letters <- d.Error }})
		bus.OnExternal(b.Consumer(consumer, bus.ConsumerConfig{MaxAge: time.Second}), func(_ context.Context, m bus.Message[paid]) error {
			switch m.Payload.Order {
			case "later":
				return bus.RetryAfter(errors.New("not yet"), 10*time.Millisecond)
			case "away":
				return bus.Unavailable(errors.New("away"))
			}
			return nil
		})
		w.run(b, remote.Config{})
		later, away, fine := w.publish("later", 1)[0], w.publish("away", 1)[0], w.publish("fine", 1)[0]
		w.becomes(fine, "SUCCESS 1  ")
		for id, why := range map[string]string{later: "not yet", away: "away"} {
			require.Eventually(t, func() bool { return strings.HasPrefix(w.state(id), "DEAD 1 ") }, testdb.Patience(), 20*time.Millisecond, why)
			require.Regexp(t, `given up \S+ after its first run, because ConsumerConfig.MaxAge is 1s: `+why, w.state(id))
			require.Contains(t, <-letters, "because ConsumerConfig.MaxAge is 1s")
		}
	})
}

// A process that ends leaves what its handlers have put off: it is not run before its time, and that is no attempt of it.
func TestAnEndOfTheProcessIsNoAttempt(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db, 0)
		var runs atomic.Int32
		later := func(context.Context, bus.Message[paid]) error {
			runs.Add(1)
			return bus.RetryAfter(errors.New("not yet"), time.Hour)
		}
		stop := w.consume(later, remote.Config{})
		id := w.publish("A", 1)[0]
		require.Eventually(t, func() bool { return runs.Load() == 1 }, testdb.Patience(), 10*time.Millisecond)
		stop()
		require.EqualValues(t, 1, runs.Load(), "it was put off for an hour")
		require.Equal(t, "PROCESSING 0  ", w.state(id))
		testdb.Exec(t, db, "UPDATE bc_event_consume_log SET next_retry_at = '2001-01-01 00:00:00.000000' WHERE status = 'PROCESSING'")
		w.consume(nothing, remote.Config{})
		w.becomes(id, `SUCCESS 1 {"points":0} `)
	})
}

// A result that the ledger would refuse is left out, and the delivery is done.
func TestAResultThatTheLedgerDoesNotTakeIsLeftOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testdb.Open(t, "sqlite"), 0)
	b := bus.New(w.db, bus.Config{Logger: logger()})
	bus.OnExternal(b.Consumer(consumer, bus.ConsumerConfig{}), func(_ context.Context, m bus.Message[paid]) error {
		var deep any
		for range 101 {
			deep = []any{deep}
		}
		m.RecordResult(deep)
		return nil
	})
	w.run(b, remote.Config{})
	w.becomes(w.publish("A", 1)[0], "SUCCESS 1  ")
}
