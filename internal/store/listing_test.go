package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// Each filter that an index serves lists what it names, page by page; another one is refused.
func TestOnlyFiltersThatAnIndexServesList(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		addEvent(t, db, d, "a", "SENT", time.Hour)
		b := addEvent(t, db, d, "b", "FAILED", time.Hour)
		addEvent(t, db, d, "c", "FAILED", time.Hour)
		testdb.Exec(t, db, "UPDATE bc_outbox_event SET event_type = 'c.d' WHERE event_id = 'c'")
		for name, c := range map[string]struct {
			f    store.EventFilter
			want []string
		}{
			"id":                {store.EventFilter{EventID: "b"}, []string{"b"}},
			"aggregate":         {store.EventFilter{AggregateType: "A", AggregateID: "1"}, []string{"a", "b", "c"}},
			"another aggregate": {store.EventFilter{AggregateType: "A", AggregateID: "2"}, nil},
			"status":            {store.EventFilter{Status: "FAILED"}, []string{"b", "c"}},
			"sent":              {store.EventFilter{Status: "SENT"}, []string{"a"}},
			"status and type":   {store.EventFilter{Status: "FAILED", EventType: "c.d"}, []string{"c"}},
			"page":              {store.EventFilter{Status: "FAILED", After: b}, []string{"c"}},
		} {
			c.f.Limit = 10
			rows, err := store.ListEvents(t.Context(), db, d, c.f)
			require.NoError(t, err, name)
			var ids []string
			for _, r := range rows {
				ids = append(ids, r.EventID)
			}
			require.Equal(t, c.want, ids, name)
		}
		rows, err := store.ListEvents(t.Context(), db, d, store.EventFilter{Status: "FAILED", Limit: 1})
		require.NoError(t, err)
		require.Len(t, rows, 1)
		require.Zero(t, rows[0].SentAt)
		require.NotZero(t, rows[0].CreatedAt)
		require.JSONEq(t, "{}", rows[0].Payload)
		for _, f := range []store.EventFilter{{}, {EventType: "c.d"}, {AggregateType: "A"}, {AggregateID: "1"}} {
			_, err := store.ListEvents(t.Context(), db, d, f)
			require.ErrorIs(t, err, store.ErrUnindexed)
		}
		counts, err := store.CountEvents(t.Context(), db)
		require.NoError(t, err)
		require.Equal(t, map[string]int64{"SENT": 1, "FAILED": 2}, counts)
	})
}

// An event is open for everybody until it is fanned out, then for each consumer until its own delivery has ended.
func TestAnEventIsOpenUntilTheConsumersOwnDeliveryHasEnded(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		addEvent(t, db, d, "new", "NEW", 0)
		addEvent(t, db, d, "failed", "FAILED", 0)
		addDelivery(t, db, d, "failed", "Waits", "FAILED", 0)
		addDelivery(t, db, d, "failed", "Done", "SUCCESS", 0)
		addEvent(t, db, d, "dead", "DEAD", 0)
		addDelivery(t, db, d, "dead", "Waits", "SUCCESS", 0)
		addDelivery(t, db, d, "dead", "Buried", "DEAD", 0)
		addEvent(t, db, d, "sent", "SENT", 0)
		for consumer, want := range map[string]store.Open{
			"": {Waiting: 2, Dead: 1}, "Waits": {Waiting: 2}, "Done": {Waiting: 1}, "Buried": {Waiting: 1, Dead: 1},
		} {
			open, err := store.OpenEvents(t.Context(), db, d, store.Aggregate{Type: "A", ID: "1"}, consumer)
			require.NoError(t, err)
			require.Equal(t, want, open, consumer)
		}
		open, err := store.OpenEvents(t.Context(), db, d, store.Aggregate{Tenant: 7, Type: "A", ID: "1"}, "")
		require.NoError(t, err)
		require.Zero(t, open, "of another tenant")
	})
}

// An event that an instance has in flight is open for a consumer only while its own delivery has not ended.
func TestAnEventInFlightIsNotOpenForWhoeverHasHadIt(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		addEvent(t, db, d, "in flight", "DISPATCHING", 0)
		for status, want := range map[string]store.Open{
			"SUCCESS": {}, "SKIPPED": {}, "DEAD": {Dead: 1}, "PROCESSING": {Waiting: 1}, "PENDING": {Waiting: 1}, "FAILED": {Waiting: 1},
		} {
			addDelivery(t, db, d, "in flight", status, status, 0)
			open, err := store.OpenEvents(t.Context(), db, d, store.Aggregate{Type: "A", ID: "1"}, status)
			require.NoError(t, err)
			require.Equal(t, want, open, status)
		}
		open, err := store.OpenEvents(t.Context(), db, d, store.Aggregate{Type: "A", ID: "1"}, "None")
		require.NoError(t, err)
		require.Equal(t, store.Open{Waiting: 1}, open, "a consumer without a delivery")
	})
}

// An event that an open backfill still has to give to a consumer is open for it: of the types that it takes, after those that the
// backfill has reached, and up to where it ends.
func TestOpenEventsOfThePast(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		reached := addEvent(t, db, d, "reached", "SENT", 0)
		for _, status := range []string{"SENT", "FAILED", "DEAD"} {
			addEvent(t, db, d, "past "+status, status, 0)
		}
		addEvent(t, db, d, "had", "SENT", 0)
		addDelivery(t, db, d, "had", "New", "SUCCESS", 0)
		addEvent(t, db, d, "not taken", "SENT", 0)
		testdb.Exec(t, db, "UPDATE bc_outbox_event SET event_type = 'c.d' WHERE event_id = 'not taken'")
		last := addEvent(t, db, d, "last", "SENT", 0)
		addEvent(t, db, d, "later", "SENT", 0)
		for _, name := range []string{"New", "Other"} {
			testdb.Exec(t, db, "INSERT INTO bc_consumer_type (consumer_name, event_type) VALUES (?, 'a.b')", name)
		}
		open := func(a store.Aggregate, consumer string) store.Open {
			o, err := store.OpenEvents(t.Context(), db, d, a, consumer)
			require.NoError(t, err)
			return o
		}
		mine := store.Aggregate{Type: "A", ID: "1"}
		require.Zero(t, open(mine, "New"), "no backfill is open")
		testdb.Exec(t, db, "INSERT INTO bc_bulk_operation (operation_id, action, request, state, actor, reason, consumer_name, reached, up_to) "+
			"VALUES ('b', 'start', '{}', 'RUNNING', 'a', 'r', 'New', ?, ?)", reached, last)
		require.Equal(t, store.Open{Waiting: 4}, open(mine, "New"))
		require.Zero(t, open(mine, "Other"), "it has no backfill")
		require.Zero(t, open(store.Aggregate{Type: "A", ID: "2"}, "New"))
		require.Zero(t, open(store.Aggregate{Tenant: 7, Type: "A", ID: "1"}, "New"))
		for state, want := range map[string]int{"FAILED": 4, "DONE": 0, "CANCELED": 0} {
			testdb.Exec(t, db, "UPDATE bc_bulk_operation SET state = ?", state)
			require.Equal(t, store.Open{Waiting: want}, open(mine, "New"), state)
		}
		testdb.Exec(t, db, "UPDATE bc_bulk_operation SET state = 'RUNNING', up_to = 0")
		require.Equal(t, store.Open{Waiting: 5}, open(mine, "New"), "nobody has found out yet where the past ends")
	})
}

// An event is known by its row, wherever that is, and by finished deliveries if those count.
func TestAnEventIsKnownByItsRowOrItsFinishedDeliveries(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		addEvent(t, db, d, "event", "NEW", 0)
		testdb.Exec(t, db, "INSERT INTO bc_outbox_event_archive (id, aggregate_type, aggregate_id, event_type, event_id, event_payload) "+
			"VALUES (1, 'A', '1', 'a.b', 'archived', '{}')")
		addDelivery(t, db, d, "delivered", "A", "SUCCESS", 0)
		addDelivery(t, db, d, "open", "A", "SUCCESS", 0)
		addDelivery(t, db, d, "open", "B", "FAILED", 0)
		ids := []string{"event", "archived", "delivered", "open", "nothing"}
		known, err := store.Known(t.Context(), db, ids, false)
		require.NoError(t, err)
		require.Equal(t, map[string]bool{"event": true, "archived": true}, known)
		known, err = store.Known(t.Context(), db, ids, true)
		require.NoError(t, err)
		require.Equal(t, map[string]bool{"event": true, "archived": true, "delivered": true}, known)
	})
}

// What is before the engine are the events that are not SENT; the oldest is one that is due.
func TestTheBacklogIsWhatIsNotSent(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		b, err := store.MeasureBacklog(t.Context(), db, d)
		require.NoError(t, err)
		require.Zero(t, b)
		addEvent(t, db, d, "sent", "SENT", 9*time.Hour)
		addEvent(t, db, d, "dead", "DEAD", 8*time.Hour)
		addEvent(t, db, d, "delayed", "SCHEDULED", 7*time.Hour)
		testdb.Exec(t, db, "UPDATE bc_outbox_event SET next_retry_at = "+d.After+" WHERE event_id = 'delayed'", dialect.Micro(time.Hour))
		addEvent(t, db, d, "failed", "FAILED", 2*time.Hour)
		addEvent(t, db, d, "new", "NEW", time.Hour)
		b, err = store.MeasureBacklog(t.Context(), db, d)
		require.NoError(t, err)
		require.EqualValues(t, 3, b.Pending)
		require.EqualValues(t, 1, b.Dead)
		require.InDelta(t, 2*time.Hour, b.Oldest, float64(20*time.Minute))
	})
}

// An event that was delayed is late since it fell due. When that was is known no more once it is claimed: then the claim counts, and
// after it the first of its deliveries that waits.
func TestTheBacklogOfADelayedEventIsItsTimeSinceItFellDue(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		oldest := func(want time.Duration, what string) {
			t.Helper()
			b, err := store.MeasureBacklog(t.Context(), db, d)
			require.NoError(t, err)
			require.InDelta(t, want, b.Oldest, float64(20*time.Minute), what)
		}
		addEvent(t, db, d, "delayed", "SCHEDULED", 24*time.Hour)
		testdb.Exec(t, db, "UPDATE bc_outbox_event SET updated_at = created_at, next_retry_at = "+d.After, dialect.Micro(-3*time.Hour))
		oldest(3*time.Hour, "due")
		testdb.Exec(t, db, "UPDATE bc_outbox_event SET status = 'DISPATCHING', updated_at = "+d.After, dialect.Micro(-2*time.Hour))
		oldest(2*time.Hour, "claimed")
		testdb.Exec(t, db, "UPDATE bc_outbox_event SET status = 'FAILED', next_retry_at = NULL")
		addDelivery(t, db, d, "delayed", "Done", "SUCCESS", 20*time.Hour)
		addDelivery(t, db, d, "delayed", "First", "FAILED", 5*time.Hour)
		addDelivery(t, db, d, "delayed", "Second", "FAILED", time.Hour)
		oldest(5*time.Hour, "in the log")
		addEvent(t, db, d, "new", "NEW", 6*time.Hour)
		oldest(6*time.Hour, "an event that nobody has delayed is due when it was saved")
	})
}
