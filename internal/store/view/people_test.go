package view_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/store/view"
)

// Instances that were seen lately are listed, the latest first, and those that leave consumers alone.
func TestInstancesAreListed(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		ctx := f.t.Context()
		for name, ago := range map[string]time.Duration{"gone": 3 * time.Hour, "one": time.Hour, "two": 0} {
			of := store.Instance{Name: name, Run: "r", Host: "h", Version: "v", InFlight: 5, Circuits: map[string]string{"one": "C,D"}[name]}
			require.NoError(f.t, store.NewInstances(f.D).Announce(ctx, f.db, of))
			f.exec("UPDATE bc_instance SET seen_at = "+f.D.After+" WHERE name = ?", -dialect.Micro(ago), name)
		}
		found := must[[]view.Instance](f.t)(view.Instances(ctx, f.Reader, 2*time.Hour, 10))
		require.Len(f.t, found, 2)
		require.Equal(f.t, []string{"two", "one"}, []string{found[0].Name, found[1].Name})
		require.Equal(f.t, []any{"h", "v", int64(5), false}, []any{found[0].Host, found[0].Version, found[0].InFlight, found[0].IsDraining})
		require.InDelta(f.t, time.Hour, found[1].SeenFor, float64(30*time.Minute))
		f.ago(time.Hour, found[1].SeenAt)
		require.Len(f.t, must[[]view.Instance](f.t)(view.Instances(ctx, f.Reader, 2*time.Hour, 1)), 1)
		open := make(map[string]string)
		require.NoError(f.t, view.Circuits(ctx, f.Reader, 2*time.Hour, 10, func(instance, consumers string) { open[instance] = consumers }))
		require.Equal(f.t, map[string]string{"one": "C,D"}, open)
	})
}

// The audit log is read page by page from the newest row on, of all targets or of some.
func TestTheAuditLogIsRead(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		ctx, rows := f.t.Context(), must[[]view.AuditRow](f.t)
		for _, target := range []string{"a", "b", "a"} {
			require.NoError(f.t, store.WriteAudit(ctx, f.db, f.D, store.AuditEntry{
				Actor: "ann", Action: "retry", Target: target, Reason: "a long reason", Details: "C",
			}))
		}
		page := rows(view.AuditBefore(ctx, f.Reader, 0, "", 2, 6))
		require.Len(f.t, page, 2)
		f.ago(0, page[0].At)
		require.Equal(f.t, view.AuditRow{
			ID: page[0].ID, Actor: "ann", Action: "retry", Target: "a", Reason: "a long ", Details: "C", At: page[0].At,
		}, page[0])
		page = rows(view.AuditBefore(ctx, f.Reader, page[1].ID, "", 2, 6))
		require.Len(f.t, page, 1)
		require.Len(f.t, rows(view.AuditBefore(ctx, f.Reader, 0, "a", 10, 6)), 2)
		require.Len(f.t, rows(view.AuditOf(ctx, f.Reader, []string{"a", "b"}, 10, 6)), 3)
		require.Len(f.t, rows(view.AuditOf(ctx, f.Reader, []string{"b", "c"}, 10, 6)), 1)
	})
}

// The registry is read with one row for each type of a consumer.
func TestTheRegistryIsRead(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		f.consumer("C", time.Hour)
		f.consumer("D", 0)
		f.exec("INSERT INTO bc_consumer_type (consumer_name, event_type) VALUES ('C', 'c.d')")
		f.exec("UPDATE bc_consumer SET display_name = name, paused_until = "+f.D.After+", paused_by = 'ann', pause_reason = ? WHERE name = 'D'",
			dialect.Micro(time.Hour), long(50))
		var found []view.Consumer
		require.NoError(f.t, view.Consumers(f.t.Context(), f.Reader, 10, func(c view.Consumer) error { found = append(found, c); return nil }))
		require.Len(f.t, found, 3)
		require.Equal(f.t, []string{"C a.b", "C c.d", "D a.b"},
			[]string{found[0].Name + " " + found[0].Type, found[1].Name + " " + found[1].Type, found[2].Name + " " + found[2].Type})
		require.Equal(f.t, []any{"the C", `["a.b"]`, true, false},
			[]any{found[0].DisplayName, found[0].Types, found[0].IsReplayable, found[0].IsPaused})
		require.InDelta(f.t, time.Hour, found[0].SeenFor, float64(30*time.Minute))
		f.ago(2*time.Hour, found[0].RegisteredAt)
		require.True(f.t, found[0].PausedUntil.IsZero())
		d := found[2]
		require.Equal(f.t, []any{"", true, "ann", long(50)[:11]}, []any{d.DisplayName, d.IsPaused, d.PausedBy, d.PauseReason})
		f.ago(-time.Hour, d.PausedUntil)
	})
}

// Jobs are listed with who runs them, and their runs from the newest on; counts that are too long are left out.
func TestJobsAndTheirRunsAreListed(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		ctx, jobs := f.t.Context(), store.NewJobs(f.D)
		require.NoError(f.t, jobs.Add(ctx, f.db, "busy"))
		require.NoError(f.t, jobs.Add(ctx, f.db, "idle"))
		_, err := jobs.Lease(ctx, f.db, store.JobLease{Code: "busy", Owner: "me"}, time.Hour, true)
		require.NoError(f.t, err)
		leases := must[[]view.JobLease](f.t)(view.JobLeases(ctx, f.Reader, 10))
		require.Len(f.t, leases, 2)
		busy, idle := leases[0], leases[1]
		require.Equal(f.t, []any{"busy", true, "me", "RUNNING"}, []any{busy.Code, busy.IsRunning, busy.LockedBy, busy.LastStatus})
		f.ago(0, busy.LastStarted)
		require.True(f.t, busy.LastDone.IsZero())
		require.Equal(f.t, []any{"idle", false, "", ""}, []any{idle.Code, idle.IsRunning, idle.LockedBy, idle.LastStatus})
		require.Len(f.t, must[[]view.JobLease](f.t)(view.JobLeases(ctx, f.Reader, 1)), 1)

		for _, counts := range []string{`{"n":1}`, `{"` + strings.Repeat("x", 100) + `":1}`} {
			require.NoError(f.t, jobs.AddRun(ctx, f.db, store.JobRun{
				Code: "busy", Instance: "me", Status: "FAILED", Took: time.Second, Counts: counts, Error: long(50),
			}))
		}
		runs := must[[]view.JobRun](f.t)(view.JobRuns(ctx, f.Reader, "busy", 10, 10))
		require.Len(f.t, runs, 2)
		require.Equal(f.t, []string{"", `{"n":1}`}, []string{runs[0].Counts, runs[1].Counts})
		require.Equal(f.t, []any{"me", "FAILED", time.Second, long(50)[:11]},
			[]any{runs[0].Instance, runs[0].Status, runs[0].Duration, runs[0].Error})
		require.InDelta(f.t, time.Second, runs[0].FinishedAt.Sub(runs[0].StartedAt), float64(10*time.Millisecond))
		require.Empty(f.t, must[[]view.JobRun](f.t)(view.JobRuns(ctx, f.Reader, "idle", 10, 10)))
	})
}

// Bulk operations are listed from the newest on; the oldest that nobody works on is the next one.
func TestBulkOperationsAreListed(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		ctx, bulks, texts := f.t.Context(), must[[]view.Bulk](f.t), view.Texts{Request: 10, Other: 4}
		free := func(after int64) string {
			_, operation, err := view.FreeBulk(ctx, f.Reader, after)
			require.NoError(f.t, err)
			return operation
		}
		require.Empty(f.t, free(0))
		upTo := f.event("a", "DEAD", 0)
		ops := store.NewBulkOperations(f.D)
		for _, id := range []string{"one", "two"} {
			require.NoError(f.t, f.db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
				return ops.Insert(ctx, tx, store.NewBulk{ID: id, Action: "retry", Request: "{}", Actor: "ann", Reason: "a test", Total: 3})
			}))
		}
		found := bulks(view.BulksBefore(ctx, f.Reader, 0, 10, texts))
		require.Len(f.t, found, 2)
		f.ago(0, found[0].CreatedAt)
		require.Equal(f.t, view.Bulk{
			ID: found[0].ID, OperationID: "two", Action: "retry", Request: "{}", State: "RUNNING", Total: 3, Actor: "ann", Reason: "a tes",
			CreatedAt: found[0].CreatedAt, UpdatedAt: found[0].UpdatedAt,
		}, found[0])
		require.Equal(f.t, found[1:], bulks(view.BulksBefore(ctx, f.Reader, found[0].ID, 10, texts)))
		require.Equal(f.t, found[:1], bulks(view.BulkOf(ctx, f.Reader, "two", texts)))
		require.Empty(f.t, bulks(view.BulkOf(ctx, f.Reader, "three", texts)))
		require.Equal(f.t, "one", free(0))
		require.Equal(f.t, "two", free(found[1].ID), "behind the first one")
		_, err := ops.Lease(ctx, f.db, store.BulkLease{ID: "one", Owner: "me"}, time.Hour)
		require.NoError(f.t, err)
		require.Equal(f.t, "two", free(0))
		require.Equal(f.t, view.BulkPlace{Version: 1, UpTo: upTo}, must[view.BulkPlace](f.t)(view.BulkPlaceOf(ctx, f.Reader, "one")))
		_, err = view.BulkPlaceOf(ctx, f.Reader, "three")
		require.Error(f.t, err)
	})
}
