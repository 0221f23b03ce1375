package console

import (
	"net/http"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/internal/testplan"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

// Every page on a million events, with two connections: what make bench-console reports. How long
// something takes is no test, so it runs on request only.
func TestConsoleOnAMillionEvents(t *testing.T) { //nolint:paralleltest // it measures: one database after the other
	testdb.Measures(t)
	for _, dialect := range testdb.Dialects() { //nolint:paralleltest // see above
		t.Run(dialect, func(t *testing.T) {
			dsn := testdb.DSN(t, dialect)
			mine := testdb.OpenDSN(t, dsn)
			require.NoError(t, migrations.Up(t.Context(), mine))
			const n = 1_000_000
			numbers := testplan.Series(mine, n)
			text := func(prefix, value string) string {
				if testdb.Dialect(dialect) == "mysql" {
					return "CONCAT('" + prefix + "', " + value + ")"
				}
				return "'" + prefix + "' || (" + value + ")"
			}
			// one in a hundred is dead, for one of two reasons
			dead := func(yes, no string) string { return "CASE WHEN MOD(i, 100) = 0 THEN " + yes + " ELSE " + no + " END" }
			for _, statement := range []string{
				"INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, event_metadata, status, " +
					"lock_version) SELECT 'ORDER', " + text("o-", "MOD(i, 200000)") + ", 'order.paid', " + text("e-", "i") +
					", '{}', '{\"traceId\":\"t\"}', " + dead("'DEAD'", "'SENT'") + ", 2 FROM (" + numbers + ") AS n",
				"INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, outbox_id, aggregate_type, aggregate_id, attempts, status, " +
					"error_message) SELECT 'Points', event_id, event_type, id, aggregate_type, aggregate_id, 1, CASE WHEN status = 'DEAD' THEN 'DEAD' " +
					"ELSE 'SUCCESS' END, CASE WHEN status = 'DEAD' THEN " + text("points service: timeout of order ", "event_id") +
					" END FROM bc_outbox_event",
				"INSERT INTO bc_consumer (name, event_types, aliases) VALUES ('Points', 'order.paid', '')",
				map[string]string{
					"mysql": "ANALYZE TABLE bc_outbox_event, bc_event_consume_log", "postgres": "ANALYZE",
					"sqlite": "ANALYZE",
				}[testdb.Dialect(dialect)],
			} {
				_, err := mine.ExecContext(t.Context(), statement)
				require.NoError(t, err, statement)
			}
			db := testdb.OpenDSN(t, dsn)
			db.SetMaxOpenConns(2)
			ob, err := outbox.New(db, outbox.Config{Logger: quiet()})
			require.NoError(t, err)
			var forgetful struct{ deployment } // never a cached answer
			forget := func() {
				forgetful.deployment, err = ops.New(db, ob, ops.Config{Logger: quiet(), Publishable: []bus.Event{}})
				require.NoError(t, err)
			}
			forget()
			groups, err := forgetful.Dead(t.Context())
			require.NoError(t, err)
			c := newConsole(&forgetful, Config{Authorize: Anyone(everything()), Logger: quiet()})
			pages := []string{
				"", "events", "events?status=DEAD", "events?status=SENT", "events?aggregateId=o-77", "events?eventType=order.paid",
				"events?consumer=Points&deliveryStatus=DEAD", "events?since=24h", "event?id=e-5000", "forensics?key=o-100", "forensics?key=e-500",
				"bulk-new?action=retry&fingerprint=" + url.QueryEscape(groups[0].Fingerprint), "consumers", "dead", "jobs", "instances", "brokers",
				"reservations",
				"bulks",
				"bulk-new?action=retry&consumer=Points&deliveryStatus=DEAD", "publish", "audit",
			}
			for _, page := range append(pages, "doctor") {
				var times []time.Duration
				for range 5 {
					forget()
					began := time.Now()
					w := get(c, "/"+page)
					times = append(times, time.Since(began))
					require.Equal(t, http.StatusOK, w.Code, page)
				}
				slices.Sort(times)
				t.Logf("%-9s %-60s median %8v  worst %8v", dialect, page, times[2].Round(100*time.Microsecond), times[4].Round(100*time.Microsecond))
			}
			require.LessOrEqual(t, db.Stats().MaxOpenConnections, 2)
		})
	}
}
