package settle_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/faultdb"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/store"
)

// rowOf is the row of an event of [fixture.event].
func rowOf(e settle.Event) eventrow.Row {
	return eventrow.Row{
		OutboxID: e.Lease.ID, ID: e.EventID, Type: "a.b", AggregateType: "A", AggregateID: e.EventID, LockVersion: e.Lease.Version,
	}
}

// begun takes off an event that has one delivery, which runs.
func (s *settling) begun(e settle.Event, routed *registry.Snapshot) *settle.Flight {
	f := s.flights.Begin(rowOf(e), 0, routed)
	f.Route([]string{"A"}, 1)
	f.Done(settle.Succeeded)
	return f
}

// The leases of all events in flight are renewed. Those that another instance has are named, so that what runs under them stops.
func TestLeasesOfEventsInFlightAreRenewed(t *testing.T) {
	t.Parallel()
	eachSettling(t, false, func(s *settling) {
		lost, err := s.Renew(s.Context())
		require.NoError(s, err)
		require.Empty(s, lost, "there are none")
		mine, gone := s.begun(s.event("mine", owner, 1), nil), s.event("gone", other, 2)
		gone.Lease.Version = 1
		taken := s.begun(gone, nil)
		s.exec("UPDATE bc_outbox_event SET next_retry_at = " + s.d.Now + " WHERE event_id = 'mine'")
		lost, err = s.Renew(s.Context())
		require.NoError(s, err)
		require.Equal(s, []*claim.Lease{&taken.Lease}, lost)
		require.False(s, s.row("mine").IsDue)
		now := time.Now()
		require.False(s, mine.Lease.IsOver(now.Add(-time.Minute).UnixMicro()))
		require.True(s, mine.Lease.IsOver(now.Add(time.Hour).UnixMicro()))

		taken.Done(settle.Succeeded) // it waits to be settled, which finds out by itself
		lost, err = s.Renew(s.Context())
		require.NoError(s, err)
		require.Empty(s, lost, "nothing runs under it any more")

		all := loses(func(faultdb.Step) bool { return true })
		s.networks.Store(&all)
		_, err = s.Renew(s.Context())
		require.ErrorContains(s, err, "outbox: renew leases")
	})
}

// What a claim has leased and is not dispatched goes back. What another instance has taken over meanwhile is counted.
func TestWhatIsNotDispatchedIsGivenBack(t *testing.T) {
	t.Parallel()
	eachSettling(t, false, func(s *settling) {
		mine, gone := s.event("mine", owner, 1), s.event("gone", other, 2)
		rows := []eventrow.Row{{OutboxID: mine.Lease.ID, LockVersion: 1}, {OutboxID: gone.Lease.ID, LockVersion: 1}}
		require.NoError(s, s.Settling.GiveBack(s.Context(), rows, settle.Return{Status: settle.New}))
		require.Equal(s, row{Status: "NEW", Version: 2, IsDue: true}, s.row("mine"))
		require.Equal(s, int64(1), s.lost.sum.Load())
		require.Contains(s, s.log.String(), "taken over by another instance")
	})
}

// After trouble this instance gives back what it has leased and does not work on, once: a claim whose COMMIT got no answer.
func TestOrphansAreGivenBackAfterTrouble(t *testing.T) {
	t.Parallel()
	eachSettling(t, false, func(s *settling) {
		stmts := prepared.New(s.db)
		claimer := claim.NewClaimer(s.db, s.d, stmts, registry.New(store.NewRegistry(s.d, stmts), nil),
			store.Lease{Owner: owner, For: time.Minute})
		s.event("orphan", owner, 1)
		s.event("another's", other, 1)
		s.begun(s.event("in flight", owner, 1), nil)
		release := func() error { return s.ReleaseOrphans(s.Context(), claimer) }
		require.NoError(s, release())
		require.Equal(s, "DISPATCHING", s.row("orphan").Status, "there was no trouble")

		s.NoteOrphans()
		all := loses(func(faultdb.Step) bool { return true })
		s.networks.Store(&all)
		require.ErrorContains(s, release(), "outbox: give back leased events")
		require.NoError(s, release(), "it is tried again")
		require.Equal(s, row{Status: "NEW", Version: 2, IsDue: true}, s.row("orphan"))
		require.Equal(s, "DISPATCHING", s.row("another's").Status)
		require.Equal(s, "DISPATCHING", s.row("in flight").Status)
	})
}

// Events that cannot be settled stay leased, and are looked for when the database answers again.
func TestEventsThatCannotBeSettledAreGivenUp(t *testing.T) {
	t.Parallel()
	eachSettling(t, false, func(s *settling) {
		s.ended(s.event("1", owner, 1, "A", "SUCCESS"), settle.Recorded)
		s.exec("ALTER TABLE bc_event_consume_log RENAME TO away")
		s.settle()
		require.Contains(s, s.log.String(), "events could not be settled")
		require.Equal(s, row{Status: "DISPATCHING", Version: 1, LockedBy: owner}, s.row("1"))
	})
}

// An event that was handed over was routed by a registry that may be a little old. It is not SENT as long as a consumer waits for it
// that has been registered since.
func TestAConsumerThatIsRegisteredMeanwhileGetsTheEvent(t *testing.T) {
	t.Parallel()
	eachSettling(t, false, func(s *settling) {
		stmts := prepared.New(s.db)
		known := registry.New(store.NewRegistry(s.d, stmts), map[string][]string{"A": {"a.b"}})
		announce := func(key string) {
			require.NoError(s, known.Announce(s.Context(), s.db, []store.Announcement{{Key: key, Name: key, Types: []string{"a.b"}}}))
		}
		announce("A")
		old, _, err := known.Read(s.Context(), s.db)
		require.NoError(s, err)
		s.deliver("early", "A", "SUCCESS")
		early := s.begun(s.event("early", owner, 1), old)
		early.Done(settle.Succeeded)
		announce("B")
		s.settle()
		require.Equal(s, row{Status: "FAILED", Version: 2}, s.row("early"), "B has not had it")
		states, err := store.NewResults(s.d).States(s.Context(), s.db, []string{"early"})
		require.NoError(s, err)
		require.Equal(s, map[string]store.Status{"A": store.Success, "B": store.Pending}, states["early"])
	})
}

// What has to be claimed again when this instance ends is due at once.
func TestADrainMakesDueWhatHasToBeClaimedAgain(t *testing.T) {
	t.Parallel()
	eachSettling(t, false, func(s *settling) {
		s.ended(s.event("1", owner, 1), settle.Abandoned)
		s.Drain()
		s.settle()
		require.Equal(s, row{Status: "NEW", Version: 2, IsDue: true}, s.row("1"))
	})
}

// Events whose deliveries have to be looked at wait a moment for others; the goroutine that settles takes them by itself.
func TestSettlingRunsUntilItIsStopped(t *testing.T) {
	t.Parallel()
	eachSettling(t, false, func(s *settling) {
		stop, over := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(over)
			s.Run(stop)
		}()
		s.begun(s.event("runs", owner, 1), nil)
		s.ended(s.event("rest", owner, 1, "A", "SUCCESS"), settle.Recorded)
		<-s.flights.Settled()
		require.Equal(s, row{Status: "SENT", Version: 2, Sent: true}, s.row("rest"))
		close(stop)
		<-over
		require.Equal(s, 1, s.flights.Len(), "what runs is in flight")
	})
}
