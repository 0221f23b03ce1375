package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
)

// What has failed for too long is leased with the error of its last run: of the consumer, of the types, and due.
func TestDeliveriesThatHaveFailedForTooLongAreLeased(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		for _, id := range []string{"old", "young", "later", "pending", "other type"} {
			f.waiting(id, id)
			f.set(id, "status = 'FAILED', attempts = 3, error_message = 'no', first_run_at = "+f.d.After, -dialect.Micro(3*time.Hour))
		}
		f.set("young", "first_run_at = "+f.d.Now)
		f.set("later", "next_retry_at = "+f.d.After, dialect.Micro(time.Hour))
		f.set("pending", "status = 'PENDING'")
		f.set("other type", "event_type = 'c.d'")
		q := store.AgedQuery{Consumer: "C", Types: []string{"a.b"}, Owner: "me", Lease: time.Hour, Age: 2 * time.Hour, Limit: 10}
		claim := func(q store.AgedQuery) []store.Aged {
			aged, err := f.log.ClaimAged(f.t.Context(), q)
			require.NoError(f.t, err)
			return aged
		}
		of := q
		of.Consumer = "D"
		require.Empty(f.t, claim(of))
		aged := claim(q)
		require.Len(f.t, aged, 1)
		require.Equal(f.t, []any{"old", "no", 4}, []any{aged[0].EventID, aged[0].Error, aged[0].Attempts})
		require.InDelta(f.t, 3*time.Hour, aged[0].SinceFirstRun, float64(30*time.Minute))
		require.Equal(f.t, deliveryRow{
			status: store.Processing, attempts: 3, version: 1, owner: "me", due: "later", ran: true, err: "no",
		}, f.row("old"))
		require.Empty(f.t, claim(q), "it is leased")
	})
}
