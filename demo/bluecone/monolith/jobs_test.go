package monolith_test

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/demo/bluecone/monolith"
	"github.com/bluecone-go/bluecone/demo/bluecone/settings"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/reaper"
)

// tries counts how often a lease was asked for.
type tries struct{ n atomic.Int64 }

func (h *tries) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

func (h *tries) AfterQuery(_ context.Context, ev *bun.QueryEvent) {
	if strings.HasPrefix(ev.Query, "UPDATE bc_job_lease SET locked_by = '") {
		h.n.Add(1)
	}
}

// A job that its own schedule has at work is run after that, not refused.
func TestRunJobWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	db, asked := testdb.Open(t, "sqlite"), &tries{}
	app, err := monolith.New(t.Context(), monolith.Options{
		DB: db.WithQueryHook(asked), Settings: settings.Default(), Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	_, err = app.RunJob(t.Context(), reaper.JobCode)
	require.NoError(t, err)
	hold := func(by any) {
		_, err := db.ExecContext(t.Context(), "UPDATE bc_job_lease SET locked_by = ?, locked_until = '2999-01-01 00:00:00.000000' "+
			"WHERE job_code = ?", by, reaper.JobCode)
		require.NoError(t, err)
	}
	hold("another")
	before := asked.n.Load()
	done := make(chan error, 1)
	go func() {
		_, err := app.RunJob(t.Context(), reaper.JobCode)
		done <- err
	}()
	require.Eventually(t, func() bool { return asked.n.Load() >= before+2 }, testdb.Patience(), time.Millisecond, "it asks again")
	require.Empty(t, done)
	hold(nil)
	require.NoError(t, <-done)
}
