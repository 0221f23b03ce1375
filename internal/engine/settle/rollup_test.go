package settle_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// settled inserts an event that was settled with a status, and its deliveries.
func (f fixture) settled(id, status string, deliveries ...string) {
	f.Helper()
	f.event(id, owner, 1, deliveries...)
	f.exec("UPDATE bc_outbox_event SET status = ?, locked_by = NULL, next_retry_at = NULL WHERE event_id = ?", status, id)
}

func byID(changes []settle.Change) []settle.Change {
	return slices.SortedFunc(slices.Values(changes), func(a, b settle.Change) int { return strings.Compare(a.EventID, b.EventID) })
}

// An event takes the status of its deliveries, whoever has ended them; what a publisher has leased is left to it.
func TestRollUp(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, false)
		f.settled("done", "FAILED", "A", "SUCCESS", "B", "SKIPPED")
		f.settled("dead", "FAILED", "A", "SUCCESS", "B", "DEAD")
		f.settled("retried", "DEAD", "A", "PENDING")
		f.settled("replayed", "SENT", "A", "SUCCESS", "A@replay", "PENDING")
		f.settled("same", "FAILED", "A", "FAILED")
		f.settled("by hand", "FAILED")
		f.settled("new", "NEW", "A", "SUCCESS")
		f.event("leased", owner, 1, "A", "SUCCESS")
		ids := []string{"done", "dead", "retried", "replayed", "same", "by hand", "new", "leased", "does not exist"}
		changes, err := f.RollUp(t.Context(), ids)
		require.NoError(t, err)
		require.Equal(t, []settle.Change{
			{EventID: "by hand", EventType: "a.b", Status: settle.New},
			{EventID: "dead", EventType: "a.b", Status: settle.Dead},
			{EventID: "done", EventType: "a.b", Status: settle.Sent},
			{EventID: "replayed", EventType: "a.b", Status: settle.Failed},
			{EventID: "retried", EventType: "a.b", Status: settle.Failed},
		}, byID(changes))
		require.Equal(t, row{Status: "SENT", Version: 2, Sent: true}, f.row("done"))
		require.Equal(t, row{Status: "DEAD", Version: 2, LastError: "B says why"}, f.row("dead"))
		require.Equal(t, row{Status: "FAILED", Version: 2}, f.row("retried"))
		require.Equal(t, row{Status: "FAILED", Version: 1}, f.row("same"))
		require.Equal(t, row{Status: "NEW", Version: 2}, f.row("by hand"))
		require.Equal(t, row{Status: "NEW", Version: 1}, f.row("new"))
		require.Equal(t, row{Status: "DISPATCHING", Version: 1, LockedBy: owner}, f.row("leased"))
		changes, err = f.RollUp(t.Context(), ids[:5])
		require.NoError(t, err)
		require.Empty(t, changes, "it is up to date")
	})
}

// With deleteSent an event goes when its last delivery has ended. Nothing is told of a transaction that was rolled back.
func TestRollUpDeletesWhatIsSent(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, true)
		f.settled("done", "FAILED", "A", "SUCCESS")
		ctx, cancel := context.WithCancel(t.Context())
		db.AddQueryHook(&endAfter{word: "DELETE", end: cancel}) //nolint:staticcheck // the settler's own statements are to be seen
		changes, err := f.RollUp(ctx, []string{"done"})
		require.Error(t, err)
		require.Empty(t, changes)
		require.Equal(t, "FAILED", f.row("done").Status)
		changes, err = f.RollUp(t.Context(), []string{"done"})
		require.NoError(t, err)
		require.Len(t, changes, 1)
		require.Zero(t, f.row("done"))
	})
}

// A sweep brings up to date what a crash has left, and dates what waits for no time, in steps of a limited size.
func TestSweep(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, false)
		const many = 201
		for i := range many {
			f.settled(fmt.Sprintf("done %03d", i), "FAILED", "A", "SUCCESS")
		}
		f.settled("waits", "FAILED", "A", "FAILED")
		f.settled("scheduled", "SCHEDULED")
		f.exec("INSERT INTO bc_consumer (name, event_types, aliases) VALUES ('A', '[]', '[]')")
		f.deliver("waits", "B", "PENDING") // of nobody who is registered
		steps, changed := 0, 0
		for sweep := f.NewSweep(); ; steps++ {
			more, err := sweep.Next(t.Context())
			require.NoError(t, err)
			if !more {
				break
			}
			changes, err := sweep.Step(t.Context())
			require.NoError(t, err)
			require.LessOrEqual(t, len(changes), settle.RollUpBatch)
			changed += len(changes)
		}
		require.Equal(t, many, changed)
		require.Equal(t, 4, steps, "three of events, one of times")
		require.Equal(t, "SENT", f.row("done 200").Status)
		require.Equal(t, row{Status: "FAILED", Version: 1}, f.row("waits"))
		require.True(t, f.row("scheduled").IsDue)
		require.Equal(t, []string{"A"}, f.due(), "a delivery that waits for no time, of a registered consumer")
	})
}

// due are the consumers of deliveries that are due.
func (f fixture) due() (consumers []string) {
	f.Helper()
	query := "SELECT consumer_name FROM bc_event_consume_log WHERE status <> 'SUCCESS' AND next_retry_at <= " + f.d.Now
	require.NoError(f, f.db.NewRaw(query).Scan(f.Context(), &consumers))
	return consumers
}

// A sweep that finds nothing has one step: it looks at times. It leaves alone what somebody is writing.
func TestSweepOfWhatIsInOrder(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, false)
		f.settled("later", "SCHEDULED")
		f.exec("UPDATE bc_outbox_event SET next_retry_at = "+f.d.After, dialect.Micro(time.Hour))
		sweep := f.NewSweep()
		more, err := sweep.Next(t.Context())
		require.NoError(t, err)
		require.True(t, more)
		changes, err := sweep.Step(t.Context())
		require.NoError(t, err)
		require.Empty(t, changes)
		more, err = sweep.Next(t.Context())
		require.NoError(t, err)
		require.False(t, more)
		require.False(t, f.row("later").IsDue)
	})
}
