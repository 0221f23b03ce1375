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

// What instances announce is read back, and every change of it is another state.
func TestTheRegistryTellsWhenItHasChanged(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		ctx, r := f.t.Context(), store.NewRegistry(f.d, prepared.New(f.db))
		var states []store.State
		look := func() {
			state, now, err := r.Look(ctx, f.db)
			require.NoError(f.t, err)
			require.WithinDuration(f.t, time.Now(), time.UnixMicro(now), 10*time.Minute)
			again, _, err := r.Look(ctx, f.db)
			require.NoError(f.t, err)
			require.Equal(f.t, state, again)
			require.NotContains(f.t, states, state)
			states = append(states, state)
		}
		look()
		a := store.Announcement{Key: "A", Name: "Invoices", Types: []string{"a.b", "c.d"}, IsReplayable: true}
		b := store.Announcement{Key: "B", Name: "B"}
		require.NoError(f.t, r.AnnounceConsumers(ctx, f.db, []store.Announcement{a, b}))
		look()
		require.NoError(f.t, r.AnnounceTypes(ctx, f.db, []store.Announcement{a, b}))
		look()
		a.Types = []string{"e.f"} // of another release
		require.NoError(f.t, r.AnnounceConsumers(ctx, f.db, []store.Announcement{a}))
		require.NoError(f.t, r.AnnounceTypes(ctx, f.db, []store.Announcement{a}))
		look()
		for i, paused := range []string{"A", "B"} { // one is resumed as the other is paused, between two looks
			testdb.Exec(f.t, f.db, "UPDATE bc_consumer SET paused_until = NULL")
			testdb.Exec(f.t, f.db, "UPDATE bc_consumer SET paused_until = "+f.d.After+" WHERE name = ?",
				dialect.Micro(time.Hour+time.Duration(i)*time.Second), paused)
			look()
		}
		all, err := r.Read(ctx, f.db)
		require.NoError(f.t, err)
		require.Equal(f.t, []store.Registration{
			{Key: "A", EventTypes: `["e.f"]`, Types: []string{"a.b", "c.d", "e.f"}},
			{Key: "B", EventTypes: `[]`, IsPaused: true},
		}, all)
		testdb.Exec(f.t, f.db, "DELETE FROM bc_consumer WHERE name = 'B'")
		look()
	})
}

// An instance is known by its name, and by its run until that has ended.
func TestInstancesAnnounceTheirRuns(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		ctx, i := f.t.Context(), store.NewInstances(f.d)
		runOf := func(name string) string {
			run, err := i.RunOf(ctx, f.db, name)
			require.NoError(f.t, err)
			return run
		}
		require.Empty(f.t, runOf("one"))
		one := store.Instance{Name: "one", Run: "one#1", Host: "h", Version: "v1", InFlight: 3, Clock: time.Now().Add(time.Hour).UnixMicro()}
		require.NoError(f.t, i.Announce(ctx, f.db, one))
		require.Equal(f.t, "one#1", runOf("one"))
		var inFlight, offset int64
		require.NoError(f.t, f.db.QueryRowContext(ctx, "SELECT in_flight, clock_offset_us FROM bc_instance").Scan(&inFlight, &offset))
		require.EqualValues(f.t, 3, inFlight)
		require.InDelta(f.t, time.Hour.Microseconds(), offset, float64((10 * time.Minute).Microseconds()), "its clock is ahead")
		one.Run, one.IsDraining = "one#2", true
		require.NoError(f.t, i.Announce(ctx, f.db, one))
		require.Empty(f.t, runOf("one"), "it is about to end")
		require.NoError(f.t, i.Remove(ctx, f.db, "one", "one#1"))
		require.Equal(f.t, 1, f.rows("bc_instance"), "the run before has nothing to remove")
		require.NoError(f.t, i.Forget(ctx, f.db, time.Hour))
		require.Equal(f.t, 1, f.rows("bc_instance"))
		require.NoError(f.t, i.Remove(ctx, f.db, "one", "one#2"))
		require.Zero(f.t, f.rows("bc_instance"))
		require.NoError(f.t, i.Announce(ctx, f.db, one))
		require.NoError(f.t, i.Forget(ctx, f.db, -time.Hour))
		require.Zero(f.t, f.rows("bc_instance"), "all that were seen before an hour from now")
	})
}

// An event is inserted with what it says, or with the defaults of the columns.
func TestEventsAreInsertedAsTheySay(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		stmts := prepared.New(f.db)
		testInserts(f, func(tx bun.Tx) store.Tx { return store.BunTx(tx, stmts) })
		_, err := f.db.ExecContext(f.t.Context(), "DELETE FROM bc_outbox_event")
		require.NoError(f.t, err)
		_, err = f.db.ExecContext(f.t.Context(), "DELETE FROM bc_event_key")
		require.NoError(f.t, err)
		testInserts(f, func(tx bun.Tx) store.Tx { return store.NativeTx(tx.Tx, f.d) })
	})
}

func testInserts(f logFixture, in func(tx bun.Tx) store.Tx) {
	f.t.Helper()
	saving := store.NewSaving(f.d, prepared.New(f.db))
	insert := func(events ...store.NewEvent) {
		f.t.Helper()
		require.NoError(f.t, f.inTx(func(ctx context.Context, tx bun.Tx) error {
			_, err := saving.Save(ctx, in(tx), events)
			return err
		}))
	}
	plain := func(id string) store.NewEvent {
		return store.NewEvent{
			AggregateType: "A", AggregateID: "1", Type: "a.b", ID: id, Payload: `{"n":1}`, Metadata: `{}`, SchemaVersion: 1,
			MaxAttempts: store.DefaultMaxAttempts,
		}
	}
	full := plain("full")
	full.TenantID, full.StoreID, full.SchemaVersion, full.MaxAttempts = 7, 8, 3, 4
	full.DeliverAt, full.TraceID, full.Key, full.IsKeyed = time.Now().Add(time.Hour), "trace", "order-1", true
	insert(plain("plain"))
	insert(full, plain("beside it"))
	type event struct {
		status              string
		tenant, store       int64
		version, most       int
		traceID, key, isDue string
	}
	read := func(id string) (e event) {
		require.NoError(f.t, f.db.QueryRowContext(f.t.Context(), "SELECT status, COALESCE(tenant_id, 0), COALESCE(store_id, 0), "+
			"schema_version, max_retry_count, COALESCE(trace_id, ''), COALESCE(event_key, ''), CASE WHEN next_retry_at <= "+f.d.Now+
			" THEN 'now' ELSE 'later' END FROM bc_outbox_event WHERE event_id = ?", id).
			Scan(&e.status, &e.tenant, &e.store, &e.version, &e.most, &e.traceID, &e.key, &e.isDue))
		return e
	}
	require.Equal(f.t, event{status: "NEW", version: 1, most: 10, isDue: "now"}, read("plain"))
	require.Equal(f.t, event{status: "NEW", version: 1, most: 10, isDue: "now"}, read("beside it"))
	require.Equal(f.t, event{"SCHEDULED", 7, 8, 3, 4, "trace", "order-1", "later"}, read("full"))
	one, two, three, four := plain("max_retry_count"), plain("tenant_id"), plain("store_id"), plain("schema_version")
	one.MaxAttempts, two.TenantID, three.StoreID, four.SchemaVersion = 4, 4, 4, 4
	for _, e := range []store.NewEvent{one, two, three, four} {
		insert(e)
		var n int
		query := "SELECT " + e.ID + " FROM bc_outbox_event WHERE event_id = ?"
		require.NoError(f.t, f.db.QueryRowContext(f.t.Context(), query, e.ID).Scan(&n))
		require.Equal(f.t, 4, n, "no other column differs from its default")
	}
	insert(full)
	require.Equal(f.t, 7, f.rows("bc_outbox_event"), "a keyed event that exists is left alone")
}

// PostgreSQL tells how tables have grown since it looked, and looks.
func TestStatisticsOfYoungTables(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		if f.d.Name != "postgres" {
			return
		}
		ctx := f.t.Context()
		for i := range 200 {
			f.put(time.Duration(i).String(), "NEW", 0, 0)
		}
		growth := func() (events store.TableGrowth) {
			found, err := store.Growth(ctx, f.db)
			require.NoError(f.t, err)
			require.Len(f.t, found, 2)
			for _, g := range found {
				if g.Table == "bc_outbox_event" {
					events = g
				}
			}
			return events
		}
		require.Greater(f.t, growth().Pages, growth().Known)
		require.NoError(f.t, store.Analyze(ctx, f.db, []string{"bc_outbox_event", "bc_event_consume_log"}))
		require.Equal(f.t, growth().Pages, growth().Known)
	})
}
