package simulation

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/outbox"
)

// While a handler of a consumer takes 10 s, the p99 of the delay of the other aggregates of that consumer is at most twice as long
// as without it. In fake time what the machine is busy with does not count.
func TestSlowEventLeavesTheDelayOfOthersAsItWas(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	synctest.Test(t, func(t *testing.T) {
		const slow, many, every, takes = 10 * time.Second, 900, 10 * time.Millisecond, 2 * time.Millisecond
		l := &life{t: t, store: s, began: time.Now(), writer: make(chan struct{}, 1), logger: slog.New(slog.DiscardHandler)}
		db := l.connect("one", true).open()
		ob, err := outbox.New(db, outbox.Config{Logger: l.logger})
		require.NoError(t, err)
		b := bus.New(db, bus.Config{Logger: l.logger})
		var mu sync.Mutex
		saved, delays, slowRan := make(map[int]time.Time), []time.Duration{}, 0
		bus.OnExternal(b.Consumer("A", bus.ConsumerConfig{}), func(ctx context.Context, m bus.Message[happened]) error {
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
		})
		pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- bus.Run(ctx, pub) }()
		n, failed := 0, error(nil)
		save := func(of string) {
			n++
			mu.Lock()
			saved[n] = time.Now()
			mu.Unlock()
			err := db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error { return ob.Save(ctx, tx, happened{N: n, Of: of}) })
			if failed == nil {
				failed = err
			}
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
		require.NoError(t, <-done) // whoever fails in a bubble must leave nobody waiting
		require.NoError(t, db.Close())
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
