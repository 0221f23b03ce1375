package consistency_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/consistency"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/internal/testplan"
)

// The built-in checks ask as often about thousands of consumers as about twenty, and find the one that an event never
// reached.
func TestBuiltInChecksOfManyConsumers(t *testing.T) {
	t.Parallel()
	testplan.AsManyStatements(t, func(t *testing.T, dialect string, n int) (asked int) {
		t.Helper()
		d := newDepot(t, testdb.Open(t, dialect))
		testplan.Consumers(t, d.db, n)
		past := map[string]string{
			"mysql": "UTC_TIMESTAMP(6) - INTERVAL 1 HOUR", "pg": "now() - interval '1 hour'",
			"sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now', '-1 hours') || '000')",
		}[d.db.Dialect().Name().String()]
		d.exec("UPDATE bc_consumer SET registered_at = " + past)
		d.exec("INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, status) " +
			"VALUES ('ORDER', '1', 'order.paid', 'done', '{}', 'SENT')")
		d.exec("DELETE FROM bc_event_consume_log WHERE consumer_name = ?", testplan.Consumer(n/2))
		d.exec("INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status) " +
			"VALUES ('Ghost', 'orphan', 'order.paid', 'PENDING')")
		c, err := consistency.New(d.db, consistency.Config{Grace: time.Millisecond, Logger: quiet}, consistency.BuiltIn()...)
		require.NoError(t, err)
		count := testplan.Count(d.db)
		report, err := c.Look(t.Context())
		require.NoError(t, err)
		asked = count.N()
		require.Equal(t, []string{testplan.Consumer(n/2) + " done"}, report["bluecone.undelivered"].Keys)
		require.Equal(t, []string{"Ghost orphan"}, report["bluecone.unregistered"].Keys)
		return asked
	})
}
