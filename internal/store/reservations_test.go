package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

type reservations struct {
	store.Reservations

	t  *testing.T
	db *bun.DB
	d  dialect.Dialect
}

// eachReservation runs a test on every database, in which one event is reserved for an hour, with the token "t".
func eachReservation(t *testing.T, fn func(f reservations)) {
	t.Helper()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		f := reservations{store.NewReservations(d), t, db, d}
		f.add("t", "e")
		fn(f)
	})
}

func (f reservations) inTx(fn func(ctx context.Context, tx bun.Tx) error) {
	f.t.Helper()
	require.NoError(f.t, f.db.RunInTx(f.t.Context(), f.d.ReadCommitted(), fn))
}

func reservation(token, eventID string) store.Reservation {
	return store.Reservation{
		Token: token, EventID: eventID, Caller: "shop", EventType: "a.b", State: store.Prepared, Event: `{"n":1}`, CheckURL: "http://shop",
	}
}

func (f reservations) add(token, eventID string) {
	f.t.Helper()
	f.inTx(func(ctx context.Context, tx bun.Tx) error {
		return f.Add(ctx, tx, reservation(token, eventID), time.Hour)
	})
}

// due leases what is to be asked about now, for a minute, and tells the tokens.
func (f reservations) due(most int) (tokens []string) {
	f.t.Helper()
	f.inTx(func(ctx context.Context, tx bun.Tx) error {
		tokens = nil
		found, err := f.Due(ctx, tx, time.Minute, most)
		for _, r := range found {
			tokens = append(tokens, r.Token)
		}
		return err
	})
	return tokens
}

// elapse makes all that is to be asked about due.
func (f reservations) elapse() {
	f.t.Helper()
	testdb.Exec(f.t, f.db, "UPDATE bc_reservation SET next_check_at = "+f.d.After+" WHERE next_check_at IS NOT NULL",
		-dialect.Micro(time.Second))
}

// An event is reserved once: a second reservation of its id changes nothing.
func TestAnEventIsReservedOnce(t *testing.T) {
	t.Parallel()
	eachReservation(t, func(f reservations) {
		ctx := f.t.Context()
		f.add("another", "e")
		got, found, err := f.OfEvent(ctx, f.db, "e")
		require.NoError(f.t, err)
		require.True(f.t, found)
		require.JSONEq(f.t, `{"n":1}`, got.Event)
		got.Event = `{"n":1}` // databases write JSON in their own way
		require.Equal(f.t, reservation("t", "e"), got)
		_, found, err = f.ByToken(ctx, f.db, "another")
		require.NoError(f.t, err)
		require.False(f.t, found)
	})
}

// What nobody has confirmed in time is asked about, by one instance at a time, and again later if its producer does not say.
func TestAReservationWithoutAnAnswerIsAskedAbout(t *testing.T) {
	t.Parallel()
	eachReservation(t, func(f reservations) {
		ctx := f.t.Context()
		require.Empty(f.t, f.due(10), "its hour is not over")
		f.add("u", "e2")
		f.elapse()
		require.Len(f.t, f.due(1), 1)
		require.Len(f.t, f.due(10), 1, "somebody asks about the other one")
		require.Empty(f.t, f.due(10))
		require.NoError(f.t, f.AskAgain(ctx, f.db, "t", time.Hour, "no answer"))
		f.elapse()
		require.ElementsMatch(f.t, []string{"t", "u"}, f.due(10))
		got, _, err := f.ByToken(ctx, f.db, "t")
		require.NoError(f.t, err)
		require.Equal(f.t, 1, got.Checks)
	})
}

// A reservation that has ended is asked about no more, and goes after a while. One that is PREPARED stays.
func TestAReservationEnds(t *testing.T) {
	t.Parallel()
	eachReservation(t, func(f reservations) {
		ctx := f.t.Context()
		f.add("open", "e2")
		f.inTx(func(ctx context.Context, tx bun.Tx) error {
			got, found, err := f.Lock(ctx, tx, "t")
			require.True(f.t, found)
			require.Equal(f.t, store.Prepared, got.State)
			if err != nil {
				return err
			}
			return f.End(ctx, tx, "t", store.Confirmed)
		})
		require.NoError(f.t, f.AskAgain(ctx, f.db, "t", 0, "too late"))
		got, _, err := f.ByToken(ctx, f.db, "t")
		require.NoError(f.t, err)
		require.Equal(f.t, store.Confirmed, got.State)
		require.Zero(f.t, got.Checks)
		f.elapse()
		require.Equal(f.t, []string{"open"}, f.due(10))
		require.NoError(f.t, f.Forget(ctx, f.db, time.Hour))
		require.Equal(f.t, 2, countRows(f.t, f.db, "bc_reservation"))
		testdb.Exec(f.t, f.db, "UPDATE bc_reservation SET updated_at = "+f.d.After, -dialect.Micro(2*time.Hour))
		require.NoError(f.t, f.Forget(ctx, f.db, time.Hour))
		_, found, err := f.ByToken(ctx, f.db, "t")
		require.NoError(f.t, err)
		require.False(f.t, found)
		require.Equal(f.t, 1, countRows(f.t, f.db, "bc_reservation"), "what is PREPARED stays")
	})
}
