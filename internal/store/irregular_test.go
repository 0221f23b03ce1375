package store_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// SENT events of the window that a registered consumer never got are found, stretch by stretch from the newest on.
func TestUndeliveredEventsAreFound(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		ask, ctx := store.NewIrregular(d), t.Context()
		window := dialect.Micro(10 * time.Hour)
		empty, err := ask.Stretch(ctx, db, math.MaxInt64, window, 2)
		require.NoError(t, err)
		require.Equal(t, store.Stretch{Before: math.MaxInt64}, empty)

		testdb.Exec(t, db, "INSERT INTO bc_consumer (name, event_types, aliases, registered_at) VALUES ('A', '[]', '[]', "+d.After+")",
			-dialect.Micro(9*time.Hour))
		testdb.Exec(t, db, "INSERT INTO bc_consumer_type (consumer_name, event_type) VALUES ('A', 'a.b')")
		addEvent(t, db, d, "too old", "SENT", 20*time.Hour)
		first := addEvent(t, db, d, "missed", "SENT", 3*time.Hour)
		addEvent(t, db, d, "got", "SENT", 2*time.Hour)
		addDelivery(t, db, d, "got", "A", "SUCCESS", 2*time.Hour)
		addEvent(t, db, d, "open", "NEW", time.Hour)
		addEvent(t, db, d, "missed too", "SENT", time.Hour)

		s, err := ask.Stretch(ctx, db, math.MaxInt64, window, 4)
		require.NoError(t, err)
		require.Equal(t, store.Stretch{From: first, Before: math.MaxInt64, Recent: 4}, s)
		found, err := ask.Undelivered(ctx, db, s, window, 10)
		require.NoError(t, err)
		require.Equal(t, [][]string{{"A", "missed too"}, {"A", "missed"}}, found)
		found, err = ask.Undelivered(ctx, db, s, window, 1)
		require.NoError(t, err)
		require.Len(t, found, 1)
		s, err = ask.Stretch(ctx, db, first, window, 4)
		require.NoError(t, err)
		require.Zero(t, s.Recent, "the rest is older than the window")
	})
}

// An event that was saved before its consumer took its type is none that the consumer should have had.
func TestEventsBeforeATypeWasTakenAreNotMissed(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		registry, ctx := store.NewRegistry(d, prepared.New(db)), t.Context()
		testdb.Exec(t, db, "INSERT INTO bc_consumer (name, event_types, aliases, registered_at) VALUES ('A', '[]', '[]', "+d.After+")",
			-dialect.Micro(9*time.Hour))
		addEvent(t, db, d, "before", "SENT", 3*time.Hour)
		announce := func() {
			require.NoError(t, registry.AnnounceTypes(ctx, db, []store.Announcement{{Key: "A", Types: []string{"a.b"}}}))
		}
		announce()
		missed := func() (found [][]string) {
			found, err := store.NewIrregular(d).Undelivered(ctx, db, store.Stretch{Before: math.MaxInt64}, dialect.Micro(10*time.Hour), 10)
			require.NoError(t, err)
			return found
		}
		require.Empty(t, missed())
		testdb.Exec(t, db, "UPDATE bc_consumer_type SET registered_at = "+d.After, -dialect.Micro(2*time.Hour))
		announce() // that it is alive
		addEvent(t, db, d, "after", "SENT", time.Hour)
		require.Equal(t, [][]string{{"A", "after"}}, missed())
		testdb.Exec(t, db, "UPDATE bc_consumer_type SET registered_at = NULL") // of a release that does not say
		require.Equal(t, [][]string{{"A", "after"}, {"A", "before"}}, missed())
	})
}

// Deliveries of queues are listed by consumer or by status, and those that nobody has changed for long.
func TestDeliveriesOfQueuesAreListed(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		ask, ctx := store.NewIrregular(d), t.Context()
		addEvent(t, db, d, "fine", "NEW", 0)
		addEvent(t, db, d, "odd", "SENDING", 0)
		events, err := ask.EventsOfUnknownStatus(ctx, db, 10)
		require.NoError(t, err)
		require.Equal(t, [][]string{{"SENDING", "odd"}}, events)

		addDelivery(t, db, d, "a", "A", "DEAD", 0)
		addDelivery(t, db, d, "b", "A", "DEAD", 0)
		addDelivery(t, db, d, "c", "B", "SENDING", 0)
		testdb.Exec(t, db, "UPDATE bc_event_consume_log SET updated_at = "+d.After+" WHERE event_id = 'a'", -dialect.Micro(2*time.Hour))
		dead, odd := store.Queue{Consumer: "A", Status: "DEAD"}, store.Queue{Consumer: "B", Status: "SENDING"}
		all := []store.Queue{dead, odd}
		found, err := ask.Deliveries(ctx, db, all, 10)
		require.NoError(t, err)
		require.ElementsMatch(t, [][]string{{"A", "a"}, {"A", "b"}, {"B", "c"}}, found)
		found, err = ask.Deliveries(ctx, db, all, 1)
		require.NoError(t, err)
		require.Len(t, found, 1)
		found, err = ask.Deliveries(ctx, db, nil, 1)
		require.NoError(t, err)
		require.Empty(t, found)
		found, err = ask.DeliveriesUnchanged(ctx, db, all, dialect.Micro(time.Hour), 10)
		require.NoError(t, err)
		require.Equal(t, [][]string{{"A", "a"}}, found)
		found, err = ask.DeliveriesByStatus(ctx, db, []store.Queue{odd}, 10)
		require.NoError(t, err)
		require.Equal(t, [][]string{{"SENDING", "B", "c"}}, found)

		testdb.Exec(t, db, "INSERT INTO bc_consumer (name, event_types, aliases, seen_at) VALUES ('here', '[]', '[]', "+d.Now+
			"), ('gone', '[]', '[]', "+d.After+")", -dialect.Micro(2*time.Hour))
		seen, err := ask.ConsumersSeen(ctx, db, dialect.Micro(time.Hour))
		require.NoError(t, err)
		require.Equal(t, []string{"here"}, seen)
	})
}
