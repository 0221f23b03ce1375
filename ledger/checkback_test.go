package ledger_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ledger"
	"github.com/bluecone-go/bluecone/migrations"
)

func migrated(t *testing.T, dsn string) *bun.DB {
	t.Helper()
	db := testdb.OpenDSN(t, dsn)
	require.NoError(t, migrations.Up(t.Context(), db))
	return db
}

// A producer that has neither confirmed nor canceled is asked, again while it does not know, and what it says counts.
func TestCheckBackAsksTheProducer(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *bun.DB) {
		var mu sync.Mutex
		asked := make(map[string]int)
		producer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var q struct{ ReservationToken, EventID string }
			if err := json.NewDecoder(r.Body).Decode(&q); err != nil || q.ReservationToken == "" {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			asked[q.EventID]++
			state := map[string]string{"committed": "CONFIRMED", "rolled-back": "CANCELED"}[q.EventID]
			if asked[q.EventID] == 1 {
				state = "UNKNOWN"
			}
			_, _ = w.Write([]byte(`{"state":"` + state + `"}`))
		}))
		t.Cleanup(producer.Close)
		i := serve(t, db, ledger.Config{})
		tokens := make(map[string]string)
		for _, id := range []string{"committed", "rolled-back"} {
			got := i.ok("shop-token", "Reserve", js(t, map[string]any{"ttl": "1s", "event": map[string]any{
				"eventType": "order.paid", "aggregateType": "ORDER", "aggregateId": id, "payload": map[string]any{}, "eventId": id,
				"checkUrl": producer.URL + "/check",
			}}))
			tokens[id], _ = got["reservationToken"].(string)
		}
		for id, want := range map[string]string{"committed": "CONFIRMED", "rolled-back": "CANCELED"} {
			require.Eventually(t, func() bool {
				return i.ok("shop-token", "QueryReservation", `{"reservationToken":"`+tokens[id]+`"}`)["state"] == want
			}, testdb.Patience(), 100*time.Millisecond)
		}
		require.Equal(t, "committed", i.fetch()[0]["event"].(map[string]any)["eventId"])
		mu.Lock()
		defer mu.Unlock()
		require.GreaterOrEqual(t, asked["committed"], 2, "UNKNOWN is asked again")
	})
}
