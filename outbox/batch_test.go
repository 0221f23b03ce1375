package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

func TestBatchHandlerGetsManyEventsInOneCall(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		var calls atomic.Int64
		bus.OnBatch(f.bus.Consumer("Batch", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, ms []bus.Message[orderPaid]) error {
			calls.Add(1)
			for _, m := range ms {
				m.RecordKey("points:" + m.Payload.OrderID)
				if err := effect(ctx, tx, m, m.Payload.Seq); err != nil {
					return err
				}
			}
			return nil
		})
		const n = 90
		events := make([]bus.Event, n)
		for i := range events {
			events[i] = orderPaid{OrderID: fmt.Sprint(i % 3), Seq: i / 3}
		}
		f.save(events...)
		f.once()
		require.Equal(t, n, f.count("SELECT COUNT(*) FROM effect"))
		require.Less(t, int(calls.Load()), n, "events came together")
		for _, id := range []string{"0", "1", "2"} {
			var seq []int
			require.NoError(t, db.NewRaw("SELECT seq FROM effect WHERE aggregate = ? ORDER BY id", id).Scan(t.Context(), &seq))
			require.Equal(t, upTo(n/3), seq, "in commit order")
		}
		require.Equal(t, n, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE idempotency_key LIKE 'points:%'"))
	})
}

// One bad event in a batch costs itself an attempt, and nobody else.
func TestOneBadEventInABatchFailsAlone(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		bus.OnBatch(f.bus.Consumer("Batch", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, ms []bus.Message[orderPaid]) error {
			for _, m := range ms {
				if err := effect(ctx, tx, m, m.Payload.Seq); err != nil {
					return err
				}
				if m.Payload.OrderID == "bad" {
					return errHandler
				}
			}
			return nil
		})
		f.counting("Single", bus.ConsumerConfig{})
		f.save(orderPaid{OrderID: "a"}, orderPaid{OrderID: "b"}, orderPaid{OrderID: "bad"}, orderPaid{OrderID: "c"})
		f.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 3, outbox.StatusFailed: 1}, f.statuses())
		require.Equal(t, 3, f.count("SELECT COUNT(*) FROM effect WHERE consumer = 'Batch'"))
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE status = 'FAILED' AND attempts = 1"))
	})
}

// An external effect has no transaction: it runs at least once, under one key for all its attempts.
func TestExternalHandlerKeepsItsKeyOverAttempts(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		var mu sync.Mutex
		var keys []string
		bus.OnExternal(f.bus.Consumer("Sms", bus.ConsumerConfig{}), func(_ context.Context, m bus.Message[orderPaid]) error {
			mu.Lock()
			defer mu.Unlock()
			keys = append(keys, m.Key())
			if len(keys) < 3 {
				return errors.New("the provider is busy")
			}
			m.RecordResult(map[string]string{"sms": "accepted"})
			return nil
		})
		f.save(orderPaid{OrderID: "1"})
		for range 3 {
			f.once()
			f.hurry()
		}
		require.Len(t, keys, 3)
		require.Len(t, slices.Compact(keys), 1, "one key for every attempt")
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 1}, f.statuses())
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 1}, f.deliveries())
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE attempts = 3"))
	})
}
