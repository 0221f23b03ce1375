//go:build !race

package simulation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
)

// Beside a backlog of NEW events that takes half a minute, what falls due runs within a second: retries and events of a
// dead instance. In fake time the bound is exact.
func TestBacklogDelaysNoDueWork(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		due, delays, ran := make(map[int]time.Time), make(map[int]time.Duration), 0
		const many, late, wanted = 3000, 10, 5 * time.Second // events, those that fall due again, and when
		handle := func(ctx context.Context, _ bun.Tx, m bus.Message[happened]) error {
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
		}
		p := quietLife(t, s).process("busy", func(b *bus.Bus) { bus.On(b.Consumer("Slow", bus.ConsumerConfig{}), handle) })
		require.NoError(t, p.db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
			for n := range many {
				if err := p.ob.Save(ctx, tx, happened{N: n, Of: fmt.Sprint(n)}); err != nil {
					return err
				}
			}
			return nil
		}))
		// An instance has died with two events in flight.
		_, err := p.db.ExecContext(t.Context(), "UPDATE bc_outbox_event SET status = 'DISPATCHING', locked_by = 'gone', lock_version = 1, "+
			"next_retry_at = (strftime('%Y-%m-%d %H:%M:%f', 'now', '8 seconds') || '000') WHERE aggregate_id IN ('2000', '2001')")
		require.NoError(t, err)
		due[2000], due[2001] = time.Now().Add(8*time.Second), time.Now().Add(8*time.Second)
		ctx, stop := context.WithCancel(t.Context())
		p.run(ctx)
		wait(ctx, 20*time.Second)
		mu.Lock()
		soFar, seen := ran, maps.Clone(delays)
		mu.Unlock()
		stop()
		p.end()
		require.Less(t, soFar, many, "the backlog lasts")
		require.Len(t, seen, late+2)
		for n, delay := range seen {
			require.LessOrEqual(t, delay, time.Second, "event %d", n)
		}
	})
}
