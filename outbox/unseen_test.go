package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// neverPolls is a publisher that only finds what it is woken for.
var neverPolls = outbox.PublisherConfig{Poll: 3600e9, Cron: "0 0 0 1 1 ?"}

// lookCounter counts the statements that have a text in them.
type lookCounter struct {
	text string
	n    atomic.Int64
	last atomic.Int64 // when, in nanoseconds
}

const (
	lookForCommits = "SELECT l.event_id, 1 FROM" // that nobody reports
	lookForDue     = " AS kind, "
)

func (c *lookCounter) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

func (c *lookCounter) AfterQuery(_ context.Context, ev *bun.QueryEvent) {
	if strings.Contains(ev.Query, c.text) {
		c.n.Add(1)
		c.last.Store(time.Now().UnixNano())
	}
}

// The commit of a transaction that bun's hook does not see is noticed without a poll, by looks that end when the events show.
func TestWakesAfterACommitThatBunDoesNotSee(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Dialects() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.DSN(t, dialect)
			f := newFixture(t, migrated(t, dsn))
			f.effects()
			f.counting("A", bus.ConsumerConfig{})
			looks := lookCounter{text: lookForCommits}
			f.db.AddQueryHook(&looks) //nolint:staticcheck // the engine's own pool is the point
			f.run(neverPolls)
			f.save(orderPaid{OrderID: "first"})
			f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == 1 }, "the publisher runs")
			require.Zero(t, looks.n.Load(), "a commit that the hook sees is not looked for")
			effects := 1
			for name, begin := range txKinds(t, dialect, dsn, f.db) {
				tx := begin()
				require.NoError(t, f.ob.Save(t.Context(), tx, orderPaid{OrderID: "lost"}), name)
				require.NoError(t, tx.Rollback(), name)
				for _, events := range [][]bus.Event{{orderPaid{OrderID: "1"}, orderPaid{OrderID: "2"}}, {keyedPaid{orderPaid{OrderID: name}}}} {
					tx = begin()
					require.NoError(t, f.ob.Save(t.Context(), tx, events...), name)
					n := looks.n.Load()
					f.eventually(func() bool { return looks.n.Load() > n+1 }, name+": it looks before the commit")
					require.NoError(t, tx.Commit(), name)
					effects += len(events)
					f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == effects }, name+": delivered without a poll")
				}
			}
			// "first", and of each kind two events and a keyed one; nothing of what was rolled back
			require.Zero(t, f.count("SELECT COUNT(*) FROM effect WHERE aggregate = 'lost'"))
		})
	}
}

// orderClosed follows from orderPaid.
type orderClosed struct{ OrderID string }

func (orderClosed) EventType() string              { return "order.closed" }
func (e orderClosed) Aggregate() (kind, id string) { return "ORDER", e.OrderID }

// closing registers a consumer of each kind of transaction that saves an orderClosed for each orderPaid, and one that takes these.
func (f *fixture) closing(also func() error) {
	f.effects()
	bus.On(f.bus.Consumer("Bun", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
		return errors.Join(f.ob.Save(ctx, tx, orderClosed{m.Consumer + m.Payload.OrderID}), also())
	})
	bus.OnSQL(f.bus.Consumer("SQL", bus.ConsumerConfig{}), func(ctx context.Context, tx bus.Tx, m bus.Message[orderPaid]) error {
		return errors.Join(f.ob.Save(ctx, tx, orderClosed{m.Consumer + m.Payload.OrderID}), also())
	})
	bus.On(f.bus.Consumer("Closer", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderClosed]) error {
		return effect(ctx, tx, m, 1)
	})
}

// What a handler saves in the delivery's transaction, of either kind, does not wait for the poll.
func TestEventsThatHandlersSaveDoNotWaitForThePoll(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.closing(func() error { return nil })
		f.run(neverPolls)
		for i := range 3 {
			f.save(orderPaid{OrderID: fmt.Sprint(i)})
			f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == 2*(i+1) }, "both are delivered without a poll")
		}
	})
}

// What a handler saves exists if and only if its delivery commits.
func TestEventsThatHandlersSaveExistWithTheirDelivery(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		var calls atomic.Int64
		f.closing(func() error {
			if calls.Add(1) <= 2 {
				return errRollback
			}
			return nil
		})
		f.save(orderPaid{OrderID: "1"})
		f.once()
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_outbox_event"), "both have failed")
		f.eventually(func() bool {
			f.hurry()
			f.once()
			return f.count("SELECT COUNT(*) FROM effect") == 2
		}, "both have saved one, which is delivered")
		require.Equal(t, 2, f.count("SELECT COUNT(*) FROM bc_outbox_event WHERE event_type = 'order.closed'"))
	})
}
