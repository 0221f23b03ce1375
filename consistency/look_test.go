package consistency_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/consistency"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// Looking finds what a run would, and leaves no trace: no event, no lease, no run of the job.
func TestLookWritesNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		d := newDepot(t, db)
		d.ship("lost", 30, false)
		d.ship("fine", 30, true)
		s, err := consistency.New(db, consistency.Config{Logger: quiet}, d.check())
		require.NoError(t, err)
		report, err := s.Look(t.Context())
		require.NoError(t, err)
		require.Equal(t, consistency.Result{Found: 1, Keys: []string{"lost"}}, report["parcel.shipped"])
		require.Equal(t, 1, d.count("SELECT COUNT(*) FROM bc_outbox_event"))
		require.Zero(t, d.count("SELECT COUNT(*) FROM bc_job_run"))
		require.Zero(t, d.count("SELECT COUNT(*) FROM bc_job_lease"))
		_, err = s.Look(t.Context(), "parcel.sent")
		require.ErrorContains(t, err, `there is no check "parcel.sent"`)
		run, err := s.RunOnce(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, run["parcel.shipped"].Repaired, "a run repairs as before")
	})
}
