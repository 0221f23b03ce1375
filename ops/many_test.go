package ops_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/internal/testplan"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/ops"
)

// failing is how many of many consumers have failed, the last ones.
const failing = 20

// manyConsumers registers n consumers. Deliveries to the last ones have failed.
func manyConsumers(t *testing.T, db *bun.DB, n int) {
	t.Helper()
	testplan.Consumers(t, db, n)
	for i := n - failing + 1; i <= n; i++ {
		for status, tenant := range map[string]int{"DEAD": 7, "FAILED": 8} {
			_, err := db.ExecContext(t.Context(), "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, "+
				"error_message, tenant_id) VALUES (?, ?, 'order.paid', ?, ?, ?)",
				testplan.Consumer(i), status, status, "it is "+status, tenant)
			require.NoError(t, err)
		}
		_, err := db.ExecContext(t.Context(), "INSERT INTO bc_delivery_attempt (event_id, consumer_name, attempt, outcome, error_message, "+
			"instance, duration_us) VALUES ('DEAD', ?, 1, 'DEAD', 'no such order', 'i', 1)", testplan.Consumer(i))
		require.NoError(t, err)
	}
}

// Thousands of consumers are all listed, with what waits for them, by as many statements as twenty.
func TestManyConsumersAreListed(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Dialects() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			asked := make(map[int]int)
			for _, n := range []int{failing, 2000} {
				dsn := testdb.DSN(t, dialect)
				mine := testdb.OpenDSN(t, dsn)
				require.NoError(t, migrations.Up(t.Context(), mine))
				manyConsumers(t, mine, n)
				db := testdb.OpenDSN(t, dsn)
				count := testplan.Count(db)
				requireMany(t, newFixture(t, db, ops.Config{Timeout: time.Minute}), n)
				asked[n] = count.N()
			}
			require.Positive(t, asked[failing])
			// A slow machine reads again what is shared for a second.
			require.LessOrEqual(t, asked[2000], asked[failing]+10, "statements")
		})
	}
}

func requireMany(t *testing.T, f *fixture, n int) {
	t.Helper()
	v, err := f.ops.Overview(t.Context())
	require.NoError(t, err)
	require.Len(t, v.Consumers, n)
	require.EqualValues(t, failing, v.Deliveries[consumelog.Dead].Count)
	require.EqualValues(t, failing, v.Deliveries[consumelog.Failed].Count)
	last := v.Consumers[n-1]
	require.Equal(t, testplan.Consumer(n), last.Name)
	require.Equal(t, ops.Count{Count: 1}, last.Dead)
	require.Equal(t, ops.Count{Count: 1}, last.Failed)
	require.NotZero(t, last.LastSuccess)
	require.Equal(t, "no such order", last.LastError)
	if n > failing {
		require.Zero(t, v.Consumers[0].Failed.Count)
	}
	groups, err := f.ops.Dead(t.Context())
	require.NoError(t, err)
	require.Len(t, groups, 2*failing)

	theirs := ops.WithCaller(t.Context(), ops.Caller{Name: "eight", Tenants: []int64{8}})
	consumers, err := f.ops.Consumers(theirs)
	require.NoError(t, err)
	require.Len(t, consumers, n)
	require.Zero(t, consumers[n-1].Dead.Count)
	require.Equal(t, ops.Count{Count: 1}, consumers[n-1].Failed)
}
