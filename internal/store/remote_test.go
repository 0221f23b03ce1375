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

// remote is the log as consumers in other programs use it.
type remote struct {
	logFixture

	rows store.Remote
}

func eachRemote(t *testing.T, fn func(f remote)) {
	t.Helper()
	eachLog(t, func(f logFixture) { fn(remote{f, store.Remote{Leases: f.log.Leases}}) })
}

// take leases the delivery of an event for an owner, whatever it waits for.
func (f remote) take(id, owner string) (d store.Leased) {
	f.t.Helper()
	require.NoError(f.t, f.inTx(func(ctx context.Context, tx bun.Tx) error {
		row, found, err := f.rows.LockOf(ctx, tx, "C", id)
		require.NoError(f.t, err)
		require.True(f.t, found)
		d, err = f.rows.Take(ctx, tx, owner, time.Hour, row)
		return err
	}))
	return d
}

func (f remote) byID(id int64) store.RemoteRow {
	f.t.Helper()
	row, found, err := f.rows.ByID(f.t.Context(), f.db, id)
	require.NoError(f.t, err)
	require.True(f.t, found)
	return row
}

// A delivery that is taken says so in its row, until when, and which run it is.
func TestATakenDeliveryIsLeasedToItsOwner(t *testing.T) {
	t.Parallel()
	eachRemote(t, func(f remote) {
		ctx := f.t.Context()
		f.waiting("a", "1")
		f.set("a", "next_retry_at = "+f.d.After, dialect.Micro(time.Minute))
		d := f.take("a", "program")
		require.Equal(f.t, 1, d.Attempts)
		row := f.byID(d.ID)
		require.True(f.t, row.IsLeased())
		require.Equal(f.t, "program", row.Owner)
		require.Equal(f.t, 1, row.Run(), "the run is counted by its outcome")
		require.InDelta(f.t, 0, row.LeasedFor(time.Hour), float64(30*time.Minute))
		require.NoError(f.t, f.inTx(func(ctx context.Context, tx bun.Tx) error { return f.rows.NoteCounted(ctx, tx, d) }))
		require.Equal(f.t, 1, f.byID(d.ID).Run(), "the same run, which is counted now")
		require.NoError(f.t, f.inTx(func(ctx context.Context, tx bun.Tx) error { return f.rows.NoteCounted(ctx, tx, d) }))
		require.Equal(f.t, 1, f.byID(d.ID).Attempts, "it is counted once")

		_, found, err := f.rows.ByID(ctx, f.db, d.ID+1)
		require.NoError(f.t, err)
		require.False(f.t, found)
		ds, err := f.rows.ByIDs(ctx, f.db, []int64{d.ID, d.ID + 1})
		require.NoError(f.t, err)
		require.Len(f.t, ds, 1)
		require.Equal(f.t, store.Aggregate{Tenant: 7, Type: "A", ID: "1"}, ds[0].Aggregate())
	})
}

// The run of a delivery that a dead program may have started is counted before it begins; that of others is not.
func TestOnlyASuspectIsCountedBeforeItRuns(t *testing.T) {
	t.Parallel()
	eachRemote(t, func(f remote) {
		f.waiting("plain", "1")
		f.waiting("suspect", "2")
		f.set("suspect", "status = 'PROCESSING', started = 1, locked_by = 'dead one', next_retry_at = "+f.d.After, -dialect.Micro(time.Second))
		for id, want := range map[string]int{"plain": 0, "suspect": 1} {
			d := f.take(id, "program")
			require.NoError(f.t, f.inTx(func(ctx context.Context, tx bun.Tx) error { return f.rows.NoteStart(ctx, tx, d) }))
			require.Equal(f.t, want, f.row(id).attempts, id)
			require.NotZero(f.t, f.row(id).started, id)
		}
	})
}

// Only the owner ends a delivery, once. Its name stays in the row, so that the same call, repeated, is recognised.
func TestOnlyTheOwnerEndsARemoteDelivery(t *testing.T) {
	t.Parallel()
	eachRemote(t, func(f remote) {
		ctx := f.t.Context()
		f.waiting("good", "1")
		f.waiting("bad", "2")
		good, bad := f.take("good", "program"), f.take("bad", "program")
		succeed := func(owner string) error {
			return f.inTx(func(ctx context.Context, tx bun.Tx) error {
				return f.rows.Succeed(ctx, tx, owner, []dialect.Pair{{ID: good.ID, Version: good.Version}}, map[int64]string{good.ID: `{"n":1}`})
			})
		}
		fail := func(owner string) error {
			return f.inTx(func(ctx context.Context, tx bun.Tx) error {
				v := store.Verdict{Status: store.Failed, Delay: time.Hour, Error: "no", Counts: true}
				return f.rows.Fail(ctx, tx, owner, bad, v, store.Attempt{Instance: owner, Duration: time.Second})
			})
		}
		prolong := func(owner string) error {
			return f.rows.Prolong(ctx, f.db, owner, dialect.Pair{ID: good.ID, Version: good.Version}, time.Minute)
		}
		for _, other := range []func(string) error{succeed, fail, prolong} {
			require.ErrorIs(f.t, other("somebody else"), store.ErrLeaseLost)
		}
		require.Empty(f.t, f.history("bad"), "what has failed is rolled back")
		require.NoError(f.t, prolong("program"))
		require.NoError(f.t, succeed("program"))
		require.NoError(f.t, fail("program"))
		row := f.byID(good.ID)
		require.JSONEq(f.t, `{"n":1}`, row.Result)
		require.Equal(f.t, []any{store.Success, "program", good.Version + 1, 1}, []any{row.Status, row.Owner, row.Version, row.Attempts})
		require.False(f.t, row.IsLeased())
		require.Equal(f.t, deliveryRow{
			status: store.Failed, attempts: 1, version: bad.Version + 1, owner: "program", due: "later", ran: true, err: "no",
		}, f.row("bad"))
		require.Equal(f.t, []attempt{{1, "FAILED", "no", "program"}}, f.history("bad"))
		for _, again := range []func(string) error{succeed, fail, prolong} {
			require.ErrorIs(f.t, again("program"), store.ErrLeaseLost)
		}
	})
}

// Leases that have run out are seen, and so is the highest number of a counted run that is out.
func TestCountedRunsAndExpiredLeasesAreSeen(t *testing.T) {
	t.Parallel()
	eachRemote(t, func(f remote) {
		ctx := f.t.Context()
		require.NoError(f.t, announce(f, "C", "a.b"))
		expired := func(types ...string) bool {
			yes, _, err := f.rows.HasExpired(ctx, f.db, "C", types)
			require.NoError(f.t, err)
			return yes
		}
		highest := func() (n int) {
			require.NoError(f.t, f.inTx(func(ctx context.Context, tx bun.Tx) (err error) {
				n, err = f.rows.LockCounted(ctx, tx, "C", time.Hour)
				return err
			}))
			return n
		}
		f.waiting("a", "1")
		f.set("a", "attempts = 4")
		d := f.take("a", "program")
		require.False(f.t, expired("a.b"))
		require.Zero(f.t, highest(), "its run is not counted")
		require.NoError(f.t, f.inTx(func(ctx context.Context, tx bun.Tx) error { return f.rows.NoteCounted(ctx, tx, d) }))
		require.Equal(f.t, 5, highest())
		f.set("a", "next_retry_at = "+f.d.After, -dialect.Micro(time.Second))
		require.True(f.t, expired("a.b"))
		require.False(f.t, expired("c.d"), "of another type")
		require.Zero(f.t, highest(), "its lease is over")
	})
}

func announce(f remote, consumer string, types ...string) error {
	r := store.NewRegistry(f.d, f.log.Statements())
	all := []store.Announcement{{Key: consumer, Name: consumer, Types: types}}
	if err := r.AnnounceConsumers(f.t.Context(), f.db, all); err != nil {
		return err
	}
	return r.AnnounceTypes(f.t.Context(), f.db, all)
}

// A consumer takes the event types that it named last, and events that were parked for want of it are due.
func TestARemoteConsumerTakesWhatItNamedLast(t *testing.T) {
	t.Parallel()
	eachRemote(t, func(f remote) {
		ctx := f.t.Context()
		require.NoError(f.t, announce(f, "C", "a.b", "c.d"))
		require.NoError(f.t, f.rows.KeepTypes(ctx, f.db, "C", []string{"a.b"}))
		types, err := f.rows.Types(ctx, f.db, "C")
		require.NoError(f.t, err)
		require.Equal(f.t, []string{"a.b"}, types)

		f.event("parked", "1")
		f.event("delayed", "2")
		testdb.Exec(f.t, f.db, "UPDATE bc_outbox_event SET status = 'SCHEDULED', next_retry_at = "+f.d.After, dialect.Micro(time.Hour))
		testdb.Exec(f.t, f.db, "UPDATE bc_outbox_event SET lock_version = 0 WHERE event_id = 'delayed'")
		due := func() (ids []string) {
			err := f.db.NewRaw("SELECT event_id FROM bc_outbox_event WHERE next_retry_at <= "+f.d.Now).Scan(ctx, &ids)
			require.NoError(f.t, err)
			return ids
		}
		require.NoError(f.t, f.rows.Unpark(ctx, f.db, []string{"c.d"}))
		require.Empty(f.t, due())
		require.NoError(f.t, f.rows.Unpark(ctx, f.db, []string{"a.b"}))
		require.Equal(f.t, []string{"parked"}, due(), "what its producer delayed waits for its time")
	})
}
