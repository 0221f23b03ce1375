package outbox_test

import (
	"context"
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

// hears is a publisher that never polls, and is notified.
func hears() outbox.PublisherConfig {
	cfg := neverPolls
	cfg.Notify = true
	return cfg
}

const listening = " FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %'"

// With Notify a commit wakes the publishers of other instances, whatever kind of transaction it was, and a lost connection is
// replaced.
func TestNotifyWakesOtherInstances(t *testing.T) {
	t.Parallel()
	dsn := testdb.DSN(t, "postgres")
	saver := newFixture(t, migrated(t, dsn))
	saver.publisher(outbox.PublisherConfig{Notify: true}) // it does not run
	f := saver.another(dsn)
	f.effects()
	f.counting("A", bus.ConsumerConfig{})
	stop, ended := f.begin(hears())
	listeners := func(n int) func() bool {
		return func() bool { return saver.count("SELECT COUNT(*)"+listening) == n }
	}
	f.eventually(listeners(1), "it listens")
	kinds := txKinds(t, "postgres", dsn, saver.db)
	effects := 0
	for name, begin := range kinds {
		tx := begin()
		require.NoError(t, saver.ob.Save(t.Context(), tx, orderPaid{OrderID: "lost"}), name)
		require.NoError(t, tx.Rollback(), name)
		tx = begin()
		require.NoError(t, saver.ob.Save(t.Context(), tx, orderPaid{OrderID: name}, keyedPaid{orderPaid{OrderID: name}}), name)
		require.NoError(t, saver.ob.Save(t.Context(), tx, orderPaid{OrderID: name, Seq: 2}, keyedPaid{orderPaid{OrderID: name}}), name)
		require.NoError(t, tx.Commit(), name)
		effects += 3
		f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == effects }, name+": delivered without a poll")
	}
	saver.save(orderPaid{OrderID: "seen"})
	f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == effects+1 }, "the saver sees that commit; others are told")

	before := saver.count("SELECT MAX(pid)" + listening)
	saver.exec("SELECT pg_terminate_backend(?)", before)
	saver.save(orderPaid{OrderID: "while it does not listen"})
	f.eventually(func() bool {
		return saver.count("SELECT COUNT(*)"+listening+" AND pid <> ?", before) == 1
	}, "it listens again")
	f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == effects+2 }, "and looks for what it did not hear of")
	saver.save(orderPaid{OrderID: "now"})
	f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == effects+3 }, "and hears")
	require.Zero(t, f.count("SELECT COUNT(*) FROM effect WHERE aggregate = 'lost'"))

	last := saver.count("SELECT MAX(pid)" + listening)
	stop()
	require.NoError(t, <-ended)
	f.eventually(func() bool {
		return saver.count("SELECT COUNT(*) FROM pg_stat_activity WHERE pid = ?", last) == 0
	}, "its connection is closed: nobody else would want one that listens")
}

// Without Notify nobody is notified, and no connection listens.
func TestNotifyIsOffByDefault(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testdb.Open(t, "postgres"))
	f.effects()
	f.counting("A", bus.ConsumerConfig{})
	var notifies atomic.Int64
	f.db.AddQueryHook(&textCounter{text: "pg_notify", n: &notifies}) //nolint:staticcheck // the engine's own pool is the point
	f.run(outbox.PublisherConfig{})
	f.save(orderPaid{OrderID: "1"})
	f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == 1 }, "it is delivered")
	require.Zero(t, f.count("SELECT COUNT(*)"+listening))
	require.Zero(t, notifies.Load())
	f.publisher(outbox.PublisherConfig{Notify: true})
	f.save(orderPaid{OrderID: "2"})
	require.EqualValues(t, 1, notifies.Load())
}

// textCounter counts the statements that have a text.
type textCounter struct {
	text string
	n    *atomic.Int64
}

func (c *textCounter) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

func (c *textCounter) AfterQuery(_ context.Context, ev *bun.QueryEvent) {
	if strings.Contains(ev.Query, c.text) {
		c.n.Add(1)
	}
}

// A notification is a part of the INSERT: it costs no statement.
func TestNotifyTakesNoStatement(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testdb.Open(t, "postgres"))
	f.publisher(outbox.PublisherConfig{Notify: true})
	tx, err := f.db.DB.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	seen := &sent{Tx: tx}
	require.NoError(t, f.ob.Save(t.Context(), seen, orderPaid{OrderID: "1"}))
	require.NoError(t, tx.Commit())
	require.Equal(t, []string{"Exec INSERT"}, seen.all)
}

// Behind a pooler nobody can listen: the poll finds the events. Saving there notifies those who can.
func TestNotifyBehindAPooler(t *testing.T) {
	t.Parallel()
	dsn := testdb.DSN(t, "postgres")
	direct := newFixture(t, migrated(t, dsn))
	direct.effects()
	behind := newFixture(t, testdb.OpenDSN(t, testdb.PoolerDSN(t, dsn)+"&default_query_exec_mode=simple_protocol"))
	behind.counting("A", bus.ConsumerConfig{})
	behind.run(outbox.PublisherConfig{Poll: 10 * time.Millisecond, Notify: true})
	direct.save(orderPaid{OrderID: "1"})
	direct.eventually(func() bool { return direct.count("SELECT COUNT(*) FROM effect WHERE consumer = 'A'") == 1 }, "the poll finds it")
	require.Zero(t, direct.count("SELECT COUNT(*)"+listening))

	direct.counting("B", bus.ConsumerConfig{})
	direct.run(hears())
	direct.eventually(func() bool { return direct.count("SELECT COUNT(*)"+listening) == 1 }, "it listens")
	behind.save(orderPaid{OrderID: "2"})
	direct.eventually(func() bool {
		return direct.count("SELECT COUNT(*) FROM effect WHERE consumer = 'B' AND aggregate = '2'") == 1
	},
		"it is told of what was saved behind the pooler")
}

// Notify is refused where it cannot work.
func TestNotifyIsRefusedWhereItCannotWork(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		_, err := outbox.NewPublisher(f.ob, f.bus, outbox.PublisherConfig{Notify: true})
		if db.Dialect().Name().String() != "pg" {
			require.ErrorContains(t, err, "outbox.PublisherConfig.Notify is set: only PostgreSQL can notify")
			return
		}
		require.NoError(t, err)
		db.SetMaxOpenConns(1)
		_, err = outbox.NewPublisher(f.ob, f.bus, outbox.PublisherConfig{Notify: true})
		require.ErrorContains(t, err, "outbox.PublisherConfig.Notify is set, and the pool has one connection")
	})
}
