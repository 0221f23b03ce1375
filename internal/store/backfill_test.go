package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

type backfills struct {
	store.Backfills

	t        *testing.T
	db       *bun.DB
	d        dialect.Dialect
	registry store.Registry
}

func eachBackfill(t *testing.T, fn func(f backfills)) {
	t.Helper()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		fn(backfills{store.NewBackfills(d), t, db, d, store.NewRegistry(d, prepared.New(db))})
	})
}

// enter registers the consumer C, which wants all that was saved since the year 2001.
func (f backfills) enter() {
	f.t.Helper()
	require.NoError(f.t, f.registry.Enter(f.t.Context(), f.db, []store.Announcement{
		{Key: "C", Name: "C", Types: []string{"a.b"}, StartFrom: year2001}, {Key: "D", Name: "D", Types: []string{"a.b"}},
	}))
}

var year2001 = time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)

func (f backfills) inTx(fn func(ctx context.Context, tx bun.Tx) error) {
	f.t.Helper()
	require.NoError(f.t, f.db.RunInTx(f.t.Context(), f.d.ReadCommitted(), fn))
}

// lock is the running backfill of C, which is given back at once.
func (f backfills) lock() (b store.Backfill, ok bool) {
	f.t.Helper()
	f.inTx(func(ctx context.Context, tx bun.Tx) (err error) {
		b, ok, err = f.Lock(ctx, tx, "C")
		return err
	})
	return b, ok
}

func (f backfills) backfilled() []string {
	f.t.Helper()
	keys, err := f.registry.Backfilled(f.t.Context(), f.db)
	require.NoError(f.t, err)
	return keys
}

// A consumer that wants the past is registered with one backfill, however often it is announced, and with a row in the audit log.
func TestAConsumerThatWantsThePastIsEnteredOnce(t *testing.T) {
	t.Parallel()
	eachBackfill(t, func(f backfills) {
		f.enter()
		f.enter()
		require.Equal(f.t, []string{"C"}, f.backfilled())
		require.Equal(f.t, 1, countRows(f.t, f.db, "bc_bulk_operation"))
		require.Equal(f.t, 1, countRows(f.t, f.db, "bc_audit_log"))
		require.Equal(f.t, 1, countRows(f.t, f.db, "bc_consumer"), "who wants nothing of the past is announced otherwise")
		all, err := f.registry.Read(f.t.Context(), f.db)
		require.NoError(f.t, err)
		require.Len(f.t, all, 1)
		require.True(f.t, all[0].IsFilled)
	})
}

// The past ends at the newest event that there is when an instance first works on the backfill.
func TestThePastEndsWhenABackfillBegins(t *testing.T) {
	t.Parallel()
	eachBackfill(t, func(f backfills) {
		_, ok := f.lock()
		require.False(f.t, ok, "there is none")
		first := addEvent(f.t, f.db, f.d, "a", "SENT", time.Hour)
		f.enter()
		last := addEvent(f.t, f.db, f.d, "b", "SENT", 0)
		b, ok := f.lock()
		require.True(f.t, ok)
		require.Equal(f.t, last, b.UpTo)
		require.Zero(f.t, b.Reached)
		require.WithinDuration(f.t, year2001, b.Since, 0)
		addEvent(f.t, f.db, f.d, "c", "SENT", 0)
		again, _ := f.lock()
		require.Equal(f.t, b, again)

		f.inTx(func(ctx context.Context, tx bun.Tx) error {
			past, err := f.Past(ctx, tx, b, 10)
			require.NoError(f.t, err)
			require.Equal(f.t, []string{"a", "b"}, []string{past[0].EventID, past[1].EventID})
			require.Len(f.t, past, 2)
			require.Equal(f.t, first, past[0].OutboxID)
			require.WithinDuration(f.t, past[1].SavedAt, past[0].SavedAt.Add(time.Hour), 30*time.Minute)
			return nil
		})
	})
}

// A step says how far the backfill has got; the last one ends it, and the consumer waits for no past any more.
func TestABackfillGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	eachBackfill(t, func(f backfills) {
		f.enter()
		id := addEvent(f.t, f.db, f.d, "a", "SENT", 0)
		b, _ := f.lock()
		save := func(s store.BackfillStep) {
			f.inTx(func(ctx context.Context, tx bun.Tx) error { return f.Save(ctx, tx, b.ID, s) })
		}
		save(store.BackfillStep{Reached: id - 1, Given: 2, Other: 3})
		b, ok := f.lock()
		require.True(f.t, ok)
		require.Equal(f.t, id-1, b.Reached)
		save(store.BackfillStep{Reached: id, Given: 1, IsOver: true})
		_, ok = f.lock()
		require.False(f.t, ok)
		require.Empty(f.t, f.backfilled())
		var state string
		var seen, done, passed int
		require.NoError(f.t, f.db.QueryRowContext(f.t.Context(), "SELECT state, seen, done, passed FROM bc_bulk_operation").
			Scan(&state, &seen, &done, &passed))
		require.Equal(f.t, []any{"DONE", 6, 3, 3}, []any{state, seen, done, passed})
	})
}

// One whose request cannot be read names the command that cancels it.
func TestABackfillThatCannotBeReadSaysWhatToDo(t *testing.T) {
	t.Parallel()
	eachBackfill(t, func(f backfills) {
		f.enter()
		testdb.Exec(f.t, f.db, "UPDATE bc_bulk_operation SET request = '[]'")
		err := f.db.RunInTx(f.t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
			_, _, err := f.Lock(ctx, tx, "C")
			return err
		})
		require.ErrorContains(f.t, err, "bluecone bulk cancel")
	})
}

// What a backfill has made and nobody has run yet is counted, up to a number.
func TestDeliveriesOfABackfillThatWaitAreCounted(t *testing.T) {
	t.Parallel()
	eachLog(t, func(l logFixture) {
		f := backfills{store.NewBackfills(l.d), l.t, l.db, l.d, store.NewRegistry(l.d, prepared.New(l.db))}
		f.enter()
		l.waiting("a", "1")
		b := l.waiting("b", "2")
		l.waiting("live", "3")
		done, _ := f.lock()
		f.inTx(func(ctx context.Context, tx bun.Tx) error {
			return f.Save(ctx, tx, done.ID, store.BackfillStep{Reached: b.OutboxID, Given: 2})
		})
		waiting := func(most int) int {
			n, err := f.Waiting(f.t.Context(), f.db, "C", most)
			require.NoError(f.t, err)
			return n
		}
		require.Equal(f.t, 2, waiting(10), "the third one came with a later event")
		require.Equal(f.t, 1, waiting(1))
		l.claim("me")
		require.Zero(f.t, waiting(10))
	})
}

// While a backfill of the consumer is open, an event waits behind a past one of its aggregate that the consumer has not had.
func TestEventsWaitBehindThePastThatABackfillStillHasToGive(t *testing.T) {
	t.Parallel()
	eachLog(t, func(l logFixture) {
		f := backfills{store.NewBackfills(l.d), l.t, l.db, l.d, store.NewRegistry(l.d, prepared.New(l.db))}
		f.enter()
		past := l.event("past", "1")
		testdb.Exec(l.t, l.db, "UPDATE bc_outbox_event SET status = 'SENT' WHERE event_id = 'past'")
		live := l.event("live", "1")
		ask := func(isFilled bool) store.Answer {
			g := l.gate("me")
			g.IsFilled = isFilled
			answers, err := l.log.Ask(l.t.Context(), l.db, g, []store.Asked{{
				Event: dialect.Pair{ID: live.OutboxID}, Aggregate: live.Aggregate(),
			}})
			require.NoError(l.t, err)
			return answers[live.OutboxID]
		}
		require.Equal(l.t, store.Blocked, ask(true))
		require.Equal(l.t, store.MayRun, ask(false), "without a backfill a past event is in nobody's way")
		b, _ := f.lock()
		f.inTx(func(ctx context.Context, tx bun.Tx) error {
			return f.Save(ctx, tx, b.ID, store.BackfillStep{Reached: past.OutboxID})
		})
		require.Equal(l.t, store.MayRun, ask(true), "the backfill has passed it")
	})
}
