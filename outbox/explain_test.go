package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/internal/testplan"
	"github.com/bluecone-go/bluecone/outbox"
)

// Every statement that the engine sends finds its rows by an index, however long the history is.
func TestNoStatementScansTheHistory(t *testing.T) {
	if testing.Short() {
		t.Skip("it fills tables with many rows")
	}
	t.Parallel()
	for _, name := range testdb.Dialects() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.DSN(t, name)
			mine := newFixture(t, migrated(t, dsn)) // for what the test itself asks
			testplan.Fill(t, mine.db, testplan.Enough(mine.db, 60_000), "1", "A")
			mine.exec("INSERT INTO bc_event_key (event_id) SELECT event_id FROM bc_outbox_event LIMIT 20000")
			if testdb.Dialect(name) != "mysql" {
				mine.exec("ANALYZE")
			}
			f := mine.another(dsn)
			sent := testplan.Record(f.db, "bc_outbox_event", "bc_event_consume_log", "bc_event_key")
			exercise(f, mine)
			forgetKeys(f)
			sent.Require(t, mine.db, scan, 30)
			if name == "postgres" {
				testplan.RequirePrepared(t, f.db, scan, 4)
			}
		})
	}
}

// The same when keyed events are repeated.
func TestRepeatedKeysOnYoungPostgres(t *testing.T) {
	t.Parallel()
	onYoungPostgres(t, func(f *fixture) {
		events := make([]bus.Event, 100)
		for i := range events {
			events[i] = keyedPaid{orderPaid{OrderID: fmt.Sprint(i)}}
		}
		f.save(events...)
		f.exec("INSERT INTO bc_event_key (event_id) SELECT 'h-' || i FROM generate_series(1, 50000) AS g(i)")
		f.exec("INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, attempts) SELECT 'A', 'h-' || i, 'order.paid', 1 " +
			"FROM generate_series(1, 50000) AS g(i)")
		sent := testplan.Record(f.db, "bc_event_key")
		f.save(events[0])
		f.save(events...)
		forgetKeys(f)
		sent.Require(t, f.db, scan, 0)
		require.Equal(t, 100, f.count("SELECT COUNT(*) FROM bc_outbox_event"))
	})
}

// PostgreSQL without statistics, as after a burst into young tables, takes a hundred events for half of the log.
func TestNoStatisticsNoScan(t *testing.T) {
	t.Parallel()
	onYoungPostgres(t, func(f *fixture) {
		f.exec("INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, attempts) SELECT 'A', 'h-' || i, 'order.paid', 1 " +
			"FROM generate_series(1, 50000) AS g(i)")
		log, err := store.OpenLog(f.db)
		require.NoError(t, err)
		ids := make([]string, 100)
		for i := range ids {
			ids[i] = fmt.Sprintf("h-%d", 10*i+1)
		}
		sent := testplan.Record(f.db, "bc_event_consume_log")
		states, err := log.States(t.Context(), f.db, ids)
		require.NoError(t, err)
		require.Len(t, states, len(ids))
		notes := make([]store.Note, len(ids))
		for i, id := range ids {
			notes[i] = store.Note{EventID: id, Result: i}
		}
		require.NoError(t, f.db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
			return log.Annotate(ctx, tx, "A", notes)
		}))
		sent.Require(t, f.db, scan, 1)
	})
}

// What PostgreSQL knows of young tables keeps up with them: it would read all of them for plans that were
// made when they were empty. It does not look again before they have doubled.
func TestStatisticsKeepUp(t *testing.T) {
	t.Parallel()
	onYoungPostgres(t, func(f *fixture) {
		f.effects()
		f.counting("A", bus.ConsumerConfig{})
		f.run(outbox.PublisherConfig{})
		saved := 0
		save := func(n int) {
			for range n {
				f.save(orderPaid{OrderID: fmt.Sprint(saved), Seq: saved})
				saved++
			}
			f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == saved }, "all are handled")
		}
		known := func(name string) int {
			return f.count("SELECT relpages FROM pg_class WHERE oid = '" + name + "'::regclass")
		}
		save(100)
		f.eventually(func() bool { return known("bc_outbox_event") > 0 && known("bc_event_consume_log") > 0 }, "it has looked")
		before := known("bc_outbox_event")
		save(500)
		for deadline := time.Now().Add(testdb.Patience()); known("bc_outbox_event") <= 2*before; save(1) {
			require.True(t, time.Now().Before(deadline), "it has looked again")
		}
		looks := f.count("SELECT pg_stat_get_analyze_count('bc_event_consume_log'::regclass)")
		require.Less(t, looks, 6, "not with every beat")
	})
}

// onYoungPostgres runs a test on tables that autovacuum has not come by yet, if there is a PostgreSQL.
func onYoungPostgres(t *testing.T, test func(*fixture)) {
	t.Helper()
	f := newFixture(t, migrated(t, testdb.DSN(t, "postgres")))
	for _, name := range []string{"bc_outbox_event", "bc_event_consume_log", "bc_event_key"} {
		f.exec("ALTER TABLE " + name + " SET (autovacuum_enabled = off)")
	}
	test(f)
}

// exercise makes the engine send what it has: direct deliveries, hand-overs, retries, DEAD ones,
// roll-ups, renewals, operators, sweeps and retention.
func exercise(f, mine *fixture) {
	mine.effects()
	f.counting("A", bus.ConsumerConfig{})
	bus.On(f.bus.Consumer("B", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[orderPaid]) error {
		if m.Payload.Seq%5 == 1 && m.Attempt == 1 {
			return errors.New("not yet")
		}
		if m.Payload.Seq == 7 {
			return bus.Permanent(errors.New("never"))
		}
		return nil
	})
	bus.OnExternal(f.bus.Consumer("C", bus.ConsumerConfig{}), func(context.Context, bus.Message[orderPaid]) error { return nil })
	leaveVersions(f, mine)
	for i := range 40 {
		f.save(orderPaid{OrderID: fmt.Sprint(i % 4), Seq: i}) // order 1 has all the history
	}
	f.once()
	hurryWaiting(mine)
	f.once()
	crowd(f, mine)
	lease := 3 * time.Second // so that some are renewed
	if f.db.Dialect().Name().String() == "sqlite" {
		lease = 20 * time.Second // whoever waits for the one writer must not lose his
	}
	f.run(outbox.PublisherConfig{Lease: lease, Poll: 20 * time.Millisecond})
	for i := range 20 {
		f.save(orderPaid{OrderID: fmt.Sprint(i % 4), Seq: 10})
	}
	hurried := func(ok func() bool, what string) { // now and then, for SQLite has one writer
		f.t.Helper()
		require.Eventually(f.t, func() bool { hurryWaiting(mine); return ok() }, testdb.Patience(), 500*time.Millisecond, what)
	}
	hurried(func() bool {
		return mine.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE consumer_name = 'B' AND status = 'DEAD'") == 1
	}, "one is DEAD")
	op := outbox.Operation{Actor: "test", Reason: "exercise"}
	var dead string
	require.NoError(f.t, mine.db.QueryRowContext(f.t.Context(), "SELECT event_id FROM bc_event_consume_log WHERE consumer_name = 'B' "+
		"AND status = 'DEAD'").Scan(&dead))
	require.NoError(f.t, f.ob.Skip(f.t.Context(), op, dead, "B"))
	delivered := func() bool {
		return mine.count("SELECT COUNT(*) FROM bc_outbox_event WHERE status IN ('NEW', 'SCHEDULED', 'DISPATCHING', 'FAILED', 'DEAD')") == 0
	}
	hurried(delivered, "everything is delivered")
	for range 5 { // with nothing else to do: they are handed over
		f.save(orderPaid{OrderID: "5", Seq: 10})
		hurried(delivered, "this too")
	}
	for range 3 { // in transactions that bun does not see: their commits are looked for
		tx, err := f.db.DB.BeginTx(f.t.Context(), nil)
		require.NoError(f.t, err)
		require.NoError(f.t, f.ob.Save(f.t.Context(), tx, orderPaid{OrderID: "5", Seq: 10}))
		require.NoError(f.t, tx.Commit())
		hurried(delivered, "and what was saved by others")
	}
	known := keyedPaid{orderPaid{OrderID: "6", Seq: 10}}
	for range 2 {
		f.save(known)
		f.save(keyedPaid{orderPaid{OrderID: "7", Seq: 10}}, known)
	}
	hurried(delivered, "and what has a key")
	mine.exec("INSERT INTO bc_bulk_operation (operation_id, action, request, actor, reason, consumer_name, up_to) " +
		"VALUES ('b', 'start', '{}', 'a', 'r', 'Z', 9000000000)")
	_, _, err := f.ob.OpenEvents(f.t.Context(), f.db, 0, "ORDER", "2", "Z") // order 1 is the whole table
	require.NoError(f.t, err)
	require.NoError(f.t, f.ob.Sweep(f.t.Context()))
}

// forgetKeys does to keys of the history what retention does when their events go, and when they have been kept for long enough.
func forgetKeys(f *fixture) {
	d, err := dialect.Of(f.db)
	require.NoError(f.t, err)
	keys, ids := store.NewKeys(d), make([]string, 500)
	for i := range ids {
		ids[i] = fmt.Sprintf("h-%d", 10*i+1)
	}
	require.NoError(f.t, keys.Mark(f.t.Context(), f.db, ids))
	_, err = keys.Forget(f.t.Context(), f.db, -dialect.Micro(time.Hour), len(ids))
	require.NoError(f.t, err)
}

// leaveVersions makes instances leave deliveries to others, and take what others have left.
func leaveVersions(f, mine *fixture) {
	old := newFixture(f.t, f.db)
	old.oldShape("D", bus.ConsumerConfig{})
	f.newShape("D", bus.ConsumerConfig{})
	f.save(shaped2{"20", 1})
	old.once()
	mine.exec("UPDATE bc_event_consume_log SET next_retry_at = created_at WHERE consumer_name = 'D' AND status = 'PENDING' " +
		"AND status <> 'SUCCESS'")
	old.once()
	require.Equal(f.t, 1, mine.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE consumer_name = 'D' AND status = 'PENDING' "+
		"AND lock_version = 2"), "claimed once, and left again")
	f.once()
	require.Equal(f.t, 1, mine.count("SELECT COUNT(*) FROM effect WHERE consumer = 'D'"))
}

// crowded is more than a claim lists of what is ahead of it.
const crowded = 230

// crowd makes claims find whole pages behind an event that another instance has leased.
func crowd(f, mine *fixture) {
	events := make([]bus.Event, crowded)
	for i := range events {
		events[i] = orderPaid{OrderID: "9", Seq: 10}
	}
	f.save(events...)
	f.save(orderPaid{OrderID: "10", Seq: 10})
	first := " WHERE id = (SELECT id FROM (SELECT MIN(id) AS id FROM bc_outbox_event WHERE aggregate_type = 'ORDER' " +
		"AND aggregate_id = '9') AS f)"
	later := map[string]string{
		"mysql": "UTC_TIMESTAMP(6) + INTERVAL 1 HOUR", "pg": "now() + interval '1 hour'",
		"sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now', '+1 hours') || '000')",
	}[f.db.Dialect().Name().String()]
	mine.exec("UPDATE bc_outbox_event SET status = 'DISPATCHING', locked_by = 'another', next_retry_at = " + later + first)
	f.once()
	require.Equal(f.t, crowded, mine.count("SELECT COUNT(*) FROM bc_outbox_event WHERE aggregate_type = 'ORDER' AND aggregate_id = '9' "+
		"AND status <> 'SENT'"))
	require.Zero(f.t, mine.count("SELECT COUNT(*) FROM bc_outbox_event WHERE aggregate_type = 'ORDER' AND aggregate_id = '10' "+
		"AND status = 'NEW'"))
	mine.exec("UPDATE bc_outbox_event SET status = 'NEW', locked_by = NULL" + first)
}

// hurryWaiting makes waiting deliveries due, by the index of their consumers.
func hurryWaiting(f *fixture) {
	past := map[string]string{
		"mysql": "UTC_TIMESTAMP(6)", "pg": "statement_timestamp()",
		"sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')",
	}[f.db.Dialect().Name().String()]
	for _, consumer := range []string{"A", "B", "C"} {
		for _, status := range []string{"PENDING", "FAILED"} {
			f.exec("UPDATE bc_event_consume_log SET next_retry_at = "+past+" WHERE consumer_name = ? AND status = ? AND status <> 'SUCCESS'",
				consumer, status)
		}
	}
}

var scan = regexp.MustCompile(`type=(ALL|index) .*rows=\d{5,}|Using filesort.*rows=\d{5,}|rows=\d{5,}.*Using filesort|` +
	`Seq Scan on bc_(outbox|event)|detail=SCAN (bc_|e\b|l\b|p\b)`)
