package monolith_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/demo/bluecone/monolith"
	"github.com/bluecone-go/bluecone/demo/bluecone/settings"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/reaper"
)

// A job that its own schedule has at work is run after that, not refused.
func TestRunJobWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "sqlite")
	app, err := monolith.New(t.Context(), monolith.Options{DB: db, Settings: settings.Default(), Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	_, err = app.RunJob(t.Context(), reaper.JobCode)
	require.NoError(t, err)
	hold := func(until string) {
		_, err := db.ExecContext(t.Context(), "UPDATE bc_job_lease SET locked_by = 'another', locked_until = "+until+" WHERE job_code = ?", reaper.JobCode)
		require.NoError(t, err)
	}
	hold("'2999-01-01 00:00:00.000000'")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = app.RunJob(ctx, reaper.JobCode)
	require.ErrorIs(t, err, reaper.ErrBusy, "until the caller gives up")
	hold("strftime('%Y-%m-%d %H:%M:%f', 'now', '+0.3 seconds') || '000'")
	_, err = app.RunJob(t.Context(), reaper.JobCode)
	require.NoError(t, err)
}
