package view_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store/view"
)

// The statuses of open events are listed once each, whatever they are; SENT is not among them.
func TestStatusesOfEventsAreListed(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		ctx, texts := f.t.Context(), must[[]string](f.t)
		require.Empty(f.t, texts(view.EventStatuses(ctx, f.Reader, 10)))
		for i, status := range []string{"NEW", "NEW", "DEAD", "SENT", "ODD"} {
			f.event(long(i+1), status, 0)
		}
		require.Equal(f.t, []string{"DEAD", "NEW", "ODD"}, texts(view.EventStatuses(ctx, f.Reader, 10)))
		require.Equal(f.t, []string{"DEAD", "NEW"}, texts(view.EventStatuses(ctx, f.Reader, 2)))
		if f.D.Name == "sqlite" { // the others have no room for such a status
			f.exec("UPDATE bc_outbox_event SET status = ? || event_id WHERE status IN ('NEW', 'ODD')", long(30))
			require.Equal(f.t, []string{long(30)[:20]}, texts(view.EventStatuses(ctx, f.Reader, 10)), "it ends at one that was cut")
		}
	})
}

// Each count is of what it says, and goes no further than its limit.
func TestRowsOfAKindAreCounted(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		ctx, count := f.t.Context(), must[int](f.t)
		for i, of := range []struct {
			status string
			ago    time.Duration
		}{{"DEAD", 0}, {"DEAD", 0}, {"DISPATCHING", -3 * time.Hour}, {"DISPATCHING", -time.Minute}, {"SENT", -3 * time.Hour}} {
			f.event(long(i+1), of.status, of.ago)
		}
		require.Equal(f.t, 2, count(view.CountDead(ctx, f.Reader, 10)))
		require.Equal(f.t, 1, count(view.CountDead(ctx, f.Reader, 1)))
		require.Equal(f.t, 1, count(view.CountLeasedBeyond(ctx, f.Reader, time.Hour, 10)))
		require.Equal(f.t, 2, count(view.CountSavedLater(ctx, f.Reader, time.Hour, 10, 10)))
		require.Equal(f.t, 1, count(view.CountSavedLater(ctx, f.Reader, time.Hour, 2, 10)), "among the newest two")
		f.delivery("a", "C", "FAILED", -3*time.Hour)
		f.delivery("b", "C", "PENDING", -time.Minute)
		f.delivery("left", "C", "PENDING", 0)
		f.delivery("other", "D", "FAILED", -3*time.Hour)
		f.exec("UPDATE bc_event_consume_log SET next_retry_at = " + f.D.Never + " WHERE event_id = 'left'")
		require.Equal(f.t, 1, count(view.CountWaitingBeyond(ctx, f.Reader, []string{"C"}, time.Hour, 10)))
		require.Equal(f.t, 2, count(view.CountWaitingBeyond(ctx, f.Reader, []string{"C", "D"}, time.Hour, 10)))
	})
}

// Of the newest payloads no more is read than is asked for, and an error of the caller ends the reading.
func TestTheNewestPayloadsAreRead(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		f.event("a", "NEW", 0)
		f.event("b", "NEW", 0)
		f.event("c", "NEW", 0)
		var read []string
		require.NoError(f.t, view.NewestPayloads(f.t.Context(), f.Reader, 2, 3, func(id, payload string) error {
			read = append(read, id)
			require.Len(f.t, payload, 3)
			return nil
		}))
		require.Equal(f.t, []string{"c", "b"}, read)
		enough := errors.New("enough")
		require.ErrorIs(f.t, view.NewestPayloads(f.t.Context(), f.Reader, 2, 3, func(string, string) error { return enough }), enough)
	})
}

// Consumers and types that no instance has had lately are listed, but not the replays of a consumer.
func TestAbsentConsumersAndTypesAreListed(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		ctx, texts := f.t.Context(), must[[]string](f.t)
		f.consumer("gone", 3*time.Hour)
		f.consumer("gone@replay", 3*time.Hour)
		f.consumer("here", 0)
		f.exec("INSERT INTO bc_consumer_type (consumer_name, event_type, seen_at) VALUES ('here', 'old.type', "+f.D.After+")",
			-dialect.Micro(3*time.Hour))
		require.Equal(f.t, []string{"gone", "gone@replay", "here"}, texts(view.ConsumerNames(ctx, f.Reader, 10)))
		require.Equal(f.t, []string{"gone"}, texts(view.ConsumerNames(ctx, f.Reader, 1)))
		require.Equal(f.t, []string{"gone"}, texts(view.AbsentConsumers(ctx, f.Reader, time.Hour, 10)))
		require.Empty(f.t, texts(view.AbsentConsumers(ctx, f.Reader, 5*time.Hour, 10)))
		types := must[[]view.ConsumerType](f.t)(view.AbsentTypes(ctx, f.Reader, time.Hour, 10))
		require.Equal(f.t, []view.ConsumerType{{Consumer: "here", EventType: "old.type"}}, types)

		f.exec("UPDATE bc_consumer SET event_types = '[\"a.very.long.list\"]' WHERE name = 'gone'")
		read := make(map[string]string)
		require.NoError(f.t, view.EventTypesInRegistry(ctx, f.Reader, 10, 10, func(consumer, types string) error {
			read[consumer] = types
			return nil
		}))
		require.Len(f.t, read, 3)
		require.Empty(f.t, read["gone"], "it is too long")
		require.JSONEq(f.t, `["a.b"]`, read["here"])
	})
}

// The catalog says which indexes a table has, and how long its keys may be.
func TestTheCatalogIsRead(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		ctx := f.t.Context()
		name := "bc_outbox_event_idx_in_hand"
		if f.D.Name == "mysql" {
			name = "idx_in_hand"
		}
		indexes := must[[]string](f.t)
		require.Contains(f.t, indexes(view.Indexes(ctx, f.Reader, view.Events)), name)
		require.NotContains(f.t, indexes(view.Indexes(ctx, f.Reader, view.Deliveries)), name)
		if f.D.Name == "sqlite" {
			return // it has no such catalog
		}
		found := make(map[string]int64)
		for _, l := range must[[]view.ColumnLength](f.t)(view.KeyLengths(ctx, f.Reader)) {
			require.True(f.t, l.Characters.Valid)
			found[l.Table+"."+l.Column] = l.Characters.Int64
		}
		require.EqualValues(f.t, 64, found["bc_outbox_event.event_id"])
		require.EqualValues(f.t, 128, found["bc_event_consume_log.consumer_name"])
		if f.D.Name != "mysql" {
			return
		}
		columns := must[[]view.Column](f.t)
		require.Empty(f.t, columns(view.OtherEngines(ctx, f.Reader)))
		require.Empty(f.t, columns(view.OtherCollations(ctx, f.Reader)))
		f.exec("ALTER TABLE bc_instance ENGINE = MyISAM")
		f.exec("ALTER TABLE bc_consumer MODIFY name VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL")
		require.Equal(f.t, []view.Column{{Table: "bc_instance", Property: "MyISAM"}}, columns(view.OtherEngines(ctx, f.Reader)))
		require.Equal(f.t, []view.Column{{Table: "bc_consumer", Name: "name", Property: "utf8mb4_general_ci"}},
			columns(view.OtherCollations(ctx, f.Reader)))
	})
}
