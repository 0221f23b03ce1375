package simulation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/outbox"
)

// Beside a backlog of NEW events that takes half a minute, what falls due runs within a second: retries and events of a
// dead instance. In fake time the bound is exact.
func TestBacklogDelaysNoDueWork(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	synctest.Test(t, func(t *testing.T) {
		l := &life{t: t, store: s, began: time.Now(), writer: make(chan struct{}, 1), logger: slog.New(slog.DiscardHandler)}
		db := l.connect("busy", true).open()
		ob, err := outbox.New(db, outbox.Config{Logger: l.logger})
		require.NoError(t, err)
		b := bus.New(db, bus.Config{Logger: l.logger})
		var mu sync.Mutex
		due, delays, ran := make(map[int]time.Time), make(map[int]time.Duration), 0
		const many, late, wanted = 3000, 10, 5 * time.Second // events, those that fall due again, and when
		bus.On(b.Consumer("Slow", bus.ConsumerConfig{}), func(ctx context.Context, _ bun.Tx, m bus.Message[happened]) error {
			wait(ctx, 10*time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			ran++
			if at, ok := due[m.Payload.N]; ok {
				delays[m.Payload.N] = time.Since(at)
			} else if m.Payload.N < late {
				due[m.Payload.N] = time.Now().Add(wanted)
				return bus.RetryAfter(errors.New("planned"), wanted)
			}
			return nil
		})
		pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
		require.NoError(t, err)
		require.NoError(t, db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
			for n := range many {
				if err := ob.Save(ctx, tx, happened{N: n, Of: fmt.Sprint(n)}); err != nil {
					return err
				}
			}
			return nil
		}))
		// An instance has died with two events in hand.
		_, err = db.ExecContext(t.Context(), "UPDATE bc_outbox_event SET status = 'DISPATCHING', locked_by = 'gone', lock_version = 1, "+
			"next_retry_at = (strftime('%Y-%m-%d %H:%M:%f', 'now', '8 seconds') || '000') WHERE aggregate_id IN ('2000', '2001')")
		require.NoError(t, err)
		due[2000], due[2001] = time.Now().Add(8*time.Second), time.Now().Add(8*time.Second)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- bus.Run(ctx, pub) }()
		wait(ctx, 20*time.Second)
		mu.Lock()
		soFar, seen := ran, maps.Clone(delays)
		mu.Unlock() // whoever fails in a bubble must leave nobody waiting
		stop()
		require.NoError(t, <-done)
		require.NoError(t, db.Close())
		require.Less(t, soFar, many, "the backlog lasts")
		require.Len(t, seen, late+2)
		for n, delay := range seen {
			require.LessOrEqual(t, delay, time.Second, "event %d", n)
		}
	})
}
