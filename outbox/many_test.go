package outbox_test

import (
	"context"
	"errors"
	"fmt"
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

// manyConsumers is how many consumers one process has in the tests of many.
const manyConsumers = 2000

// anyType is an event of a type that is known when it is made.
type anyType struct {
	Type string `json:"type"`
	ID   string `json:"id"`
}

// typeOfHandler is what EventType says of the zero value while a handler is registered.
var typeOfHandler struct {
	sync.Mutex
	is string
}

func (e anyType) EventType() string {
	if e.Type == "" {
		return typeOfHandler.is
	}
	return e.Type
}

func (e anyType) Aggregate() (kind, id string) { return "MANY", e.ID }

// handleType is bus.On for events of one type.
func handleType(c *bus.Consumer, eventType string, fn func(context.Context, bun.Tx, bus.Message[anyType]) error) {
	typeOfHandler.Lock()
	defer typeOfHandler.Unlock()
	typeOfHandler.is = eventType
	bus.On(c, fn)
}

// many registers consumers that all take one type, and each one of its own. A fifth of them fail while refuse says so.
func (f *fixture) many(n int, refuse *atomic.Bool) {
	f.effects()
	for i := range n {
		c := f.bus.Consumer(manyName(i), bus.ConsumerConfig{})
		handleType(c, "many.all", func(ctx context.Context, tx bun.Tx, m bus.Message[anyType]) error {
			if i%5 == 0 && refuse.Load() {
				return errors.New("not yet")
			}
			return effect(ctx, tx, m, i)
		})
		handleType(c, manyType(i), func(ctx context.Context, tx bun.Tx, m bus.Message[anyType]) error { return effect(ctx, tx, m, i) })
	}
}

func manyName(i int) string { return fmt.Sprintf("Consumer%04d", i) }
func manyType(i int) string { return fmt.Sprintf("many.t%04d", i) }

// requireEach fails unless n consumers have written so many effects each.
func (f *fixture) requireEach(n, each int) {
	f.t.Helper()
	require.Equal(f.t, n, f.count("SELECT COUNT(*) FROM (SELECT consumer FROM effect GROUP BY consumer HAVING COUNT(*) = ?) AS c", each))
}

// 2,000 consumers in one process: an event that all of them take, one of each one's own type, and events that some of them
// refuse at first or get when they are no longer paused.
func TestManyConsumers(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		const n, paused = manyConsumers, 20
		f := newFixture(t, db)
		var refuse atomic.Bool
		f.many(n, &refuse)
		f.once() // registers them
		require.Equal(t, n, f.count("SELECT COUNT(*) FROM bc_consumer"))
		require.Equal(t, 2*n, f.count("SELECT COUNT(*) FROM bc_consumer_type"))

		const own = n / 10 // consumers with an event of their own type
		events := make([]bus.Event, own)
		for i := range events {
			events[i] = anyType{Type: manyType(10 * i), ID: fmt.Sprint(i)}
		}
		f.save(events...)
		f.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: own}, f.statuses())
		f.requireEach(own, 1)

		op := outbox.Operation{Actor: "ops", Reason: "test"}
		for i := range paused {
			require.NoError(t, f.ob.Pause(t.Context(), op, manyName(5*i+1), 0))
		}
		refuse.Store(true)
		f.save(anyType{Type: "many.all", ID: "all"})
		f.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: own, outbox.StatusFailed: 1}, f.statuses())
		require.Equal(t, map[consumelog.Status]int{
			consumelog.Success: own + n - n/5 - paused, consumelog.Failed: n / 5, consumelog.Pending: paused,
		}, f.deliveries())
		for i := range paused {
			require.NoError(t, f.ob.Resume(t.Context(), op, manyName(5*i+1)))
		}
		refuse.Store(false)
		f.hurry()
		f.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: own + 1}, f.statuses())
		f.requireEach(own, 2)
		f.requireEach(n-own, 1)

		other := newFixture(t, db) // which has none of them
		other.save(anyType{Type: "many.all", ID: "elsewhere"})
		other.once()
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: own + n, consumelog.Pending: n}, f.deliveries())
	})
}
