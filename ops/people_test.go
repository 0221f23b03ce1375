package ops_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ops"
)

// A list has at most two kilobytes of each text, whoever has written it. Counts that are longer are left out.
func TestListsHaveLittleOfEachText(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		const most = 2048
		f := newFixture(t, db, ops.Config{})
		long := strings.Repeat("𝄞", 5000)
		f.exec("INSERT INTO bc_audit_log (actor, action, target, reason, details) VALUES ('a', 'b', 'c', ?, ?)", long, long)
		f.exec("INSERT INTO bc_job_lease (job_code) VALUES ('j')")
		for _, counts := range []string{
			`{"released":3}`, `{"` + long + `":3}`, `{"` + strings.Repeat("x", most) + `":3}`, `{"` + strings.Repeat("y", 1900) + `":3}`,
		} {
			f.exec("INSERT INTO bc_job_run (job_code, instance, status, counts, error_message) VALUES ('j', 'i', 'FAILED', ?, ?)", counts, long)
		}
		for _, q := range []ops.AuditQuery{{}, {Target: "c"}} {
			log, err := f.ops.Audit(t.Context(), q)
			require.NoError(t, err)
			require.Len(t, log.Rows, 1)
			require.True(t, strings.HasPrefix(log.Rows[0].Reason, "𝄞𝄞𝄞"))
			require.LessOrEqual(t, len(log.Rows[0].Reason), most)
			require.LessOrEqual(t, len(log.Rows[0].Details), most)
		}
		jobs, err := f.ops.Jobs(t.Context())
		require.NoError(t, err)
		require.Len(t, jobs, 1)
		require.Len(t, jobs[0].Runs, 4)
		for i, names := range []int{1900, 0, 0, len("released")} { // the newest first
			run, got := jobs[0].Runs[i], 0
			for name := range run.Counts {
				got = len(name)
			}
			require.Equal(t, names, got)
			require.LessOrEqual(t, len(run.Error), most)
		}
	})
}
