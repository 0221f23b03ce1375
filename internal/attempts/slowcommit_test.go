package attempts_test

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/faultdb"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

// Promise 8: what a run has leased it gives back. The end comes while PostgreSQL, which is told to forget about it, stores a claim all
// the same: its process stands still, for a second, or as long as the run if that ends before. (The drivers of the other databases
// never leave a COMMIT alone.)
func TestEndDuringTheCommitOfAClaimLeavesNothingLeased(t *testing.T) {
	t.Parallel()
	dsn := testdb.DSN(t, "postgres")
	require.NoError(t, migrations.Up(t.Context(), testdb.OpenDSN(t, dsn)))
	watch := &world{t: t, db: testdb.OpenDSN(t, dsn)}
	const claims = "SELECT COALESCE(MAX(pid), 0) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%DISPATCHING%' " +
		"AND state = 'idle in transaction'"
	var hasClaimed atomic.Bool
	stopped := make(chan int, 1)
	w := newWorld(t, hooked(t, dsn, faultdb.Hook{Before: func(_ context.Context, s faultdb.Step) error {
		switch {
		case has(s, "status = 'DISPATCHING', locked_by"):
			hasClaimed.Store(true)
		case s.Op == faultdb.Commit && hasClaimed.CompareAndSwap(true, false):
			pid := watch.count(claims)
			if pid < 2 {
				return errors.New("no process of PostgreSQL claims")
			}
			stopped <- pid
			return syscall.Kill(pid, syscall.SIGSTOP)
		}
		return nil
	}}))
	w.counting("A", bus.ConsumerConfig{})
	w.save(paid{ID: "1"})
	pub, err := outbox.NewPublisher(w.ob, w.bus, outbox.PublisherConfig{})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- pub.Run(ctx) }()
	pid := <-stopped
	<-time.After(100 * time.Millisecond) // now it waits for the answer to its COMMIT, or the test shows less
	stop()
	goOn := time.AfterFunc(time.Second, func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	require.NoError(t, <-done)
	if goOn.Stop() {
		require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
	}
	watch.eventually(func() bool {
		return watch.count("SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "+
			"AND state <> 'idle'") == 0
	}, "the claim has come to its end")
	require.Zero(t, watch.count("SELECT COUNT(*) FROM bc_outbox_event WHERE status = 'DISPATCHING'"), "it is given back, or delivered")
}
