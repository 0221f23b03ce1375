package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/internal/testplan"
)

// A look tells what of its question is due, and nothing else, in one statement; to ask for nothing costs none.
func TestALookTellsWhatIsDue(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		c, everything := f.claims(), store.DueQuestion{New: true, Scheduled: true, Expired: true, Deliveries: true, Left: []string{"C", "D"}}
		count := testplan.Count(f.db)
		look := func(q store.DueQuestion) store.DueAnswer {
			f.t.Helper()
			before := count.N()
			a, err := c.LookForDue(f.t.Context(), f.db, q)
			require.NoError(f.t, err)
			require.LessOrEqual(f.t, count.N(), before+1)
			return a
		}
		require.Zero(f.t, look(everything))
		before := count.N()
		require.Zero(f.t, look(store.DueQuestion{}))
		require.Equal(f.t, before, count.N())

		f.put("not yet", "SCHEDULED", time.Hour, 0)
		f.put("leased", "DISPATCHING", time.Hour, 1)
		f.put("sent", "SENT", -time.Hour, 1)
		require.Zero(f.t, look(everything))
		f.put("new", "NEW", time.Hour, 0)
		require.Equal(f.t, store.DueAnswer{New: true}, look(everything))
		f.put("delayed", "SCHEDULED", -time.Minute, 0)
		require.Equal(f.t, store.DueAnswer{New: true, Scheduled: true}, look(everything))
		require.Equal(f.t, store.DueAnswer{Scheduled: true}, look(store.DueQuestion{Scheduled: true, Expired: true}))
		f.put("expired", "DISPATCHING", -time.Minute, 1)
		require.Equal(f.t, store.DueAnswer{Expired: true}, look(store.DueQuestion{Expired: true}))
		testdb.Exec(f.t, f.db, "DELETE FROM bc_outbox_event")

		testdb.Exec(f.t, f.db, "INSERT INTO bc_consumer (name, event_types, aliases) VALUES ('C', '[]', '[]')")
		f.waiting("due", "1")
		require.Equal(f.t, store.DueAnswer{Consumers: []string{"C"}}, look(everything))
		f.set("due", "next_retry_at = "+f.d.Never)
		require.Equal(f.t, store.DueAnswer{Left: true}, look(everything))
		require.Zero(f.t, look(store.DueQuestion{Deliveries: true, Left: []string{"D"}}))
	})
}

// A look reads nothing that is done, also where the database believes that much of it is due, because it was when it was counted:
// PostgreSQL would take the whole table for the quickest way to the first of so many.
func TestALookReadsNothingThatIsDone(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		testdb.Exec(f.t, f.db, "INSERT INTO bc_consumer (name, event_types, aliases) VALUES ('C', '[]', '[]')")
		testplan.Fill(f.t, f.db, testplan.Enough(f.db, 12_000), "1", "C")
		for table, states := range map[string][]string{
			"bc_outbox_event":      {"NEW", "SCHEDULED", "DISPATCHING"},
			"bc_event_consume_log": {"PENDING", "FAILED", "PROCESSING"},
		} {
			for i, status := range states {
				testdb.Exec(f.t, f.db, "UPDATE "+table+" SET status = ?, next_retry_at = created_at WHERE id % 5 = ?", status, i)
			}
			testdb.Exec(f.t, f.db, "UPDATE "+table+" SET next_retry_at = "+f.d.Never+" WHERE status = 'PENDING' AND id % 2 = 0") // left to others
			testdb.Exec(f.t, f.db, map[string]string{"mysql": "ANALYZE TABLE " + table, "postgres": "ANALYZE", "sqlite": "ANALYZE"}[f.d.Name])
		}
		testdb.Exec(f.t, f.db, "UPDATE bc_outbox_event SET status = 'SENT'")
		testdb.Exec(f.t, f.db, "UPDATE bc_event_consume_log SET status = 'SUCCESS'")
		sent := testplan.Record(f.db, "bc_outbox_event", "bc_event_consume_log")
		due, err := f.claims().LookForDue(f.t.Context(), f.db,
			store.DueQuestion{New: true, Scheduled: true, Expired: true, Deliveries: true, Left: []string{"C"}})
		require.NoError(f.t, err)
		require.Zero(f.t, due)
		queues, left := store.NewQueues(f.d, prepared.New(f.db)), store.NewLeft(f.d)
		for _, look := range []func(context.Context, bun.IDB) ([]string, error){
			queues.DueConsumers, queues.Leased, queues.PutOff, queues.Timeless,
			func(ctx context.Context, db bun.IDB) ([]string, error) { return queues.DueFor(ctx, db, time.Minute) },
		} {
			found, err := look(f.t.Context(), f.db)
			require.NoError(f.t, err)
			require.Empty(f.t, found)
		}
		page, err := left.Page(f.t.Context(), f.db, "C", 0, 10)
		require.NoError(f.t, err)
		require.Empty(f.t, page)
		long, err := left.Long(f.t.Context(), f.db, time.Minute)
		require.NoError(f.t, err)
		require.Empty(f.t, long)
		sent.Require(f.t, f.db, history, 7)
	})
}
