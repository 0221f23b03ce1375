package outbox_test

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// bulky has a payload of a thousand bytes.
type bulky struct{ ID, Text string }

func (bulky) EventType() string              { return "order.bulky" }
func (e bulky) Aggregate() (kind, id string) { return "ORDER", e.ID }

// Retries are loaded as far as their payloads fit into what a process may have in flight, which three consumers share, and
// all of them are delivered.
func TestRetriesAreBoundedByBytes(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		const events = 20
		f := newFixture(t, db)
		var running, most atomic.Int64
		consumers := []string{"A", "B", "C"}
		for _, name := range consumers {
			bus.OnBatch(f.bus.Consumer(name, bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, ms []bus.Message[bulky]) error {
				now := running.Add(int64(len(ms)))
				defer running.Add(-int64(len(ms)))
				for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
				}
				return nil
			})
		}
		for i := range events {
			f.save(bulky{strconv.Itoa(i), strings.Repeat("x", 1000)})
		}
		f.exec("UPDATE bc_outbox_event SET status = 'FAILED'")
		for _, name := range consumers {
			f.exec("INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, attempts, aggregate_type, aggregate_id, "+
				"outbox_id, next_retry_at) "+
				"SELECT ?, event_id, event_type, 'FAILED', 1, aggregate_type, aggregate_id, id, created_at FROM bc_outbox_event", name)
		}
		_, err := f.publisher(outbox.PublisherConfig{MaxInFlightBytes: 3500}).RunOnce(t.Context())
		require.NoError(t, err)
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: events * len(consumers)}, f.deliveries())
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: events}, f.statuses())
		require.LessOrEqual(t, most.Load(), int64(3), "three payloads fit")
	})
}
