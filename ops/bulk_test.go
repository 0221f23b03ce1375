package ops_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

func TestBulkRetryOfAGroup(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{}).consumers()
		for i := range 30 {
			f.save(paid{OrderID: itoa(i), Note: "die"})
		}
		f.save(paid{OrderID: "other", Note: "fail"})
		f.once()
		groups, err := f.ops.Dead(t.Context())
		require.NoError(t, err)
		require.Len(t, groups, 2)
		require.EqualValues(t, 30, groups[0].Dead)
		require.Equal(t, "order # is cursed", groups[0].Error)
		require.EqualValues(t, 1, groups[1].Failed)
		b := ops.NewBulk{
			ID: "inc-1", Action: ops.ActionRetry, Query: ops.Query{Fingerprint: groups[0].Fingerprint}, Rate: 10_000,
			Spread: time.Hour,
		}
		n, err := f.ops.DryRun(t.Context(), b)
		require.NoError(t, err)
		require.Equal(t, ops.Count{Count: 30}, n)
		started, err := f.ops.StartBulk(t.Context(), op, b)
		require.NoError(t, err)
		require.Equal(t, ops.BulkRunning, started.State)
		again, err := f.ops.StartBulk(t.Context(), op, b)
		require.NoError(t, err)
		require.Equal(t, started.CreatedAt, again.CreatedAt)
		worked, err := f.ops.RunBulkOnce(t.Context())
		require.NoError(t, err)
		require.True(t, worked)
		done, err := f.ops.Bulk(t.Context(), "inc-1")
		require.NoError(t, err)
		require.Equal(t, ops.BulkDone, done.State)
		require.EqualValues(t, 30, done.Done)
		require.Zero(t, done.Passed)
		require.NotZero(t, done.FinishedAt)
		require.Equal(t, b.Query, done.Query)
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE status = 'PENDING'"))
		require.Equal(t, 29, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE status = 'FAILED' AND attempts = 0"))
		require.Equal(t, []string{"retry"}, f.actions(paidID("7")))
		require.Equal(t, []string{"bulk retry"}, f.actions("inc-1"))
		var due []time.Time
		for i := range 30 {
			due = append(due, delivery(f.event(itoa(i)), "Moody").NextRetryAt)
		}
		first, last := slices.MinFunc(due, time.Time.Compare), slices.MaxFunc(due, time.Time.Compare)
		require.WithinDuration(t, first.Add(58*time.Minute), last, 15*time.Minute, "spread over the hour")
		p, err := f.ops.Bulks(t.Context(), "", 1)
		require.NoError(t, err)
		require.Len(t, p.Rows, 1)
		require.Empty(t, p.Next)
		worked, err = f.ops.RunBulkOnce(t.Context())
		require.NoError(t, err)
		require.False(t, worked)
	})
}

// die saves n events whose deliveries die.
func (f *fixture) die(n int) {
	f.t.Helper()
	for i := range n {
		f.save(paid{OrderID: itoa(i), Note: "die"})
	}
	f.once()
}

// begun waits until a bulk operation has done something.
func (f *fixture) begun(id string) {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		b, err := f.ops.Bulk(f.t.Context(), id)
		return err == nil && b.Done > 0
	}, testdb.Patience(), 5*time.Millisecond)
}

// dieAt works on a bulk operation as an instance that is ended in the middle of it.
func (f *fixture) dieAt(id string) {
	f.t.Helper()
	ctx, die := context.WithCancel(f.t.Context())
	defer die()
	died := make(chan error, 1)
	go func() {
		_, err := f.ops.RunBulkOnce(ctx)
		died <- err
	}()
	f.begun(id)
	die()
	require.NoError(f.t, <-died)
}

// hurry lets bulk operations of one event a second go on as fast as they can.
func (f *fixture) hurry() {
	f.t.Helper()
	text, json := "request", ""
	if f.db.Dialect().Name().String() == "pg" {
		text, json = "request::text", "::json"
	}
	f.exec("UPDATE bc_bulk_operation SET request = REPLACE(" + text + `, '"rate":1,', '"rate":10000,')` + json)
}

// An instance that dies in the middle leaves its lease; another one goes on where it was, and no
// event is changed twice.
func TestBulkSurvivesItsInstance(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{}).consumers()
		f.die(50)
		_, err := f.ops.StartBulk(t.Context(), op, ops.NewBulk{
			ID: "b", Action: ops.ActionSkip, Query: ops.Query{Status: outbox.StatusDead}, Consumer: "Moody", Rate: 1,
		})
		require.NoError(t, err)
		f.dieAt("b")
		b, err := f.ops.Bulk(t.Context(), "b")
		require.NoError(t, err)
		require.Equal(t, ops.BulkRunning, b.State)
		require.Less(t, b.Done, int64(50))
		f.exec("UPDATE bc_bulk_operation SET locked_by = 'dead', locked_until = " + f.now(time.Minute))
		worked, err := f.ops.RunBulkOnce(t.Context())
		require.NoError(t, err)
		require.False(t, worked, "its lease is not over")
		f.exec("UPDATE bc_bulk_operation SET next_cursor = '', locked_until = " + f.now(-time.Second)) // and it had not noted where it was
		f.hurry()
		worked, err = f.ops.RunBulkOnce(t.Context())
		require.NoError(t, err)
		require.True(t, worked)
		b, err = f.ops.Bulk(t.Context(), "b")
		require.NoError(t, err)
		require.Equal(t, ops.BulkDone, b.State)
		require.EqualValues(t, 50, b.Done)
		require.Equal(t, 50, f.count("SELECT COUNT(*) FROM bc_audit_log WHERE action = 'skip'"))
	})
}

func TestBulkIsCanceledAndResumed(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{}).consumers()
		f.die(10)
		_, err := f.ops.StartBulk(t.Context(), op, ops.NewBulk{ID: "b", Action: ops.ActionDiscard, Query: ops.Query{Consumer: "Moody"}, Rate: 1})
		require.NoError(t, err)
		run, stop := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() { over <- f.ops.Run(run) }()
		f.begun("b")
		require.NoError(t, f.ops.CancelBulk(t.Context(), op, "b"))
		require.ErrorIs(t, f.ops.CancelBulk(t.Context(), op, "b"), ops.ErrNotFound)
		stop()
		require.NoError(t, <-over)
		b, err := f.ops.Bulk(t.Context(), "b")
		require.NoError(t, err)
		require.Equal(t, ops.BulkCanceled, b.State)
		require.Less(t, b.Done, int64(10))
		f.hurry()
		require.NoError(t, f.ops.ResumeBulk(t.Context(), op, "b"))
		_, err = f.ops.RunBulkOnce(t.Context())
		require.NoError(t, err)
		b, err = f.ops.Bulk(t.Context(), "b")
		require.NoError(t, err)
		require.Equal(t, ops.BulkDone, b.State)
		require.Equal(t, 10, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE status = 'SKIPPED'"))
		require.Equal(t, []string{"bulk discard", "cancel bulk", "resume bulk"}, f.actions("b"))
	})
}

// failures notes when statements on the audit log failed, and calls enough at the second.
type failures struct {
	mu     sync.Mutex
	at     []time.Time
	enough func()
}

func (h *failures) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

func (h *failures) AfterQuery(_ context.Context, ev *bun.QueryEvent) {
	if ev.Err == nil || !strings.Contains(ev.Query, "bc_audit_log") {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.at = append(h.at, time.Now()); len(h.at) == 2 {
		h.enough()
	}
}

func (h *failures) times() []time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.at)
}

// A slow operation waits before it asks a database again that has failed, as a fast one does, and can be stopped meanwhile.
func TestASlowBulkWaitsBetweenItsTries(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{}).consumers()
		f.die(1)
		_, err := f.ops.StartBulk(t.Context(), op, ops.NewBulk{
			ID: "b", Action: ops.ActionDiscard, Query: ops.Query{Consumer: "Moody"}, Rate: 0.1,
		})
		require.NoError(t, err)
		f.exec("ALTER TABLE bc_audit_log RENAME TO away")
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		failed := &failures{enough: stop}
		other := newFixture(t, db.WithQueryHook(failed), ops.Config{})
		worked, err := other.ops.RunBulkOnce(ctx)
		require.NoError(t, err)
		require.True(t, worked)
		at := failed.times()
		require.Len(t, at, 2)
		require.GreaterOrEqual(t, at[1].Sub(at[0]), time.Second)
		b, err := f.ops.Bulk(t.Context(), "b")
		require.NoError(t, err)
		require.Equal(t, ops.BulkRunning, b.State)
	})
}

func TestBulkReplayInOrder(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{}).consumers()
		for i := range 5 {
			f.save(paid{OrderID: itoa(i)})
			f.save(noted{OrderID: itoa(i)})
		}
		f.once()
		_, err := f.ops.StartBulk(t.Context(), op, ops.NewBulk{
			Action: ops.ActionReplay, Query: ops.Query{EventType: "order.paid"}, Consumer: "Moody",
		})
		require.ErrorIs(t, err, ops.ErrNotReplayable)
		b, err := f.ops.StartBulk(t.Context(), op, ops.NewBulk{
			Action: ops.ActionReplay, Query: ops.Query{
				Consumer: "Steady", DeliveryStatus: consumelog.Success, EventType: "order.paid",
				Since: time.Now().Add(-time.Hour),
			}, Rate: 1000,
		})
		require.NoError(t, err)
		require.EqualValues(t, 5, b.Total.Count)
		before := len(f.runs())
		_, err = f.ops.RunBulkOnce(t.Context())
		require.NoError(t, err)
		f.once()
		require.Equal(t, []string{"Steady 0 again", "Steady 1 again", "Steady 2 again", "Steady 3 again", "Steady 4 again"}, f.runs()[before:])
	})
}

func TestBulksThatMakeNoSense(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testdb.Open(t, "sqlite"), ops.Config{})
	for name, b := range map[string]ops.NewBulk{
		"action":     {Action: "explode", Query: ops.Query{Status: outbox.StatusDead}},
		"everything": {Action: ops.ActionRetry},
		"consumer":   {Action: ops.ActionSkip, Query: ops.Query{Status: outbox.StatusDead}},
		"rate":       {Action: ops.ActionRetry, Query: ops.Query{Status: outbox.StatusDead}, Rate: -1},
		"spread":     {Action: ops.ActionRetry, Query: ops.Query{Status: outbox.StatusDead}, Spread: -1},
		"id":         {ID: " ", Action: ops.ActionRetry, Query: ops.Query{Status: outbox.StatusDead}},
	} {
		_, err := f.ops.StartBulk(t.Context(), op, b)
		require.Error(t, err, name)
		_, err = f.ops.DryRun(t.Context(), b)
		require.Error(t, err, name)
	}
	_, err := f.ops.Bulk(t.Context(), "nobody")
	require.ErrorIs(t, err, ops.ErrNotFound)
}
