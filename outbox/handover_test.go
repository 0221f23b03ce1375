package outbox_test

import (
	"context"
	"database/sql"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// afterCommit calls then when a transaction with its context has committed, and before its events are handed over. It
// counts leases that the database has refused.
type afterCommit struct {
	then    func()
	refused atomic.Int64
}

type handedOver struct{}

func (a *afterCommit) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

func (a *afterCommit) AfterQuery(ctx context.Context, ev *bun.QueryEvent) {
	switch {
	case ev.Query == "COMMIT" && ctx.Value(handedOver{}) != nil:
		a.then()
	case ev.Err != nil && strings.Contains(ev.Query, "SET status = 'DISPATCHING'"):
		a.refused.Add(1)
	}
}

// Somebody has the row of a handed over event locked: that event waits, and no other one.
func TestHandOverWaitsForNoLock(t *testing.T) {
	t.Parallel()
	testdb.EachServer(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.registered("A")
		lock := f.open(sql.LevelReadCommitted)
		hook := &afterCommit{then: func() {
			f.countIn(lock, "SELECT id FROM bc_outbox_event WHERE aggregate_id = 'locked' FOR UPDATE")
		}}
		db.AddQueryHook(hook) //nolint:staticcheck // the engine's own pool is the point
		f.run(outbox.PublisherConfig{Poll: 20 * time.Millisecond})
		producer := context.WithValue(t.Context(), handedOver{}, true)
		require.NoError(t, f.db.RunInTx(producer, nil, func(ctx context.Context, tx bun.Tx) error {
			return f.ob.Save(ctx, tx, orderPaid{OrderID: "locked"})
		}))
		f.save(orderPaid{OrderID: "beside"})
		f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == 1 }, "another event is delivered meanwhile")
		require.Zero(t, hook.refused.Load(), "leases that waited for a lock until the database gave up")
		require.NoError(t, lock.Rollback())
		f.eventually(func() bool { return f.statuses()[outbox.StatusSent] == 2 }, "the locked one comes later")
	})
}

// A handed over event is left alone while another instance has an earlier one of its aggregate in flight.
func TestHandOverLooksForEarlierEvents(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.registered("A")
		f.leasedByAnother()
		stop, ended := f.begin(outbox.PublisherConfig{Poll: time.Hour})
		f.save(orderPaid{OrderID: "0"})
		f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == 1 }, "the publisher is at work")
		require.NoError(t, f.trySave(orderPaid{OrderID: "1", Seq: 3}, orderPaid{OrderID: "2"}))
		f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == 2 }, "the other aggregate goes on")
		stop()
		require.NoError(t, <-ended)
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 2}, f.deliveries(), "nothing waits in the log")
		require.Equal(t, 2, f.statuses()[outbox.StatusNew])
	})
}
