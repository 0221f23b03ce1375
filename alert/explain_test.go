package alert_test

import (
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/alert"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/internal/testplan"
	"github.com/bluecone-go/bluecone/migrations"
)

// scan is how a plan says that it reads one of the large tables from end to end, or sorts what it has
// read of them. A walk along the primary key that a LIMIT ends is no scan.
var scan = regexp.MustCompile(`(?m)table=(?:e|c|bc_\w+) .*type=ALL .*rows=\d{5,}|` +
	`table=(?:e|c|bc_\w+) .*type=index .* key=(?:idx|uk)\w+ .*rows=\d{5,}|` +
	`table=(?:e|c|bc_\w+) .*rows=\d{5,}.*Using filesort|` +
	`Seq Scan on bc_(?:outbox_event|event_consume_log)(?: \w+)?  \(|detail=SCAN (?:e|c)\b(?: USING COVERING INDEX)? ?$`)

// However long the history is, a look reads only what waits, and the end of the log.
func TestNoLookScansTheHistory(t *testing.T) {
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
			registered(t, mine, "WalletConsumer", 0)
			testplan.Fill(t, mine, testplan.Enough(mine, 100_000), "old", "WalletConsumer")
			event(t, mine, "NEW", "order.paid", time.Hour)
			event(t, mine, "DEAD", "order.paid", time.Hour)
			delivery(t, mine, "DEAD", "WalletConsumer", "order.paid", 10, time.Hour)
			delivery(t, mine, "FAILED", "WalletConsumer", "order.paid", 0, time.Hour)
			attempt(t, mine, "WalletConsumer", time.Minute)
			job(t, mine, "lock_timeout_reaper", "FAILED", 5*time.Minute)
			db := testdb.OpenDSN(t, dsn)
			asked := testplan.Record(db, "bc_outbox_event", "bc_event_consume_log", "bc_delivery_attempt")
			look(t, newAlerter(t, db, alert.Config{Routes: to(&inbox{})}))
			asked.Require(t, mine, scan, 4)
		})
	}
}
