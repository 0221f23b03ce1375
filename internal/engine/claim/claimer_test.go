package claim_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/faultdb"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/migrations"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// fixture is one database, and the claimer of the run "me".
type fixture struct {
	*claim.Claimer

	t  *testing.T
	db *bun.DB
	d  dialect.Dialect
}

func each(t *testing.T, fn func(f fixture)) {
	t.Helper()
	testdb.Each(t, func(t *testing.T, db *bun.DB) { fn(newFixture(t, db)) })
}

func newFixture(t *testing.T, db *bun.DB) fixture {
	t.Helper()
	d, err := dialect.Of(db)
	require.NoError(t, err)
	f := fixture{t: t, db: db, d: d}
	f.Claimer = f.claimer("me")
	return f
}

// claimer is that of another run.
func (f fixture) claimer(run string) *claim.Claimer {
	stmts := prepared.New(f.db)
	known := registry.New(store.NewRegistry(f.d, stmts), nil)
	return claim.NewClaimer(f.db, f.d, stmts, known, store.Lease{Owner: run, For: time.Hour})
}

// event is an event of a test: of tenant 0, under lock version 0, and due a minute ago, unless it says something else.
type event struct {
	id, aggregate, status, owner string
	tenant                       int64
	version                      int
	due                          time.Duration
}

// put inserts events.
func (f fixture) put(events ...event) {
	f.t.Helper()
	for _, e := range events {
		if e.due == 0 {
			e.due = -time.Minute
		}
		_, err := f.db.ExecContext(f.t.Context(), "INSERT INTO bc_outbox_event (tenant_id, aggregate_type, aggregate_id, event_type, event_id, "+
			"event_payload, status, locked_by, lock_version, next_retry_at) VALUES (?, 'A', ?, 'a.b', ?, '{}', ?, ?, ?, "+f.d.After+")",
			e.tenant, e.aggregate, e.id, e.status, e.owner, e.version, dialect.Micro(e.due))
		require.NoError(f.t, err)
	}
}

// The end of a run does not cut a claim off, at whichever of its statements it comes; a deadline does.
func TestEndOfTheRunLetsAClaimFinish(t *testing.T) {
	t.Parallel()
	for _, name := range testdb.Dialects() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.DSN(t, name)
			var step, end int
			var cancel context.CancelFunc
			db, err := testdb.ConnectHooked(dsn, faultdb.Hook{Before: func(_ context.Context, _ faultdb.Step) error {
				if step++; step == end {
					cancel()
				}
				return nil
			}})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			require.NoError(t, migrations.Up(t.Context(), db))
			f := newFixture(t, db)
			for n := 1; ; n++ {
				f.put(event{id: fmt.Sprint(n), aggregate: fmt.Sprint(n), status: "NEW"})
				var ctx context.Context
				ctx, cancel = context.WithCancel(t.Context())
				step, end = 0, n
				r, err := f.Claim(ctx, claim.New, store.Cursor{}, 10, math.MaxInt)
				require.NoError(t, err, "it ended before statement %d", n)
				require.Len(t, r.Rows, 1)
				end = 0
				if ctx.Err() == nil { // it has fewer statements
					cancel()
					require.Greater(t, n, 3)
					break
				}
				_, err = f.Claim(ctx, claim.New, store.Cursor{}, 10, math.MaxInt)
				require.ErrorIs(t, err, context.Canceled, "none begins after it")
			}
			late, done := context.WithDeadline(t.Context(), time.Now())
			defer done()
			_, err = f.Claim(late, claim.New, store.Cursor{}, 10, math.MaxInt)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		})
	}
}

// claim claims up to limit events of a kind from the start on, and lists their ids.
func (f fixture) claim(kind claim.Kind, limit int) (claim.Result, []string) {
	f.t.Helper()
	r, err := f.Claim(f.t.Context(), kind, store.Cursor{}, limit, math.MaxInt)
	require.NoError(f.t, err)
	return r, ids(r.Rows)
}

func ids(rows []eventrow.Row) []string {
	out := []string{}
	for _, r := range rows {
		out = append(out, r.ID)
	}
	return out
}

// row reads the status, the owner, the lock version and the count of lost leases of an event.
func (f fixture) row(id string) string { return f.read("bc_outbox_event", "retry_count", id) }

// delivery reads the status, the owner, the lock version and the count of attempts of a delivery.
func (f fixture) delivery(id string) string { return f.read("bc_event_consume_log", "attempts", id) }

func (f fixture) read(table, count, id string) string {
	f.t.Helper()
	var status, owner string
	var version, n int
	require.NoError(f.t, f.db.QueryRowContext(f.t.Context(), "SELECT status, COALESCE(locked_by, ''), lock_version, "+count+
		" FROM "+table+" WHERE event_id = ?", id).Scan(&status, &owner, &version, &n))
	return fmt.Sprint(status, " ", owner, " ", version, " ", n)
}

// A claim leases due events of its kind, up to its limit, and says which registry it has seen.
func TestAClaimLeasesItsKind(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		require.NoError(f.t, registry.New(store.NewRegistry(f.d, prepared.New(f.db)), nil).
			Announce(f.t.Context(), f.db, []store.Announcement{{Key: "C", Name: "C", Types: []string{"a.b"}}}))
		f.put(
			event{id: "new 1", aggregate: "1", status: "NEW", due: -3 * time.Minute},
			event{id: "new 2", aggregate: "2", status: "NEW"},
			event{id: "parked", aggregate: "3", status: "SCHEDULED", version: 2},
			event{id: "expired", aggregate: "4", status: "DISPATCHING", owner: "dead", version: 1},
			event{id: "leased", aggregate: "5", status: "DISPATCHING", owner: "other", version: 1, due: time.Hour},
		)
		r, found := f.claim(claim.New, 1)
		require.Equal(f.t, []string{"new 1"}, found)
		require.True(f.t, r.IsFull, "more may be due")
		require.Len(f.t, r.Registry.Consumers, 1)
		require.EqualValues(f.t, 1, r.Rows[0].LockVersion)
		require.Equal(f.t, "DISPATCHING me 1 0", f.row("new 1"))
		var now int64
		require.NoError(f.t, f.db.QueryRowContext(f.t.Context(), "SELECT "+f.d.Micros(f.d.Now)).Scan(&now))
		require.InDelta(f.t, now+time.Hour.Microseconds(), r.Until, float64(30*time.Minute.Microseconds()))

		r, found = f.claim(claim.New, 10)
		require.Equal(f.t, []string{"new 2"}, found)
		require.False(f.t, r.IsFull)
		_, found = f.claim(claim.Scheduled, 10)
		require.Equal(f.t, []string{"parked"}, found)
		_, found = f.claim(claim.Expired, 10)
		require.Equal(f.t, []string{"expired"}, found)
		require.Equal(f.t, "DISPATCHING me 2 1", f.row("expired"), "a lease has run out")
		for _, kind := range []claim.Kind{claim.New, claim.Scheduled, claim.Expired} {
			r, found = f.claim(kind, 10)
			require.Empty(f.t, found)
			require.Zero(f.t, r.Seen)
		}
	})
}

// Of an aggregate in which another run works on an event nothing is claimed; in which this one does, everything.
func TestAClaimLeavesWhatIsBehindOthers(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		f.put(
			event{id: "theirs", aggregate: "1", status: "DISPATCHING", owner: "other", version: 1, due: time.Hour},
			event{id: "behind theirs", aggregate: "1", status: "NEW"},
			event{id: "behind that", aggregate: "1", status: "NEW"},
			event{id: "mine", aggregate: "2", status: "DISPATCHING", owner: "me", version: 1, due: time.Hour},
			event{id: "behind mine", aggregate: "2", status: "NEW"},
			event{id: "late", aggregate: "3", status: "NEW", version: 1},
			event{id: "leased behind late", aggregate: "3", status: "DISPATCHING", owner: "other", version: 1, due: time.Hour},
			event{id: "late and free", aggregate: "4", status: "NEW", version: 1},
			event{id: "behind late and free", aggregate: "4", status: "SCHEDULED", version: 2, due: time.Hour},
		)
		r, found := f.claim(claim.New, 100)
		require.Equal(f.t, []string{"behind mine", "late and free"}, found)
		require.True(f.t, r.IsBlocked())
		require.Equal(f.t, "NEW  0 0", f.row("behind theirs"))
	})
}

// Where most of what is due first is behind events of others, a claim looks for what is free before it locks.
func TestAClaimLooksPastWhatIsBlocked(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		f.put(event{id: "theirs", aggregate: "1", status: "DISPATCHING", owner: "other", version: 1, due: time.Hour})
		for i := range 8 {
			f.put(event{id: fmt.Sprint("blocked ", i), aggregate: "1", status: "NEW", due: -time.Hour})
		}
		f.put(event{id: "free 1", aggregate: "2", status: "NEW"}, event{id: "free 2", aggregate: "3", status: "NEW"})
		r, found := f.claim(claim.New, 4)
		require.Equal(f.t, []string{"free 1", "free 2"}, found)
		require.Equal(f.t, 10, r.Seen)
		r, found = f.claim(claim.New, 4)
		require.Empty(f.t, found)
		require.True(f.t, r.IsMostlyBlocked())
	})
}

// What seemed free, and has been taken by others when it is locked, does not end a claim: it goes on to what is behind. On SQLite
// writers take turns, and nothing is taken beside a claim.
func TestAClaimGoesOnPastWhatOnlySeemedFree(t *testing.T) {
	t.Parallel()
	testdb.EachServer(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.put(event{id: "theirs", aggregate: "1", status: "DISPATCHING", owner: "other", version: 1, due: time.Hour})
		for i := range 4 {
			f.put(event{id: fmt.Sprint("blocked ", i), aggregate: "1", status: "NEW", due: -time.Hour})
		}
		f.put(event{id: "taken 1", aggregate: "2", status: "NEW"}, event{id: "taken 2", aggregate: "3", status: "NEW"})
		f.put(event{id: "free", aggregate: "4", status: "NEW"})
		other, err := f.db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		_, err = other.ExecContext(t.Context(), "SELECT id FROM bc_outbox_event WHERE event_id IN ('taken 1', 'taken 2') FOR UPDATE")
		require.NoError(t, err)
		_, found := f.claim(claim.New, 2)
		require.Equal(t, []string{"free"}, found)
		require.NoError(t, other.Rollback())
	})
}

// A delayed event that is due becomes NEW and is leased, unless it would pass what others work on: then it stays NEW.
func TestDelayedEventsTakeTheirPlace(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		ctx := f.t.Context()
		r, err := f.ClaimDelayed(ctx, 10, math.MaxInt)
		require.NoError(f.t, err)
		require.Zero(f.t, r)
		f.put(
			event{id: "due", aggregate: "1", status: "SCHEDULED"},
			event{id: "not yet", aggregate: "2", status: "SCHEDULED", due: time.Hour},
			event{id: "blocked", aggregate: "3", status: "SCHEDULED"},
			event{id: "theirs", aggregate: "3", status: "DISPATCHING", owner: "other", version: 1, due: time.Hour},
		)
		r, err = f.ClaimDelayed(ctx, 10, math.MaxInt)
		require.NoError(f.t, err)
		require.Equal(f.t, []string{"due"}, ids(r.Rows))
		require.Equal(f.t, 2, r.Seen)
		require.Equal(f.t, "DISPATCHING me 2 0", f.row("due"))
		require.Equal(f.t, "SCHEDULED  0 0", f.row("not yet"))
		require.Equal(f.t, "NEW  1 0", f.row("blocked"))
	})
}

// What was handed over is leased at once; what is blocked is answered apart, and what somebody has leased is left out.
func TestEventsAreClaimedByTheirIDs(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		f.put(
			event{id: "free", aggregate: "1", status: "NEW"},
			event{id: "theirs", aggregate: "2", status: "DISPATCHING", owner: "other", version: 1, due: time.Hour},
			event{id: "blocked", aggregate: "2", status: "NEW"},
		)
		r, blocked, err := f.ClaimByID(f.t.Context(), []string{"blocked", "theirs", "free", "missing"})
		require.NoError(f.t, err)
		require.Equal(f.t, []string{"free"}, ids(r.Rows))
		require.Equal(f.t, []string{"blocked"}, ids(blocked))
		require.Positive(f.t, r.Until)
		require.Equal(f.t, "DISPATCHING me 1 0", f.row("blocked"))
		r, blocked, err = f.ClaimByID(f.t.Context(), []string{"free"})
		require.NoError(f.t, err)
		require.Empty(f.t, append(r.Rows, blocked...))
	})
}

// While some tenants have a good part of a claim, the newest events of others are looked for now and then.
func TestOtherTenantsAreLookedFor(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		f.put(event{id: "busy", aggregate: "1", status: "NEW", tenant: 7}, event{id: "other", aggregate: "2", status: "NEW", tenant: 8, due: -1})
		busy := claim.Result{Rows: []eventrow.Row{{TenantID: 7}}}
		look := func(now time.Time, r claim.Result) []string {
			found, err := f.OtherTenants(f.t.Context(), now, r)
			require.NoError(f.t, err)
			return found
		}
		require.Empty(f.t, look(noon, claim.Result{}), "nobody is busy")
		require.Empty(f.t, look(noon, busy), "it has just looked")
		require.Equal(f.t, []string{"other"}, look(noon.Add(time.Hour), busy))
	})
}

// The leases of a run are its orphans unless they are in flight, and another run ends them once it is known to be dead.
func TestLeasesOfADeadRunAreEnded(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		ctx := f.t.Context()
		f.put(event{id: "a", aggregate: "1", status: "NEW"}, event{id: "b", aggregate: "2", status: "NEW"})
		r, _ := f.claim(claim.New, 10)
		orphans, err := f.Orphans(ctx, map[int64]bool{r.Rows[0].OutboxID: true})
		require.NoError(f.t, err)
		require.Equal(f.t, []dialect.Pair{{ID: r.Rows[1].OutboxID, Version: 1}}, orphans)

		next := f.claimer("next")
		orphans, err = next.Orphans(ctx, nil)
		require.NoError(f.t, err)
		require.Empty(f.t, orphans)
		more, err := next.ExpireLeases(ctx, "me")
		require.NoError(f.t, err)
		require.False(f.t, more)
		require.Equal(f.t, "DISPATCHING me 2 0", f.row("a"))
		f.Claimer = next
		_, found := f.claim(claim.Expired, 10)
		require.Equal(f.t, []string{"a", "b"}, found)
		require.Equal(f.t, "DISPATCHING next 3 1", f.row("a"))
	})
}

// A thorough walk starts at the start and goes on until nothing is due; relaxed, it goes on where it is.
func TestAThoroughWalkSeesEverything(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		for i := range 3 {
			f.put(event{id: fmt.Sprint(i), aggregate: fmt.Sprint(i), status: "NEW"})
		}
		f.WalkThoroughly()
		var all []string
		for now, more := noon, true; more; now = now.Add(time.Second) {
			require.Zero(f.t, f.Rests(now, claim.New, true))
			r, err := f.Claim(f.t.Context(), claim.New, f.Start(now, claim.New), 2, math.MaxInt)
			require.NoError(f.t, err)
			all = append(all, ids(r.Rows)...)
			more, _ = f.GoOn(now, r, time.Millisecond)
			require.LessOrEqual(f.t, len(all), 3)
		}
		require.ElementsMatch(f.t, []string{"0", "1", "2"}, all)
		f.Relax()
		require.NotZero(f.t, f.Start(noon.Add(time.Hour), claim.New), "it goes on behind what it has seen")
		require.Zero(f.t, f.Rests(noon.Add(time.Hour), claim.Expired, true))
		_, again := f.GoOn(noon.Add(time.Hour), claim.Result{Kind: claim.Expired}, time.Millisecond)
		require.Zero(f.t, again)
	})
}

// A claim that cannot ask the database answers nothing but the error.
func TestAClaimThatFailsAnswersNothing(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		ctx, cancel := context.WithCancel(f.t.Context())
		cancel()
		r, err := f.Claim(ctx, claim.New, store.Cursor{}, 10, math.MaxInt)
		require.ErrorIs(f.t, err, context.Canceled)
		require.Zero(f.t, r)
		r, err = f.ClaimDelayed(ctx, 10, math.MaxInt)
		require.ErrorIs(f.t, err, context.Canceled)
		require.Zero(f.t, r)
		_, _, err = f.ClaimByID(ctx, []string{"a"})
		require.Error(f.t, err)
		_, err = f.Orphans(ctx, nil)
		require.Error(f.t, err)
	})
}
