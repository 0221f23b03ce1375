package remote_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

func (h *house) exec(query string, args ...any) {
	h.t.Helper()
	_, err := h.db.ExecContext(h.t.Context(), query, args...)
	require.NoError(h.t, err, query)
}

// A delivery whose event is gone, or cannot be read, ends DEAD with the reason, and the others are handed out.
func TestWhatCannotBeHandedOutEndsDead(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		h := newHouse(t, db)
		h.save("gone", "hostile", "good")
		h.exec("DELETE FROM bc_outbox_event WHERE event_id = 'gone-0'")
		h.exec("UPDATE bc_outbox_event SET event_metadata = '[]' WHERE event_id = 'hostile-1'")
		require.Equal(t, []string{"good-2"}, ids(h.fetch(10)))
		var errs []string
		require.NoError(t, db.NewRaw("SELECT error_message FROM bc_event_consume_log WHERE status = 'DEAD' ORDER BY event_id").
			Scan(t.Context(), &errs))
		require.Len(t, errs, 2)
		require.Equal(t, "the event's row does not exist any more", errs[0])
		require.Contains(t, errs[1], "metadata")
		require.Equal(t, "DEAD", h.status("hostile-1"))
	})
}

// What does not fit into the bytes that a program takes is handed out by the next call.
func TestFetchTakesNoMoreBytesThanAskedFor(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		h := newHouse(t, db)
		h.save("a", "b")
		ds, err := h.rem.Fetch(t.Context(), consumer, []string{"order.paid"}, 10, 1)
		require.NoError(t, err)
		require.Equal(t, []string{"a-0"}, ids(ds), "one at least")
		h.past()
		h.exec("UPDATE bc_event_consume_log SET status = 'SUCCESS' WHERE event_id = 'a-0'")
		require.Equal(t, []string{"b-1"}, ids(h.fetch(10)))
	})
}

// A publisher that had read the registry before a consumer was registered may park its events: they are made due for seconds after it.
func TestEventsParkedJustAfterARegistrationAreMadeDue(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		h := newHouse(t, db)
		require.NoError(t, h.rem.UnparkLate(t.Context()), "it is too early for the first time")
		h.exec("INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, status, lock_version, "+
			"next_retry_at) VALUES ('ORDER', '1', 'order.paid', 'late', '{}', 'SCHEDULED', 2, "+h.d.After+")", dialect.Micro(lease))
		isDue := func() bool {
			require.NoError(t, h.rem.UnparkLate(t.Context()))
			return testdb.Count(t, db, "SELECT COUNT(*) FROM bc_outbox_event WHERE next_retry_at <= "+h.d.Now) == 1
		}
		testdb.Eventually(t, isDue, "it is made due half a second after the registration")
		h.publish()
		require.Equal(t, []string{"late"}, ids(h.fetch(10)))
	})
}
