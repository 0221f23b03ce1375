package outbox_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// slowStatement keeps the first statement that says so from being sent.
type slowStatement struct {
	part      string
	seen      atomic.Bool
	held, let chan struct{}
}

// BeforeQuery waits until the statement may be sent.
func (h *slowStatement) BeforeQuery(ctx context.Context, ev *bun.QueryEvent) context.Context {
	if strings.Contains(ev.Query, h.part) && h.seen.CompareAndSwap(false, true) {
		close(h.held)
		<-h.let
	}
	return ctx
}

// AfterQuery does nothing.
func (*slowStatement) AfterQuery(context.Context, *bun.QueryEvent) {}

// Deliveries that have to wait are written into the log beside the claims, not between two of them, however long the
// database takes for it. Until they are there, what is behind them waits as well.
func TestClaimsDoNotWaitForDeliveriesThatDo(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Servers() { // in SQLite it would hold the only writer
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, testdb.Open(t, dialect))
			f.registered("Healthy", "Paused")
			op := outbox.Operation{Actor: "ann", Reason: "a test"}
			require.NoError(t, f.ob.Pause(t.Context(), op, "Paused", 0))
			hook := &slowStatement{part: ", status, next_retry_at, started) ", held: make(chan struct{}), let: make(chan struct{})}
			f.db.AddQueryHook(hook) //nolint:staticcheck // a statement of this test is to wait
			f.run(outbox.PublisherConfig{Poll: 20 * time.Millisecond})
			let := sync.OnceFunc(func() { close(hook.let) })
			t.Cleanup(let)
			f.save(orderPaid{OrderID: "1"})
			select {
			case <-hook.held:
			case <-time.After(testdb.Patience()):
				t.Fatal("no statement has written what waits: does the hook know its text?")
			}
			require.NoError(t, f.ob.Resume(t.Context(), op, "Paused"))
			for range 3 {
				f.save(orderPaid{OrderID: "1"})
			}
			effects := func(consumer string) int {
				return f.count("SELECT COUNT(*) FROM effect WHERE consumer = ?", consumer)
			}
			require.Eventually(t, func() bool {
				return effects("Healthy") == 4
			}, testdb.Patience(), 5*time.Millisecond, "they are claimed and delivered: %v, %v",
				stringer(func() string { return fmt.Sprint(f.statuses()) }), stringer(func() string { return fmt.Sprint(f.deliveries()) }))
			require.Zero(t, effects("Paused"), "the first has not even been queued")
			let()
			f.eventually(func() bool { return f.statuses()[outbox.StatusSent] == 4 }, "all have been delivered")
			require.Equal(t, map[consumelog.Status]int{consumelog.Success: 8}, f.deliveries())
		})
	}
}

// stringer is asked only when a test has failed.
type stringer func() string

func (s stringer) String() string { return s() }

// What a publisher holds when it is told to stop is in the log when it has stopped.
func TestEndLeavesNothingHeld(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.registered("Healthy", "Paused")
		require.NoError(t, f.ob.Pause(t.Context(), outbox.Operation{Actor: "ann", Reason: "a test"}, "Paused", 0))
		stop, ended := f.begin(outbox.PublisherConfig{Poll: 20 * time.Millisecond})
		f.save(orderPaid{OrderID: "1"})
		f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == 1 }, "one of two is delivered")
		stop()
		require.NoError(t, <-ended)
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 1, consumelog.Pending: 1}, f.deliveries())
		require.Equal(t, map[outbox.Status]int{outbox.StatusFailed: 1}, f.statuses())
	})
}
