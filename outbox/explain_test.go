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
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/internal/testplan"
	"github.com/bluecone-go/bluecone/outbox"
)

// Every statement that the engine sends finds its rows by an index, however long the history is.
func TestNoStatementScansTheHistory(t *testing.T) {
	if testing.Short() {
		t.Skip("it fills tables with a million rows")
	}
	t.Parallel()
	for _, dialect := range testdb.Dialects() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.DSN(t, dialect)
			mine := newFixture(t, migrated(t, dsn)) // for what the test itself asks
			testplan.Fill(t, mine.db, testplan.Enough(mine.db, 1_000_000), "1", "A")
			f := mine.another(dsn)
			sent := testplan.Record(f.db, "bc_outbox_event", "bc_event_consume_log")
			exercise(f, mine)
			sent.Require(t, mine.db, scan, 25)
			if dialect == "postgres" {
				testplan.RequirePrepared(t, f.db, scan, 4)
			}
		})
	}
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
	for i := range 40 {
		f.save(orderPaid{OrderID: fmt.Sprint(i % 4), Seq: i}) // order 1 has all the history
	}
	f.once()
	hurryWaiting(mine)
	f.once()
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
		require.Eventually(f.t, func() bool { hurryWaiting(mine); return ok() }, 2*time.Minute, 500*time.Millisecond, what)
	}
	hurried(func() bool {
		return mine.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE consumer_name = 'B' AND status = 'DEAD'") == 1
	}, "one is DEAD")
	op := outbox.Operation{Actor: "test", Reason: "exercise"}
	var dead string
	require.NoError(f.t, mine.db.QueryRowContext(f.t.Context(), "SELECT event_id FROM bc_event_consume_log WHERE consumer_name = 'B' AND status = 'DEAD'").Scan(&dead))
	require.NoError(f.t, f.ob.Skip(f.t.Context(), op, dead, "B"))
	hurried(func() bool {
		return mine.count("SELECT COUNT(*) FROM bc_outbox_event WHERE status IN ('NEW', 'SCHEDULED', 'DISPATCHING', 'FAILED', 'DEAD')") == 0
	}, "everything is delivered")
	require.NoError(f.t, f.ob.Sweep(f.t.Context()))
}

// hurryWaiting makes waiting deliveries due, by the index of their consumers.
func hurryWaiting(f *fixture) {
	past := map[string]string{"mysql": "UTC_TIMESTAMP(6)", "pg": "statement_timestamp()", "sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')"}[f.db.Dialect().Name().String()]
	for _, consumer := range []string{"A", "B", "C"} {
		for _, status := range []string{"PENDING", "FAILED"} {
			f.exec("UPDATE bc_event_consume_log SET next_retry_at = "+past+" WHERE consumer_name = ? AND status = ? AND status <> 'SUCCESS'", consumer, status)
		}
	}
}

var scan = regexp.MustCompile(`type=(ALL|index) .*rows=\d{5,}|Using filesort.*rows=\d{5,}|rows=\d{5,}.*Using filesort|Seq Scan on bc_|detail=SCAN (bc_|e\b|l\b|p\b)`)
