package store_test

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

func (f logFixture) claims() store.Claims { return store.NewClaims(f.d, prepared.New(f.db)) }

// put inserts an event of tenant 7 in a state, due that long from now.
func (f logFixture) put(id, status string, due time.Duration, version int) (outboxID int64) {
	f.t.Helper()
	testdb.Exec(f.t, f.db, "INSERT INTO bc_outbox_event "+
		"(tenant_id, aggregate_type, aggregate_id, event_type, event_id, event_payload, status, lock_version, next_retry_at) "+
		"VALUES (7, 'A', ?, 'a.b', ?, '{\"n\":1}', ?, ?, "+f.d.After+")", id, id, status, version, dialect.Micro(due))
	return f.idOf(id)
}

func (f logFixture) idOf(id string) (outboxID int64) {
	f.t.Helper()
	require.NoError(f.t, f.db.QueryRowContext(f.t.Context(), "SELECT id FROM bc_outbox_event WHERE event_id = ?", id).Scan(&outboxID))
	return outboxID
}

// eventRow is what a test looks at in an event.
type eventRow struct {
	status, owner string
	version       int64
	retries       int
	due           string // none, now or later
}

func (f logFixture) eventRow(id string) (r eventRow) {
	f.t.Helper()
	require.NoError(f.t, f.db.QueryRowContext(f.t.Context(), "SELECT status, COALESCE(locked_by, ''), lock_version, retry_count, "+
		"CASE WHEN next_retry_at IS NULL THEN 'none' WHEN next_retry_at <= "+f.d.Now+" THEN 'now' ELSE 'later' END "+
		"FROM bc_outbox_event WHERE event_id = ?", id).Scan(&r.status, &r.owner, &r.version, &r.retries, &r.due), id)
	return r
}

func namesOf(rows []eventrow.Row) []string {
	names := []string{}
	for _, r := range rows {
		names = append(names, r.ID)
	}
	return names
}

// everyKind inserts events of every kind, in the order in which they are due.
func (f logFixture) everyKind() {
	f.put("new 1", "NEW", -4*time.Minute, 0)
	f.put("new 2", "NEW", -3*time.Minute, 0)
	f.put("by hand", "NEW", 5*time.Hour, 0) // in the time of some other zone
	f.put("parked", "SCHEDULED", -time.Minute, 2)
	f.put("parked for long", "SCHEDULED", time.Hour, 2)
	f.put("delayed", "SCHEDULED", -time.Minute, 0)
	f.put("delayed for long", "SCHEDULED", time.Hour, 0)
	f.put("expired", "DISPATCHING", -time.Minute, 1)
	f.put("leased", "DISPATCHING", time.Hour, 1)
	f.put("sent", "SENT", -time.Minute, 1)
	f.put("failed", "FAILED", -time.Minute, 1)
}

var dueKinds = map[store.DueKind][]string{
	store.DueNew: {"new 1", "new 2", "by hand"}, store.DueParked: {"parked"}, store.DueDelayed: {"delayed"}, store.DueExpired: {"expired"},
}

// Each kind of due events is found by itself, in the order in which they are due, whichever way is taken.
func TestDueEventsByTheirKind(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		f.everyKind()
		c := f.claims()
		var all []int64
		for _, names := range dueKinds {
			for _, name := range names {
				all = append(all, f.idOf(name))
			}
		}
		require.NoError(f.t, f.inTx(func(ctx context.Context, tx bun.Tx) error {
			require.NoError(f.t, c.AlongIndexes(ctx, tx))
			for kind, want := range dueKinds {
				rows, more, err := c.LockDue(ctx, tx, kind, store.Cursor{}, 10, math.MaxInt)
				require.NoError(f.t, err)
				require.False(f.t, more)
				require.Equal(f.t, want, namesOf(rows))
				require.JSONEq(f.t, `{"n":1}`, string(rows[0].Payload))
				rows, err = c.LockDueByID(ctx, tx, kind, all, math.MaxInt)
				require.NoError(f.t, err)
				require.ElementsMatch(f.t, want, namesOf(rows))
				rows, err = c.OutlineDue(ctx, tx, kind, store.Cursor{}, 10)
				require.NoError(f.t, err)
				require.Len(f.t, rows, len(want))
				require.Equal(f.t, store.Aggregate{Tenant: 7, Type: "A", ID: want[0]}, eventrow.AggregateOf(rows[0]))
			}
			rows, err := c.LockNew(ctx, tx, all, math.MaxInt)
			require.NoError(f.t, err)
			require.ElementsMatch(f.t, dueKinds[store.DueNew], namesOf(rows))
			rows, more, err := c.LockDue(ctx, tx, store.DueNew, store.Cursor{}, 10, 10)
			require.NoError(f.t, err)
			require.True(f.t, more)
			require.Len(f.t, rows, 1, "payloads of ten bytes")
			return nil
		}))
	})
}

// A walk from cursor to cursor meets each event once, also those without a time.
func TestCursorsMeetEachEventOnce(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		want := []string{"a", "b", "c", "d", "e", "f"}
		for i, name := range want {
			f.put(name, "NEW", time.Duration(i-10)*time.Minute, 0)
		}
		testdb.Exec(f.t, f.db, "UPDATE bc_outbox_event SET next_retry_at = NULL WHERE event_id IN ('c', 'd')")
		testdb.Exec(f.t, f.db, "UPDATE bc_outbox_event SET next_retry_at = (SELECT t FROM (SELECT next_retry_at AS t FROM bc_outbox_event "+
			"WHERE event_id = 'a') AS x) WHERE event_id = 'b'")
		c := f.claims()
		var met []string
		require.NoError(f.t, f.inTx(func(ctx context.Context, tx bun.Tx) error {
			var at store.Cursor
			for range 3 * len(want) {
				rows, _, err := c.LockDue(ctx, tx, store.DueNew, at, 1, math.MaxInt)
				require.NoError(f.t, err)
				if len(rows) == 1 {
					met = append(met, rows[0].ID)
					behind := c.CursorBehind(rows[0])
					require.True(f.t, at.IsBefore(behind))
					require.False(f.t, behind.IsBefore(at))
					at = behind
					continue
				}
				next, ok := c.NextPart(at)
				if !ok {
					break
				}
				at = next
			}
			return nil
		}))
		slices.Sort(met)
		require.Equal(f.t, want, met)
		at := store.Cursor{DueAt: 1_234_567, ID: 5}
		if f.d.Name == "sqlite" {
			at.DueAt = 1_234_000 // it compares milliseconds
		}
		require.Equal(f.t, at, c.CursorBehind(eventrow.Row{DueAt: 1_234_567, OutboxID: 5}))
	})
}

// A lease names its owner and its end, and every one is a new version. Others see of which aggregates it is.
func TestLeasesOfEvents(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		c, ctx := f.claims(), f.t.Context()
		first, second := f.put("first", "NEW", 0, 0), f.put("second", "NEW", 0, 4)
		lease := func(owner string, isRepeated bool) {
			require.NoError(f.t, f.inTx(func(ctx context.Context, tx bun.Tx) error {
				return c.Lease(ctx, tx, store.Lease{Owner: owner, For: time.Hour}, []int64{first, second}, isRepeated)
			}))
		}
		lease("me", false)
		require.Equal(f.t, eventRow{status: "DISPATCHING", owner: "me", version: 1, due: "later"}, f.eventRow("first"))
		leases, err := c.LeasesOf(ctx, f.db, "me")
		require.NoError(f.t, err)
		require.Equal(f.t, []dialect.Pair{{ID: first, Version: 1}, {ID: second, Version: 5}}, leases)
		elsewhere := func(owner string) (first map[store.Aggregate]int64) {
			require.NoError(f.t, f.inTx(func(ctx context.Context, tx bun.Tx) (err error) {
				first, err = c.LeasedElsewhere(ctx, tx, owner, 10)
				return err
			}))
			return first
		}
		testdb.Exec(f.t, f.db, "UPDATE bc_outbox_event SET aggregate_id = 'one'")
		require.Equal(f.t, map[store.Aggregate]int64{{Tenant: 7, Type: "A", ID: "one"}: first}, elsewhere("other"))
		require.Empty(f.t, elsewhere("me"))

		expire := func(owner string) (more bool) {
			require.NoError(f.t, f.inTx(func(ctx context.Context, tx bun.Tx) (err error) {
				more, err = c.ExpireLeases(ctx, tx, owner)
				return err
			}))
			return more
		}
		require.False(f.t, expire("other"))
		require.Equal(f.t, "later", f.eventRow("first").due)
		require.False(f.t, expire("me"))
		require.Equal(f.t, eventRow{status: "DISPATCHING", owner: "me", version: 2, due: "now"}, f.eventRow("first"))
		require.Empty(f.t, elsewhere("other"))
		lease("other", true)
		require.Equal(f.t, eventRow{status: "DISPATCHING", owner: "other", version: 3, retries: 1, due: "later"}, f.eventRow("first"))
		leases, err = c.LeasesOf(ctx, f.db, "me")
		require.NoError(f.t, err)
		require.Empty(f.t, leases)
	})
}

// The hand-over leases what nobody has ever leased, and tells what is in the way of it.
func TestFreshEventsAreLeasedOnce(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		c, ctx := f.claims(), f.t.Context()
		elsewhere := f.put("elsewhere", "DISPATCHING", time.Hour, 1)
		testdb.Exec(f.t, f.db, "UPDATE bc_outbox_event SET locked_by = 'other'")
		fresh := f.put("fresh", "NEW", 0, 0)
		f.put("free", "NEW", 0, 0)
		f.put("delayed", "SCHEDULED", 0, 0)
		f.put("taken up", "NEW", 0, 1)
		testdb.Exec(f.t, f.db, "UPDATE bc_outbox_event SET aggregate_id = 'one' WHERE event_id IN ('elsewhere', 'fresh')")
		all := []string{"elsewhere", "fresh", "free", "delayed", "taken up", "unknown"}
		rows, err := c.LeaseFresh(ctx, f.db, store.Lease{Owner: "me", For: time.Hour}, all)
		require.NoError(f.t, err)
		first := make(map[string]int64)
		for _, r := range rows {
			first[r.ID] = r.Extra
			require.EqualValues(f.t, 1, r.LockVersion)
		}
		require.Equal(f.t, map[string]int64{"fresh": elsewhere, "free": 0}, first)
		require.Equal(f.t, eventRow{status: "DISPATCHING", owner: "me", version: 1, due: "later"}, f.eventRow("fresh"))
		require.Equal(f.t, "NEW", f.eventRow("taken up").status)
		require.Less(f.t, elsewhere, fresh)
		rows, err = c.LeaseFresh(ctx, f.db, store.Lease{Owner: "twin", For: time.Hour}, all)
		require.NoError(f.t, err)
		require.Empty(f.t, rows)
	})
}

// A delayed event takes its place when it is due.
func TestDelayedEventsAreActivated(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		f.everyKind()
		activate := func(limit int) (ids []int64) {
			require.NoError(f.t, f.inTx(func(ctx context.Context, tx bun.Tx) (err error) {
				ids, err = f.claims().ActivateDelayed(ctx, tx, limit)
				return err
			}))
			return ids
		}
		require.Equal(f.t, []int64{f.idOf("delayed")}, activate(10))
		require.Equal(f.t, []any{"NEW", int64(1)}, []any{f.eventRow("delayed").status, f.eventRow("delayed").version})
		require.Equal(f.t, []string{"SCHEDULED", "SCHEDULED"}, []string{f.eventRow("parked").status, f.eventRow("delayed for long").status})
		require.Empty(f.t, activate(10))
	})
}

// New events of other tenants than those that have a backlog.
func TestNewEventsOfOtherTenants(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		f.everyKind()
		f.put("of nobody", "NEW", -2*time.Minute, 0)
		testdb.Exec(f.t, f.db, "UPDATE bc_outbox_event SET tenant_id = NULL WHERE event_id = 'of nobody'")
		for _, of := range []struct {
			tenants []int64
			back    time.Duration
			want    []string
		}{
			{[]int64{8}, time.Hour, []string{"new 1", "new 2", "of nobody", "by hand"}},
			{[]int64{7}, time.Hour, []string{"of nobody"}},
			{[]int64{0}, 210 * time.Second, []string{"new 2", "by hand"}},
			{[]int64{0, 7}, time.Hour, nil},
		} {
			names, err := f.claims().NewOfOthers(f.t.Context(), f.db, of.back, of.tenants, 10)
			require.NoError(f.t, err)
			require.Equal(f.t, of.want, names)
		}
		names, err := f.claims().NewOfOthers(f.t.Context(), f.db, time.Hour, []int64{8}, 2)
		require.NoError(f.t, err)
		require.Equal(f.t, []string{"new 1", "new 2"}, names)
	})
}

// One look tells what is due of all that is asked for.
func TestALookForDueWork(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		look := func(q store.DueQuestion) store.DueAnswer {
			a, err := f.claims().LookForDue(f.t.Context(), f.db, q)
			require.NoError(f.t, err)
			return a
		}
		all := store.DueQuestion{New: true, Scheduled: true, Expired: true, Deliveries: true, Left: []string{"C"}}
		require.Equal(f.t, store.DueAnswer{}, look(all))
		testdb.Exec(f.t, f.db, "INSERT INTO bc_consumer (name, event_types, aliases) VALUES ('C', '[]', '[]')")
		f.everyKind()
		f.waiting("waiting", "1")
		f.waiting("left", "2")
		require.Equal(f.t, store.DueAnswer{New: true, Scheduled: true, Expired: true, Consumers: []string{"C"}}, look(all))
		f.set("left", "next_retry_at = "+f.d.Never)
		require.True(f.t, look(all).Left)
		require.Equal(f.t, store.DueAnswer{}, look(store.DueQuestion{}))
		require.Equal(f.t, store.DueAnswer{Expired: true}, look(store.DueQuestion{Expired: true}))
		testdb.Exec(f.t, f.db, "DELETE FROM bc_outbox_event WHERE event_id IN ('new 1', 'new 2', 'by hand', 'parked', 'delayed')")
		f.set("waiting", "status = 'DEAD'")
		require.Equal(f.t, store.DueAnswer{Expired: true, Left: true}, look(all))
	})
}
