//go:build !race

package simulation

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
)

// While one consumer is busy for an hour with the first event of each aggregate, another one gets every event within
// seconds, whichever of two instances saves it and in whose hands the first one is.
func TestSlowConsumerKeepsNothingFromOthers(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			synctest.Test(t, func(t *testing.T) { besideASlowConsumer(t, s, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func besideASlowConsumer(t *testing.T, s *store, r *rand.Rand) {
	t.Helper()
	l := quietLife(t, s)
	ctx, stop := context.WithCancel(t.Context())
	var mu sync.Mutex
	quick, over := make(map[int]bool), make(chan struct{})
	register := func(b *bus.Bus) {
		bus.On(b.Consumer("Quick", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[happened]) error {
			mu.Lock()
			defer mu.Unlock()
			quick[m.Payload.N] = true
			return nil
		})
		hour := bus.ConsumerConfig{Timeout: 2 * time.Hour}
		bus.OnExternal(b.Consumer("Slow", hour), func(context.Context, bus.Message[happened]) error {
			select {
			case <-over:
			case <-time.After(time.Hour):
			}
			return nil
		})
	}
	var all []*process
	for i := range 2 {
		p := l.process(fmt.Sprint("instance ", i), register)
		p.run(ctx)
		all = append(all, p)
	}
	wait(ctx, time.Minute)
	const events = 120
	var failed error
	for n := range events {
		p := all[r.IntN(len(all))]
		if failed = p.save(ctx, n, fmt.Sprint(r.IntN(4))); failed != nil {
			break
		}
		wait(ctx, time.Duration(r.IntN(3))*time.Millisecond)
	}
	wait(ctx, 10*time.Second)
	mu.Lock()
	got := len(quick)
	mu.Unlock()
	close(over)
	stop()
	for _, p := range all {
		p.end()
	}
	require.NoError(t, failed)
	require.Equal(t, events, got)
}
