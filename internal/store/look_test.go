package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/store"
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
		exec(f.t, f.db, "DELETE FROM bc_outbox_event")

		exec(f.t, f.db, "INSERT INTO bc_consumer (name, event_types, aliases) VALUES ('C', '[]', '[]')")
		f.waiting("due", "1")
		require.Equal(f.t, store.DueAnswer{Consumers: []string{"C"}}, look(everything))
		f.set("due", "next_retry_at = "+f.d.Never)
		require.Equal(f.t, store.DueAnswer{Left: true}, look(everything))
		require.Zero(f.t, look(store.DueQuestion{Deliveries: true, Left: []string{"D"}}))
	})
}
