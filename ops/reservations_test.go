package ops_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ops"
)

// Operators see what is reserved in the ledger, with its producer and what it has answered, and no secret of a check URL.
func TestReservationsAreListed(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{})
		found, err := f.ops.Reservations(t.Context())
		require.NoError(t, err)
		require.Empty(t, found)
		f.reserve("soon", "shop", "PREPARED", time.Hour)
		f.reserve("over", "shop", "PREPARED", -time.Hour)
		f.reserve("done", "till", "CONFIRMED", -time.Hour)
		<-time.After(time.Second) // for which the empty answer is shared
		found, err = f.ops.Reservations(t.Context())
		require.NoError(t, err)
		require.Len(t, found, 3)
		over, soon, done := found[0], found[1], found[2]
		require.Equal(t, ops.Reservation{
			EventID: "over", EventType: "order.paid", Producer: "shop", State: ops.Prepared, CheckHost: "127.0.0.1:1", Checks: 1,
			LastError: "gone", CreatedAt: over.CreatedAt, ExpiresAt: over.ExpiresAt, Over: true, NextCheck: over.NextCheck,
			UpdatedAt: over.UpdatedAt,
		}, over)
		require.Equal(t, over.ExpiresAt, over.NextCheck)
		require.Equal(t, "soon", soon.EventID)
		require.False(t, soon.Over)
		require.Equal(t, "till", done.Producer)
		require.False(t, done.Over, "it has ended")
		require.Zero(t, done.NextCheck)
	})
}

// The story of an event that was reserved says so, also while nobody sees the event.
func TestStoriesTellOfReservations(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{}).consumers()
		f.save(paid{OrderID: "7"})
		f.once()
		f.reserve(paidID("7"), "shop", "CONFIRMED", time.Hour)
		f.reserve("waits", "shop", "PREPARED", -time.Hour)
		f.reserve("gone", "shop", "CANCELED", -time.Hour)

		story, kinds := f.story("7")
		require.Equal(t, []string{"shop"}, kinds[ops.MomentReserved])
		require.Len(t, kinds[ops.MomentConfirmed], 1)
		require.Equal(t, ops.RuleHealthy, story.Findings[0].Rule)
		require.Len(t, story.Reservations, 1)

		story, kinds = f.story("waits")
		require.Empty(t, story.Events)
		require.Len(t, kinds[ops.MomentReserved], 1)
		require.Equal(t, ops.RuleReservation, story.Findings[0].Rule)
		require.Equal(t, ops.Warn, story.Findings[0].Level)
		require.Contains(t, story.Findings[0].Says, "asked 1 times, the last time: gone.")

		story, kinds = f.story("gone")
		require.Len(t, kinds[ops.MomentCanceled], 1)
		require.Equal(t, ops.Info, story.Findings[0].Level)
	})
}

// story is the story of a key, and who acted in it, by kinds of moments.
func (f *fixture) story(key string) (ops.Story, map[string][]string) {
	f.t.Helper()
	s, err := f.ops.Trace(f.t.Context(), key)
	require.NoError(f.t, err)
	kinds := make(map[string][]string)
	for _, m := range s.Moments {
		kinds[m.Kind] = append(kinds[m.Kind], m.Actor)
	}
	return s, kinds
}

// Whose a reservation is stands in its event: who is limited to tenants sees those that have become events of theirs.
func TestReservationsOfATenant(t *testing.T) {
	t.Parallel()
	x := newTenants(t, testdb.Open(t, "sqlite"))
	x.exec("UPDATE bc_reservation SET state = 'CONFIRMED', caller = 'shop' WHERE event_id = ?", x.mine)
	mine := ops.WithCaller(t.Context(), ops.Caller{Name: "mallory", Tenants: []int64{1}})
	_, err := x.ops.Reservations(mine)
	require.ErrorIs(t, err, ops.ErrForbidden)
	story, err := x.ops.Trace(mine, x.mine)
	require.NoError(t, err)
	require.Len(t, story.Reservations, 1)
	for _, key := range []string{x.theirs, "reserved-of-two"} {
		_, err = x.ops.Trace(mine, key)
		require.ErrorIs(t, err, ops.ErrNotFound)
	}
}
