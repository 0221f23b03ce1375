package alert_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/alert"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/internal/testplan"
	"github.com/bluecone-go/bluecone/migrations"
)

// One look finds the consumer that is stuck, and the one that is paused, among thousands, by as many statements as
// among twenty.
func TestLookFindsAStuckConsumerAmongMany(t *testing.T) {
	t.Parallel()
	testplan.AsManyStatements(t, func(t *testing.T, dialect string, n int) (asked int) {
		t.Helper()
		dsn := testdb.DSN(t, dialect)
		mine := testdb.OpenDSN(t, dsn)
		require.NoError(t, migrations.Up(t.Context(), mine))
		testplan.Consumers(t, mine, n)
		pause(t, mine, n)
		delivery(t, mine, "FAILED", testplan.Consumer(n-1), "order.paid", 3, time.Hour)
		delivery(t, mine, "DEAD", "Unregistered", "order.paid", 10, time.Hour)
		db := testdb.OpenDSN(t, dsn)
		told := &inbox{}
		a := newAlerter(t, db, alert.Config{Routes: to(told)})
		count := testplan.Count(db)
		require.NoError(t, alert.Observe(t.Context(), a))
		asked = count.N()
		require.EqualValues(t, 3, look(t, a).Found)
		var consumers []string
		for _, notice := range told.got() {
			consumers = append(consumers, notice.Consumer)
		}
		require.ElementsMatch(t, []string{testplan.Consumer(n - 1), testplan.Consumer(1), "Unregistered"}, consumers)
		return asked
	})
}

// pause pauses ten of n consumers, of which only the first has been for too long.
func pause(t *testing.T, db *bun.DB, n int) {
	t.Helper()
	for i := range 10 {
		at := ago(t, db, time.Duration(10-i)*time.Minute)
		if i == 0 {
			at = ago(t, db, 2*time.Hour)
		}
		consumer := testplan.Consumer(1 + i)
		require.Less(t, 1+i, n-1)
		sqlExec(t, db, "UPDATE bc_consumer SET paused_by = 'ann', paused_until = "+ago(t, db, -time.Hour)+" WHERE name = ?", consumer)
		sqlExec(t, db, "INSERT INTO bc_audit_log (actor, action, target, reason, created_at) VALUES ('ann', 'pause', ?, 'a test', "+at+")",
			consumer)
	}
}
