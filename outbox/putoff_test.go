package outbox_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// commitsBeside ends a transaction, if there is one, while a delivery is being marked.
type commitsBeside struct{ tx atomic.Pointer[bun.Tx] }

// BeforeQuery does nothing.
func (h *commitsBeside) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context {
	return ctx
}

// AfterQuery sees the marker.
func (h *commitsBeside) AfterQuery(_ context.Context, ev *bun.QueryEvent) {
	if !strings.HasPrefix(ev.Query, "INSERT INTO bc_event_consume_log") {
		return
	}
	if tx := h.tx.Swap(nil); tx != nil {
		_ = tx.Commit()
	}
}

// Two transactions save events of one aggregate, and the later event is committed first: its delivery sees the earlier one, which has
// been committed meanwhile, and is put off. The earlier one wakes nobody. The lane looks again by itself, not at the next poll.
// (SQLite has one writer: the earlier one is committed first.)
func TestWhatIsPutOffWaitsForNoPoll(t *testing.T) {
	t.Parallel()
	testdb.EachServer(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("A", bus.ConsumerConfig{})
		var beside commitsBeside
		f.db.AddQueryHook(&beside) //nolint:staticcheck // the engine's own pool is the point
		f.run(neverPolls)
		f.save(orderPaid{OrderID: "it runs"})
		f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == 1 }, "the publisher has nothing to do")
		earlier, err := f.db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, f.ob.Save(t.Context(), earlier, orderPaid{OrderID: "a", Seq: 1}))
		beside.tx.Store(&earlier)
		f.save(orderPaid{OrderID: "a", Seq: 2})
		f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == 3 }, "both are delivered without a poll")
		require.Equal(t, "1\n2", f.texts("SELECT seq FROM effect WHERE aggregate = 'a' ORDER BY id"))
	})
}
