package outbox_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

func deleting(t *testing.T, db *bun.DB) *fixture {
	t.Helper()
	f := newFixtureOf(t, db, outbox.Config{DeleteSent: true})
	f.effects()
	return f
}

type unheard struct{ orderPaid }

func (unheard) EventType() string { return "order.unheard" }

// What every consumer has got is deleted; the log, and what is not finished, stay.
func TestDeleteSentLeavesTheLog(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := deleting(t, db)
		a := answer(errHandler)
		f.failing("A", bus.ConsumerConfig{}, a)
		f.counting("B", bus.ConsumerConfig{})
		f.bus.Unconsumed("order.unheard")
		f.save(orderPaid{OrderID: "1"}, unheard{orderPaid{OrderID: "2"}})
		f.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusFailed: 1, outbox.StatusSent: 1}, f.statuses(),
			"nothing else tells of an event without a consumer")
		a.Store(nil)
		f.hurry()
		f.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 1}, f.statuses(), "deleted after a retry")
		f.save(orderPaid{OrderID: "1"})
		f.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 1}, f.statuses(), "deleted at once")
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 4}, f.deliveries())
	})
}

// A repeated event is recognised by the log alone.
func TestDeleteSentRecognisesWhatIsRepeated(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := deleting(t, db)
		f.counting("A", bus.ConsumerConfig{})
		id := outbox.EventID(0, "order.paid", "order:1:paid")
		gone := func() []string {
			missing, err := f.ob.Missing(t.Context(), f.db, []string{id})
			require.NoError(t, err)
			return missing
		}
		require.Equal(t, []string{id}, gone())
		for range 2 {
			f.save(keyedPaid{orderPaid{OrderID: "1"}})
			require.Empty(t, gone(), "it is in the outbox")
			f.once()
			require.Empty(t, f.statuses())
			require.Empty(t, gone(), "it is in the log")
			require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect"))
		}
		f.exec("UPDATE bc_event_consume_log SET status = 'FAILED'")
		require.Equal(t, []string{id}, gone(), "an unfinished delivery cannot end without its event")
	})
}

// A DEAD delivery keeps its event; skipping deletes it and lets the next one pass.
func TestDeleteSentKeepsWhatIsDeadUntilItIsSkipped(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := deleting(t, db)
		a := answer(bus.Permanent(errHandler))
		f.failing("A", bus.ConsumerConfig{}, a)
		f.save(orderPaid{OrderID: "1"})
		f.once()
		id := f.onlyEvent()
		a.Store(nil)
		f.save(orderPaid{OrderID: "1", Seq: 1})
		f.once()
		require.Equal(t, map[consumelog.Status]int{consumelog.Dead: 1, consumelog.Pending: 1}, f.deliveries())
		require.NoError(t, f.ob.Skip(t.Context(), ops, id, "A"))
		f.once()
		require.Empty(t, f.statuses())
		require.Equal(t, map[consumelog.Status]int{consumelog.Skipped: 1, consumelog.Success: 1}, f.deliveries())
		err := f.ob.Retry(t.Context(), ops, id, "A")
		require.ErrorIs(t, err, outbox.ErrNotFound)
		require.ErrorContains(t, err, "nothing to deliver")
	})
}

// What an operator discards before anybody took it stays: without a delivery nothing else would tell that it has been there, and its
// key would let it be saved again.
func TestDeleteSentKeepsWhatIsDiscardedAndNobodyTook(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := deleting(t, db)
		id := outbox.EventID(0, "order.paid", "order:1:paid")
		f.save(keyedPaid{orderPaid{OrderID: "1"}})
		require.NoError(t, f.ob.Discard(t.Context(), ops, id))
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 1}, f.statuses())
		f.save(keyedPaid{orderPaid{OrderID: "1"}})
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 1}, f.statuses(), "it is the same event")
	})
}

// Retention forgets the deliveries of deleted events when they are old, and nobody else's.
func TestDeleteSentRetention(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		for _, archive := range []bool{false, true} {
			f := deleting(t, db)
			a := answer(nil)
			f.failing("A", bus.ConsumerConfig{}, a)
			f.counting("B", bus.ConsumerConfig{})
			f.save(orderPaid{OrderID: "1"}, orderPaid{OrderID: "2"})
			f.once()
			a.Store(&errHandler)
			f.save(orderPaid{OrderID: "3"})
			f.once()
			past := map[string]string{
				"mysql": "UTC_TIMESTAMP(6) - INTERVAL 8 DAY", "pg": "now() - interval '8 days'",
				"sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now', '-8 days') || '000')",
			}[db.Dialect().Name().String()]
			later := map[string]string{
				"mysql": "UTC_TIMESTAMP(6) + INTERVAL 1 HOUR", "pg": "now() + interval '1 hour'",
				"sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now', '+1 hours') || '000')",
			}[db.Dialect().Name().String()]
			f.exec("UPDATE bc_event_consume_log SET created_at = " + past)
			f.exec("UPDATE bc_outbox_event SET created_at = " + past)
			a.Store(nil)
			f.exec("UPDATE bc_event_consume_log SET next_retry_at = " + later + " WHERE status = 'FAILED'") // not in this test
			f.save(orderPaid{OrderID: "4"})
			f.once()
			r, err := outbox.NewRetention(f.ob, outbox.RetentionConfig{Archive: archive, Batch: 3})
			require.NoError(t, err)
			removed, err := r.RunOnce(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, 2, removed)
			require.Equal(t, map[outbox.Status]int{outbox.StatusFailed: 1}, f.statuses())
			require.Equal(t, map[consumelog.Status]int{consumelog.Failed: 1, consumelog.Success: 3}, f.deliveries())
			archived := 0
			if archive {
				archived = 4
			}
			require.Equal(t, archived, f.count("SELECT COUNT(*) FROM bc_event_consume_log_archive"))
			f.exec("DELETE FROM bc_outbox_event")
			f.exec("DELETE FROM bc_event_consume_log")
		}
	})
}
