package simulation

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/outbox"
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
	l := &life{t: t, store: s, began: time.Now(), writer: make(chan struct{}, 1), logger: slog.New(slog.DiscardHandler)}
	ctx, stop := context.WithCancel(t.Context())
	var mu sync.Mutex
	quick, over := make(map[int]bool), make(chan struct{})
	var dbs []*bun.DB
	var obs []*outbox.Outbox
	done := make(chan error, 2)
	for i := range cap(done) {
		db := l.connect(fmt.Sprint("instance ", i), true).open()
		ob, err := outbox.New(db, outbox.Config{Logger: l.logger})
		require.NoError(t, err)
		b := bus.New(db, bus.Config{Logger: l.logger})
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
		pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
		require.NoError(t, err)
		dbs, obs = append(dbs, db), append(obs, ob)
		go func() { done <- bus.Run(ctx, pub) }()
	}
	wait(ctx, time.Minute)
	const events = 120
	var failed error
	for n := range events {
		i := r.IntN(len(dbs))
		failed = dbs[i].RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
			return obs[i].Save(ctx, tx, happened{N: n, Of: fmt.Sprint(r.IntN(4))})
		})
		if failed != nil {
			break
		}
		wait(ctx, time.Duration(r.IntN(3))*time.Millisecond)
	}
	wait(ctx, 10*time.Second)
	mu.Lock()
	got := len(quick)
	mu.Unlock() // whoever fails in a bubble must leave nobody waiting
	close(over)
	stop()
	for _, db := range dbs {
		require.NoError(t, <-done)
		require.NoError(t, db.Close())
	}
	require.NoError(t, failed)
	require.Equal(t, events, got)
}
