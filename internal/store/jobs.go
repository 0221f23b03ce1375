package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// Jobs are the rows of bc_job_lease and bc_job_run. Times are microseconds since the epoch by the database's clock, 0 for none.
type Jobs struct{ d dialect.Dialect }

// NewJobs returns the statements in the words of a database.
func NewJobs(d dialect.Dialect) Jobs { return Jobs{d} }

// Exists reports whether an instance has ever had the job, by the primary key.
func (Jobs) Exists(ctx context.Context, idb bun.IDB, code string) (bool, error) {
	var n int
	err := idb.QueryRowContext(ctx, "SELECT COUNT(*) FROM bc_job_lease WHERE job_code = ?", code).Scan(&n)
	return n == 1, err
}

// Add records a job as last due now, unless it is recorded.
func (j Jobs) Add(ctx context.Context, idb bun.IDB, code string) error {
	_, err := idb.ExecContext(ctx, "INSERT INTO bc_job_lease (job_code, last_due_at) VALUES (?, "+j.d.Now+")"+j.d.Ignore("job_code"), code)
	return err
}

// SetCron writes down when a job is due, by the primary key, unless that is what is written there.
func (Jobs) SetCron(ctx context.Context, idb bun.IDB, code, cron string) error {
	_, err := idb.ExecContext(ctx, "UPDATE bc_job_lease SET cron = ? WHERE job_code = ? AND COALESCE(cron, '') <> ?", cron, code, cron)
	return err
}

// JobLastDue is when a job was last due.
type JobLastDue struct {
	Version      int64 // of its lease
	Now, LastDue int64
}

// LastDue reads when a job was last due, by the primary key.
func (j Jobs) LastDue(ctx context.Context, idb bun.IDB, code string) (t JobLastDue, err error) {
	err = idb.QueryRowContext(ctx, "SELECT lock_version, "+j.d.Micros(j.d.Now)+", COALESCE("+j.d.Micros("last_due_at")+
		", 0) FROM bc_job_lease WHERE job_code = ?", code).Scan(&t.Version, &t.Now, &t.LastDue)
	return t, err
}

// MakeJobDue makes a job due at the next look of an instance that has it: a job that was last due in the distant past has
// missed a turn. known is false if no instance has ever had the job.
func MakeJobDue(ctx context.Context, tx bun.Tx, d dialect.Dialect, code string) (known bool, err error) {
	if _, err := tx.ExecContext(ctx, "UPDATE bc_job_lease SET last_due_at = "+d.At+" WHERE job_code = ?",
		time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro(), code); err != nil {
		return false, err
	}
	// MySQL counts no row that the UPDATE leaves as it was, as it does with a job that is due already.
	return NewJobs(d).Exists(ctx, tx, code)
}

// JobLease is the right of an owner to run a job, until somebody counts its version up.
type JobLease struct {
	Code, Owner string
	Version     int64
}

// Lease takes the lease of a job that is free or whose lease has run out, unless its version has changed, and counts the version
// up, by the primary key. A due time that is taken makes the job last due now.
func (j Jobs) Lease(ctx context.Context, idb bun.IDB, l JobLease, length time.Duration, takesTurn bool) (done bool, err error) {
	set := ""
	if takesTurn {
		set = ", last_due_at = " + j.d.Now
	}
	return hasChanged(idb.ExecContext(ctx, "UPDATE bc_job_lease SET locked_by = ?, locked_until = "+j.d.After+", lock_version = "+
		"lock_version + 1, last_started_at = "+j.d.Now+", last_status = 'RUNNING'"+set+
		" WHERE job_code = ? AND lock_version = ? AND (locked_by IS NULL OR locked_until IS NULL OR locked_until < "+j.d.Now+")",
		l.Owner, dialect.Micro(length), l.Code, l.Version))
}

// Renew makes a lease last from now on, by the primary key. done is false if it has been lost.
func (j Jobs) Renew(ctx context.Context, idb bun.IDB, l JobLease, length time.Duration) (done bool, err error) {
	return hasChanged(idb.ExecContext(ctx, "UPDATE bc_job_lease SET locked_until = "+j.d.After+" WHERE job_code = ? AND lock_version = ? "+
		"AND locked_by = ?", dialect.Micro(length), l.Code, l.Version, l.Owner))
}

// Release ends a lease, by the primary key, and writes down how the run ended.
func (j Jobs) Release(ctx context.Context, idb bun.IDB, l JobLease, status string) error {
	_, err := idb.ExecContext(ctx, "UPDATE bc_job_lease SET locked_by = NULL, locked_until = NULL, lock_version = lock_version + 1, "+
		"last_finished_at = "+j.d.Now+", last_status = ? WHERE job_code = ? AND lock_version = ? AND locked_by = ?",
		status, l.Code, l.Version, l.Owner)
	return err
}

// JobRun is a run of a job that ends now.
type JobRun struct {
	Code, Instance, Status string
	Took                   time.Duration
	Counts                 string // JSON
	Error                  string // empty for none
}

// AddRun adds a run to the history.
func (j Jobs) AddRun(ctx context.Context, idb bun.IDB, r JobRun) error {
	_, err := idb.ExecContext(ctx, "INSERT INTO bc_job_run (job_code, instance, status, started_at, finished_at, duration_us, counts, "+
		"error_message) VALUES (?, ?, ?, "+j.d.After+", "+j.d.Now+", ?, ?, ?)",
		r.Code, r.Instance, r.Status, -dialect.Micro(r.Took), dialect.Micro(r.Took), r.Counts, nullText(r.Error))
	return err
}

// RunBefore is the id of the newest run of a job but for so many, 0 if there are no more, by idx_job_code.
func (Jobs) RunBefore(ctx context.Context, idb bun.IDB, code string, newest int) (id int64, err error) {
	err = idb.QueryRowContext(ctx, "SELECT id FROM bc_job_run WHERE job_code = ? ORDER BY id DESC LIMIT 1 OFFSET ?", code, newest).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return id, err
}

// RemoveRuns removes the runs of a job up to an id, by idx_job_code.
func (Jobs) RemoveRuns(ctx context.Context, idb bun.IDB, code string, upTo int64) error {
	_, err := idb.ExecContext(ctx, "DELETE FROM bc_job_run WHERE job_code = ? AND id <= ?", code, upTo)
	return err
}

// LastSuccess tells how long ago a job last succeeded, along idx_job_code from its newest run on. ok is false if it never has.
func (j Jobs) LastSuccess(ctx context.Context, idb bun.IDB, code string) (age time.Duration, ok bool, err error) {
	us := int64(-1)
	err = idb.QueryRowContext(ctx, "SELECT COALESCE((SELECT "+j.d.Micros(j.d.Now)+" - "+j.d.Micros("finished_at")+
		" FROM bc_job_run WHERE job_code = ? AND status = 'SUCCESS' ORDER BY id DESC LIMIT 1), -1)", code).Scan(&us)
	return time.Duration(us) * time.Microsecond, us >= 0, err
}

// LastError is why the newest run of a job failed, by idx_job_code; empty if it did not, or if there was none.
func (Jobs) LastError(ctx context.Context, idb bun.IDB, code string) (said string, err error) {
	err = idb.QueryRowContext(ctx,
		"SELECT COALESCE((SELECT error_message FROM bc_job_run WHERE job_code = ? ORDER BY id DESC LIMIT 1), '')", code).Scan(&said)
	return said, err
}

// JobState is how a job stands.
type JobState struct {
	Code, LastStatus      string
	LastDue, LastFinished int64
}

// States lists how all jobs but one stand.
func (j Jobs) States(ctx context.Context, idb bun.IDB, except string) (found []JobState, err error) {
	err = EachRow(ctx, idb, func(rows *sql.Rows) error {
		var s JobState
		err := rows.Scan(&s.Code, &s.LastStatus, &s.LastDue, &s.LastFinished)
		found = append(found, s)
		return err
	}, "SELECT job_code, COALESCE(last_status, ''), COALESCE("+j.d.Micros("last_due_at")+", 0), "+
		"COALESCE("+j.d.Micros("last_finished_at")+", 0) FROM bc_job_lease WHERE job_code <> ?", except)
	return found, err
}
