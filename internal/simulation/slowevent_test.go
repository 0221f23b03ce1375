//go:build !race

package simulation

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/bus"
)

// While a handler of a consumer takes 10 s, the p99 of the delay of the other aggregates of that consumer is at most twice as long
// as without it. In fake time what the machine is busy with does not count.
func TestSlowEventLeavesTheDelayOfOthersAsItWas(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	synctest.Test(t, func(t *testing.T) {
		const slow, many, every, takes = 10 * time.Second, 900, 10 * time.Millisecond, 2 * time.Millisecond
		var mu sync.Mutex
		saved, delays, slowRan := make(map[int]time.Time), []time.Duration{}, 0
		handle := func(ctx context.Context, m bus.Message[happened]) error {
			if m.Payload.Of == "slow" {
				wait(ctx, slow)
				mu.Lock()
				defer mu.Unlock()
				slowRan++
				return ctx.Err()
			}
			wait(ctx, takes)
			mu.Lock()
			defer mu.Unlock()
			delays = append(delays, time.Since(saved[m.Payload.N]))
			return nil
		}
		p := quietLife(t, s).process("one", func(b *bus.Bus) { bus.OnExternal(b.Consumer("A", bus.ConsumerConfig{}), handle) })
		ctx, stop := context.WithCancel(t.Context())
		p.run(ctx)
		n, failed := 0, error(nil)
		save := func(of string) {
			n++
			mu.Lock()
			saved[n] = time.Now()
			mu.Unlock()
			failed = cmp.Or(failed, p.save(ctx, n, of))
		}
		load := func() []time.Duration {
			for range many { // within 9 s and a bit, while the slow one lasts
				save(fmt.Sprint(n))
				wait(ctx, every)
			}
			wait(ctx, slow)
			mu.Lock()
			defer mu.Unlock()
			took := delays
			delays = nil
			slices.Sort(took)
			return took
		}
		load() // to warm up
		undisturbed := load()
		save("slow")
		beside := load()
		stop()
		p.end()
		require.NoError(t, failed)
		require.Equal(t, 1, slowRan)
		require.Equal(t, many, len(undisturbed)) //nolint:testifylint // Len would print them all
		require.Equal(t, many, len(beside))      //nolint:testifylint // likewise
		p99 := func(took []time.Duration) time.Duration { return took[len(took)*99/100] }
		t.Logf("p99 %v undisturbed, %v beside; longest %v and %v", p99(undisturbed), p99(beside), undisturbed[len(undisturbed)-1],
			beside[len(beside)-1])
		require.LessOrEqual(t, p99(beside), 2*p99(undisturbed))
	})
}
