package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/text"
)

const (
	keepRuns    = 200
	bookkeeping = 10 * time.Second
)

var errLost = errors.New("the job's lease passed to another instance")

// run takes the lease, runs the job under it, and writes down what came of it.
func (r *Runner) run(ctx context.Context, j Job, due time.Time, outOfTurn bool) (Report, error) {
	version, err := r.acquire(ctx, j, due, outOfTurn)
	if err != nil {
		return Report{Job: j.Code}, err
	}
	ctx, span := r.tracer.Start(ctx, "job "+j.Code)
	jobCtx, cancel := context.WithCancelCause(ctx)
	if j.Timeout > 0 {
		var stop context.CancelFunc
		jobCtx, stop = context.WithTimeoutCause(jobCtx, j.Timeout, fmt.Errorf("job %s exceeded its timeout of %v", j.Code, j.Timeout))
		defer stop()
	}
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		r.renew(jobCtx, j.Code, version, cancel)
	}()
	began := time.Now()
	counts, err := guarded(jobCtx, j)
	if err != nil && jobCtx.Err() != nil {
		err = fmt.Errorf("%w (%w)", err, context.Cause(jobCtx))
	}
	cancel(nil)
	<-renewed
	report := Report{Job: j.Code, Counts: counts, Duration: time.Since(began), Error: text.Error(err)}
	if e := r.release(context.WithoutCancel(ctx), j, version, report); e != nil {
		err = errors.Join(err, e)
	}
	telemetry.End(span, err)
	telemetry.Add(ctx, r.runs, 1, "jobCode", j.Code, telemetry.Status, status(report))
	level := slog.LevelInfo
	if j.Quiet && err == nil {
		level = slog.LevelDebug
	}
	r.cfg.Logger.Log(ctx, level, "job ended", "job", j.Code, "counts", counts, telemetry.Took, report.Duration, telemetry.Err, report.Error)
	return report, err
}

// guarded runs the job and turns a panic into an error.
func guarded(ctx context.Context, j Job) (counts Counts, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("job %s panicked: %v\n%s", j.Code, v, debug.Stack())
		}
	}()
	return j.Run(ctx)
}

// acquire takes the lease if it is free or expired. In turn, it also demands that nobody
// has taken this turn since it was read.
func (r *Runner) acquire(ctx context.Context, j Job, due time.Time, outOfTurn bool) (version int64, err error) {
	var last int64
	err = r.db.QueryRowContext(ctx, "SELECT lock_version, COALESCE("+r.d.Micros("last_due_at")+
		", 0) FROM bc_job_lease WHERE job_code = ?", j.Code).Scan(&version, &last)
	if err != nil {
		return 0, fmt.Errorf("schedule: %s: %w", j.Code, err)
	}
	if !outOfTurn && j.Spec.Next(time.UnixMicro(last)).After(due) {
		return 0, ErrBusy // somebody was faster
	}
	set := ""
	if !outOfTurn {
		set = ", last_due_at = " + r.d.Now
	}
	res, err := r.db.ExecContext(ctx, "UPDATE bc_job_lease SET locked_by = ?, locked_until = "+r.d.After+", lock_version = "+
		"lock_version + 1, last_started_at = "+r.d.Now+", last_status = 'RUNNING'"+set+
		" WHERE job_code = ? AND lock_version = ? AND (locked_by IS NULL OR locked_until IS NULL OR locked_until < "+r.d.Now+")",
		r.cfg.Instance, dialect.Micro(r.cfg.Lease), j.Code, version)
	if err != nil {
		return 0, fmt.Errorf("schedule: %s: take the lease: %w", j.Code, err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return 0, errors.Join(err, fmt.Errorf("schedule: %s: %w", j.Code, ErrBusy))
	}
	return version + 1, nil
}

// renew prolongs the lease at a third of its length; a lost one cancels the job.
func (r *Runner) renew(ctx context.Context, code string, version int64, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(r.cfg.Lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		res, err := r.db.ExecContext(ctx, "UPDATE bc_job_lease SET locked_until = "+r.d.After+" WHERE job_code = ? AND lock_version = ? "+
			"AND locked_by = ?",
			dialect.Micro(r.cfg.Lease), code, version, r.cfg.Instance)
		if err != nil {
			continue // the next beat tries again
		}
		if n, err := res.RowsAffected(); err == nil && n == 0 {
			cancel(errLost)
			return
		}
	}
}

// release ends the lease and writes the history, even if ctx is over.
func (r *Runner) release(ctx context.Context, j Job, version int64, rep Report) error {
	ctx, cancel := context.WithTimeout(ctx, bookkeeping)
	defer cancel()
	counts, err := json.Marshal(rep.Counts)
	if err != nil {
		return fmt.Errorf("schedule: %s: %w", j.Code, err)
	}
	_, err = r.db.ExecContext(ctx, "UPDATE bc_job_lease SET locked_by = NULL, locked_until = NULL, lock_version = lock_version + 1, "+
		"last_finished_at = "+r.d.Now+", last_status = ? WHERE job_code = ? AND lock_version = ? AND locked_by = ?",
		status(rep), j.Code, version, r.cfg.Instance)
	if err != nil {
		return fmt.Errorf("schedule: %s: release the lease: %w", j.Code, err)
	}
	_, err = r.db.ExecContext(ctx, "INSERT INTO bc_job_run (job_code, instance, status, started_at, finished_at, duration_us, counts, "+
		"error_message) VALUES (?, ?, ?, "+r.d.After+", "+r.d.Now+", ?, ?, ?)",
		j.Code, r.cfg.Instance, status(rep), -rep.Duration.Microseconds(), rep.Duration.Microseconds(), string(counts), orNull(rep.Error))
	if err != nil {
		return fmt.Errorf("schedule: %s: write the history: %w", j.Code, err)
	}
	return r.trim(ctx, j.Code)
}

func status(rep Report) string {
	if rep.Error != "" {
		return "FAILED"
	}
	return "SUCCESS"
}

// trim keeps the newest runs of a job.
func (r *Runner) trim(ctx context.Context, code string) error {
	var oldest int64
	err := r.db.QueryRowContext(ctx, "SELECT COALESCE((SELECT id FROM bc_job_run WHERE job_code = ? ORDER BY id DESC "+
		"LIMIT 1 OFFSET ?), 0)", code, keepRuns).Scan(&oldest)
	if err != nil || oldest == 0 {
		return err
	}
	_, err = r.db.ExecContext(ctx, "DELETE FROM bc_job_run WHERE job_code = ? AND id <= ?", code, oldest)
	return err
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}
