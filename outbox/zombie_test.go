package outbox_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// freezer stops a process when its first claim has been committed, before it gets to know.
type freezer struct {
	leased       atomic.Bool
	once         sync.Once
	frozen, thaw chan struct{}
}

func (z *freezer) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

func (z *freezer) AfterQuery(_ context.Context, ev *bun.QueryEvent) {
	switch {
	case strings.HasPrefix(ev.Query, "UPDATE bc_outbox_event") && strings.Contains(ev.Query, "status = 'DISPATCHING'"):
		z.leased.Store(true)
	case ev.Query == "COMMIT" && z.leased.Load():
		z.once.Do(func() {
			close(z.frozen)
			<-z.thaw
		})
	}
}

// A process that was frozen while others took its event over, delivered it, and removed it with its log, finds out before
// it calls a handler. Nothing in the log tells it any more.
func TestFrozenBeyondRetentionCallsNoHandler(t *testing.T) {
	t.Parallel()
	for _, name := range testdb.Dialects() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.DSN(t, name)
			f := newFixture(t, migrated(t, dsn))
			f.registered("A")
			zombie := f.another(dsn)
			var calls atomic.Int64
			bus.On(zombie.bus.Consumer("A", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[orderPaid]) error {
				calls.Add(1)
				return nil
			})
			f.save(orderPaid{OrderID: "1"}, orderPaid{OrderID: "2"})
			freeze := &freezer{frozen: make(chan struct{}), thaw: make(chan struct{})}
			zombie.db.AddQueryHook(freeze) //nolint:staticcheck // the engine's own pool is the point
			const lease = 3 * time.Second
			began, ended := time.Now(), make(chan error, 1)
			go func() {
				_, err := zombie.publisher(outbox.PublisherConfig{Lease: lease}).RunOnce(context.Background())
				ended <- err
			}()
			<-freeze.frozen
			f.eventually(func() bool { return time.Since(began) > lease+time.Second }, "its lease is over")
			f.hurry()
			f.once()
			f.eventually(func() bool { return f.statuses()[outbox.StatusSent] == 2 }, "another instance delivers")
			f.age()
			require.EqualValues(t, 2, f.retain(outbox.RetentionConfig{})["removed"])
			close(freeze.thaw)
			<-ended
			require.Zero(t, calls.Load(), "it has no lease")
			require.Equal(t, 2, f.count("SELECT COUNT(*) FROM effect"))
			require.Empty(t, f.statuses())
			require.Empty(t, f.deliveries())
		})
	}
}
