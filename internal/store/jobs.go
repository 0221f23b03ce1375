package store

import (
	"context"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// MakeJobDue makes a job due at the next look of whoever has it: a turn that was last due in the distant past is one that
// everybody has missed. known is false if no instance has ever had the job.
func MakeJobDue(ctx context.Context, tx bun.Tx, d dialect.Dialect, code string) (known bool, err error) {
	return hasChanged(tx.ExecContext(ctx, "UPDATE bc_job_lease SET last_due_at = "+d.At+" WHERE job_code = ?",
		time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro(), code))
}
