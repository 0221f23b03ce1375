package remote_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/engine/remote"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/internal/testplan"
)

func numbers(n int) (all []string) {
	for i := range n {
		all = append(all, strconv.Itoa(i))
	}
	return all
}

// What a program that has died had in flight comes again at once: together when that happens for the first time, and afterwards one by
// one, each as soon as the one before it has ended.
func TestWhatADeadProgramHadComesAgainAtOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		const n = 40
		h := newHouse(t, db)
		events := h.save(numbers(n)...)
		require.Len(t, h.fetch(n), n)
		h.past() // the program has died
		again := h.fetch(n)
		require.Len(t, again, n, "no run of them was counted")
		require.Equal(t, 1, again[0].Attempt)
		h.past() // and the next one
		for i := range n {
			one := h.fetch(n)
			require.Len(t, one, 1, "delivery %d", i)
			require.Equal(t, 2, one[0].Attempt)
			require.Empty(t, h.fetch(n), "a counted run is out")
			require.Equal(t, store.Success, h.finish(one[0].Lease, remote.Success))
		}
		for _, id := range events {
			require.Equal(t, "SENT", h.status(id))
		}
	})
}

// What waits is handed out beside a counted run, and so is what another dead program had, as soon as the counted run has lasted as
// long as a lease.
func TestACountedRunHoldsUpOnlyOthers(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		h := newHouse(t, db)
		h.save("a", "b")
		require.Len(t, h.fetch(10), 2)
		h.past()
		require.Len(t, h.fetch(10), 2)
		h.past()
		counted := h.fetch(10)
		require.Equal(t, []string{"a-0"}, ids(counted))
		h.save("c")
		require.Equal(t, []string{"c-0"}, ids(h.fetch(10)))
		require.Empty(t, h.fetch(10))
		h.longAgo("a-0")
		_, err := h.rem.Heartbeat(t.Context(), counted[0].Lease)
		require.NoError(t, err)
		require.Equal(t, []string{"b-1"}, ids(h.fetch(10)))
	})
}

// longAgo lets the last change of a delivery, but not its lease, be more than a lease ago.
func (h *house) longAgo(eventID string) {
	h.t.Helper()
	_, err := h.db.ExecContext(h.t.Context(), "UPDATE bc_event_consume_log SET updated_at = "+h.d.After+" WHERE event_id = ?",
		-2*lease.Microseconds(), eventID)
	require.NoError(h.t, err)
}

// Of many events of one aggregate, a Fetch leases the first. Those behind it are put off until its end wakes one of them: however many
// there are, a delivery costs no more statements, and what is due for other aggregates comes beside it.
func TestOneAggregateIsNotClaimedWhole(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		const n = 60
		h := newHouse(t, db)
		same := make([]string, n)
		for i := range same {
			same[i] = "a"
		}
		events := h.save(same...)
		require.Equal(t, []string{"b-0"}, h.save("b"))
		first := h.fetch(20)
		for len(ids(first)) < 2 { // the next look finds what is behind
			next := h.fetch(20)
			require.NotEmpty(t, next)
			first = append(first, next...)
		}
		require.ElementsMatch(t, []string{"a-0", "b-0"}, ids(first))
		require.Less(t, h.count("lock_version > 0 AND event_id NOT IN ('a-0', 'b-0')"), 6, "one of each look, to ask what is before it")
		held := first[0]
		count := testplan.Count(db)
		for i := range n {
			require.Equal(t, events[i], held.Event.ID)
			before := count.N()
			require.Equal(t, store.Success, h.finish(held.Lease, remote.Success))
			if next := h.fetch(20); i+1 < n {
				require.Len(t, next, 1)
				held = next[0]
			}
			require.Less(t, count.N()-before, 40)
		}
	})
}

func (h *house) count(where string) (n int) {
	h.t.Helper()
	require.NoError(h.t, h.db.QueryRowContext(h.t.Context(), "SELECT COUNT(*) FROM bc_event_consume_log WHERE "+where).Scan(&n))
	return n
}

// A publisher that has died may have had several events of an aggregate in one batch: they come one after the other.
func TestWhatAPublisherHadInFlightKeepsItsOrder(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		h := newHouse(t, db)
		events := h.save("a", "a", "a")
		_, err := db.ExecContext(t.Context(), "UPDATE bc_event_consume_log SET status = 'PROCESSING', started = 1, locked_by = 'gone'")
		require.NoError(t, err)
		h.past()
		for _, id := range events {
			one := h.fetch(10)
			require.Equal(t, []string{id}, ids(one))
			require.Empty(t, h.fetch(10))
			require.Equal(t, store.Success, h.finish(one[0].Lease, remote.Success))
			h.past() // what was put back is due
		}
	})
}

// begin asks for an event, and tells what was answered.
func (h *house) begin(id string) (remote.Decision, error) {
	h.t.Helper()
	return h.rem.Begin(h.t.Context(), consumer, id)
}

// A delivery that kills its program each time that it asks for it is DEAD when its attempts are used up, and what waits for it is told.
func TestBeginEndsADeliveryThatKills(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		h := newHouse(t, db)
		killer := h.save("killer")[0]
		runs := 0
		for ; runs < 20; runs++ {
			d, err := h.begin(killer)
			if err != nil {
				require.ErrorIs(t, err, remote.ErrDead)
				break
			}
			require.True(t, d.IsGo)
			h.past() // the program has died
		}
		require.Equal(t, attempts+1, runs, "the first run was not counted")
		require.Equal(t, "DEAD", h.status(killer))
		_, err := h.begin(killer)
		require.ErrorIs(t, err, remote.ErrDead)
		var why string
		err = db.QueryRowContext(t.Context(), "SELECT error_message FROM bc_event_consume_log WHERE event_id = 'killer-0'").Scan(&why)
		require.NoError(t, err)
		require.Equal(t, "all 3 attempts are used up, the last of them ended without an answer", why)
	})
}

// A program that dies with several deliveries in flight asks for them again: those that may have killed it run one at a time, so that
// only the one that kills is DEAD.
func TestBeginEndsOnlyTheDeliveryThatKills(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		h := newHouse(t, db)
		all := h.save("a", "killer", "c")
		isOpen := func() bool {
			return h.status(all[0]) != "SENT" || h.status(all[1]) != "DEAD" || h.status(all[2]) != "SENT"
		}
		for round := 0; isOpen(); round++ {
			require.Less(t, round, 20)
			out := make(map[string]remote.Lease)
			for i := range all {
				id := all[(i+round)%len(all)]
				switch d, err := h.begin(id); {
				case err != nil:
					require.ErrorIs(t, err, remote.ErrDead)
				case d.IsGo:
					out[id] = d.Lease
				default:
					require.True(t, d.IsDone || d.RetryAfter > 0)
				}
			}
			if _, dies := out[all[1]]; !dies {
				for _, l := range out {
					require.Equal(t, store.Success, h.finish(l, remote.Success))
				}
			}
			h.past()
		}
	})
}
