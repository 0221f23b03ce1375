package ops_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/internal/testplan"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

// history is how many SENT events lie in the tables: BLUECONE_TEST_HISTORY, or 100 000.
func history() int {
	n := 100_000
	if s := os.Getenv("BLUECONE_TEST_HISTORY"); s != "" {
		_, _ = fmt.Sscan(s, &n)
	}
	return n
}

// Every statement of the operations API finds its rows by an index, or looks at a bounded number,
// however long the history is.
func TestNoStatementOfAReaderScansTheHistory(t *testing.T) {
	if testing.Short() {
		t.Skip("it fills tables with many rows")
	}
	t.Parallel()
	for _, dialect := range testdb.Dialects() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.DSN(t, dialect)
			mine := testdb.OpenDSN(t, dsn)
			require.NoError(t, migrations.Up(t.Context(), mine))
			f := newFixture(t, mine, ops.Config{}).consumers()
			for i := range 5 {
				f.save(outbox.With(paid{OrderID: itoa(i), Note: "die"}, outbox.Meta(bus.MetaTraceID, "trace")))
			}
			f.save(paid{OrderID: "6", Note: "fail"})
			f.once()
			f.save(noted{OrderID: "1"})
			testplan.Fill(t, mine, testplan.Enough(mine, history()), "old", "Steady")
			db := testdb.OpenDSN(t, dsn)
			asked := testplan.Record(db, "bc_outbox_event", "bc_event_consume_log", "bc_audit_log", "bc_delivery_attempt")
			everything(t, newFixture(t, db, ops.Config{Timeout: 20 * time.Second}))
			asked.Require(t, mine, scan, 40)
		})
	}
}

// everything asks the API all it can answer, and does what it can do.
func everything(t *testing.T, f *fixture) {
	t.Helper()
	ctx, hour := t.Context(), time.Now().Add(-time.Hour)
	for _, q := range []ops.Query{
		{},
		{EventID: paidID("1")},
		{AggregateID: "1"},
		{AggregateType: "ORDER", AggregateID: "1", Status: outbox.StatusNew},
		{IdempotencyKey: "order:1:paid"},
		{TraceID: "trace"},
		{TraceID: "trace", TenantID: 7},
		{TenantID: 7},
		{EventType: "order.noted"},
		{Status: outbox.StatusSent},
		{Status: outbox.StatusDead},
		{Status: outbox.StatusNew, EventType: "order.noted"},
		{Status: outbox.StatusFailed, Since: hour},
		{Since: hour, Until: time.Now().Add(time.Hour)},
		{Consumer: "Moody"},
		{Consumer: "Moody", TenantID: 7, EventType: "order.paid", AggregateID: "1"},
		{Consumer: "Moody", DeliveryStatus: consumelog.Failed, Since: hour},
		{Consumer: "Steady", DeliveryStatus: consumelog.Success},
		{Consumer: "Steady", DeliveryStatus: consumelog.Success, Since: hour, Status: outbox.StatusDead},
	} {
		for range 3 {
			q.Limit = 2
			p, err := f.ops.Events(ctx, q)
			require.NoError(t, err)
			if q.Cursor = p.Next; q.Cursor == "" {
				break
			}
		}
		_, err := f.ops.Count(ctx, q)
		require.NoError(t, err)
	}
	groups, err := f.ops.Dead(ctx)
	require.NoError(t, err)
	require.NotEmpty(t, groups)
	_, err = f.ops.Events(ctx, ops.Query{Fingerprint: groups[0].Fingerprint, Limit: 2})
	require.NoError(t, err)
	for _, tenants := range [][]int64{nil, {7}} {
		_, err = f.ops.Overview(ops.WithCaller(ctx, ops.Caller{Name: "anna", Tenants: tenants}))
		require.NoError(t, err)
	}
	for _, key := range []string{paidID("1"), "1", "ORDER/1", "order:1:paid", "steady:1", "trace"} {
		_, err = f.ops.Trace(ctx, key)
		require.NoError(t, err, key)
	}
	_, err = f.ops.Audit(ctx, ops.AuditQuery{Target: paidID("1")})
	require.NoError(t, err)
	_, err = f.ops.Payload(ctx, op, paidID("1"))
	require.NoError(t, err)
	require.NoError(t, f.ops.Skip(ctx, op, paidID("0"), "Moody"))
	require.NoError(t, f.ops.Replay(ctx, op, paidID("0"), "Steady"))
	for action, q := range map[ops.Action]ops.Query{
		ops.ActionRetry:  {Fingerprint: groups[0].Fingerprint},
		ops.ActionReplay: {AggregateID: "6"}, ops.ActionDiscard: {Status: outbox.StatusNew},
	} {
		_, err := f.ops.StartBulk(ctx, op, ops.NewBulk{
			Action: action, Query: q, Consumer: map[ops.Action]string{ops.ActionReplay: "Steady"}[action], Rate: 10_000,
		})
		require.NoError(t, err)
		_, err = f.ops.RunBulkOnce(ctx)
		require.NoError(t, err)
	}
	stop, cancel := context.WithTimeout(ctx, 100*time.Millisecond) // one sample
	defer cancel()
	require.NoError(t, f.ops.Run(stop))
}

// scan is how a plan says that it reads a large table from end to end, or sorts what it has read. A
// derived table holds a bounded number of rows, and the archives are empty. A walk along the primary
// key that a LIMIT ends is no scan, although MySQL estimates it as one.
var scan = regexp.MustCompile(`(?m)table=(?:e|l|bc_\w+) .*type=ALL .*rows=\d{5,}|` +
	`table=(?:e|l|bc_\w+) .*type=index .* key=(?:idx|uk)\w+ .*rows=\d{5,}|` +
	`table=(?:e|l|bc_\w+) .*rows=\d{5,}.*Using filesort|` +
	`Seq Scan on bc_(?:outbox_event|event_consume_log)(?: \w+)?  \(|detail=SCAN (?:e|l)\b`)
