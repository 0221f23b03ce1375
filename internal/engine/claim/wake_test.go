package claim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testplan"
)

// putOff adds an event and a delivery of it to a consumer that is due in an hour, and answers the delivery.
func (f fixture) putOff(consumer, id, aggregate, status string) store.Delivery {
	f.t.Helper()
	f.put(event{id: id, aggregate: aggregate, status: "SCHEDULED", version: 1, due: time.Hour})
	d := store.Delivery{Consumer: consumer, EventID: id, EventType: "a.b", AggregateType: "A", AggregateID: aggregate}
	require.NoError(f.t, f.db.QueryRowContext(f.t.Context(), "SELECT id FROM bc_outbox_event WHERE event_id = ?", id).Scan(&d.OutboxID))
	_, err := f.db.ExecContext(f.t.Context(), "INSERT INTO bc_event_consume_log (tenant_id, consumer_name, event_id, event_type, status, "+
		"outbox_id, aggregate_type, aggregate_id, next_retry_at) VALUES (0, ?, ?, 'a.b', ?, ?, 'A', ?, "+f.d.After+")",
		consumer, id, status, d.OutboxID, aggregate, dialect.Micro(time.Hour))
	require.NoError(f.t, err)
	return d
}

// isDue reports whether the delivery of an event is due.
func (f fixture) isDue(id string) (yes bool) {
	f.t.Helper()
	require.NoError(f.t, f.db.QueryRowContext(f.t.Context(), "SELECT CASE WHEN next_retry_at <= "+f.d.Now+
		" THEN 1 ELSE 0 END FROM bc_event_consume_log WHERE event_id = ?", id).Scan(&yes))
	return yes
}

// What ends makes the next of its aggregate due, and nothing else: for one statement where nothing is put off, and three where
// something does.
func TestTheNextOfAnAggregateIsWoken(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		order := store.NewOrder(f.d, prepared.New(f.db))
		first := f.putOff("C", "first", "1", "SUCCESS")
		f.putOff("C", "second", "1", "PENDING")
		f.putOff("C", "failed", "1", "FAILED")
		f.putOff("C", "elsewhere", "2", "PENDING")
		f.putOff("D", "of another", "1", "PENDING")
		count := testplan.Count(f.db)
		wake := func(statements int, consumers ...string) int {
			before := count.N()
			woken, err := claim.WakeNext(f.t.Context(), f.db, order, consumers, claim.MostWoken, first)
			require.NoError(f.t, err)
			require.Equal(f.t, statements, count.N()-before)
			return woken
		}
		require.Zero(f.t, wake(0))
		require.Zero(f.t, wake(1, "E"))
		require.Positive(f.t, wake(4, "C", "E"))
		for id, want := range map[string]bool{"second": true, "failed": false, "elsewhere": false, "of another": false} {
			require.Equal(f.t, want, f.isDue(id), id)
		}
		require.Zero(f.t, wake(1, "C"), "the next is due already")
	})
}

// One that ends wakes at most a hundred deliveries of its aggregate: these wake those behind them.
func TestOneThatEndsWakesNoMoreThanAHundred(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		order := store.NewOrder(f.d, prepared.New(f.db))
		first := f.putOff("C", "first", "1", "SUCCESS")
		for i := range 102 {
			f.putOff("C", fmt.Sprint(i), "1", "PENDING")
		}
		woken, err := claim.WakeNext(f.t.Context(), f.db, order, []string{"C"}, claim.MostWoken, first)
		require.NoError(f.t, err)
		require.Equal(f.t, 100, woken)
		require.True(f.t, f.isDue("99"))
		require.False(f.t, f.isDue("100"))
	})
}
