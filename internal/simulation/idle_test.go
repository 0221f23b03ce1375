//go:build !race

package simulation

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
)

// statements counts what a pool is asked.
type statements struct{ n atomic.Int64 }

// BeforeQuery counts.
func (s *statements) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context {
	s.n.Add(1)
	return ctx
}

// AfterQuery does nothing.
func (*statements) AfterQuery(context.Context, *bun.QueryEvent) {}

// An instance with nothing to do asks the database at most twice a second, with the defaults, and as often with two thousand
// consumers as with twenty.
//
//nolint:paralleltest // it counts the goroutines of its process
func TestIdleInstanceAsksSeldom(t *testing.T) {
	few, many := idleStatements(t, 20), idleStatements(t, 2000)
	t.Logf("%.2f statements a second, %.2f with 2,000 consumers", few, many)
	require.Positive(t, few)
	require.LessOrEqual(t, few, 2.0)
	require.InDelta(t, few, many, 0.1)
}

// idleStatements is how many statements a second an instance with so many consumers sends.
func idleStatements(t *testing.T, consumers int) (perSecond float64) {
	t.Helper()
	s := newStore(t)
	synctest.Test(t, func(t *testing.T) {
		l, asked := quietLife(t, s), &statements{}
		p := l.process("idle", func(b *bus.Bus) {
			l.register(b, &instance{}, false)
			for i := range consumers {
				bus.On(b.Consumer(fmt.Sprint("More", i), bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[happened]) error {
					return nil
				})
			}
		}, asked)
		ctx, stop := context.WithCancel(t.Context())
		p.run(ctx)
		wait(ctx, time.Minute) // it has begun
		idle := runtime.NumGoroutine()
		before := asked.n.Load()
		const whole = 5 * time.Minute
		wait(ctx, whole)
		perSecond = float64(asked.n.Load()-before) / whole.Seconds()
		stop()
		p.end()
		require.Less(t, idle, 100, "no goroutine waits for a consumer that has nothing to do")
	})
	return perSecond
}
