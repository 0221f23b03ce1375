package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/bluecone-go/bluecone/internal/store"
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
	err = Contain(func() (err error) {
		counts, err = j.Run(ctx)
		return err
	})
	if p, ok := err.(*PanicError); ok { //nolint:errorlint // what it wraps is an error of the job's
		err = fmt.Errorf("job %s panicked: %v\n%s", j.Code, p.Value, p.Stack)
	}
	return counts, err
}

// acquire takes the lease if it is free or expired. In turn, it also demands that nobody
// has taken this turn since it was read.
func (r *Runner) acquire(ctx context.Context, j Job, due time.Time, outOfTurn bool) (version int64, err error) {
	turn, err := r.sql.Turn(ctx, r.db, j.Code)
	if err != nil {
		return 0, fmt.Errorf("schedule: %s: %w", j.Code, err)
	}
	if !outOfTurn && j.Spec.Next(time.UnixMicro(turn.LastDue)).After(due) {
		return 0, ErrBusy // somebody was faster
	}
	done, err := r.sql.Lease(ctx, r.db, r.lease(j.Code, turn.Version), r.cfg.Lease, !outOfTurn)
	switch {
	case err != nil:
		return 0, fmt.Errorf("schedule: %s: take the lease: %w", j.Code, err)
	case !done:
		return 0, fmt.Errorf("schedule: %s: %w", j.Code, ErrBusy)
	}
	return turn.Version + 1, nil
}

// lease is the lease of a job that this instance has taken, or takes.
func (r *Runner) lease(code string, version int64) store.JobLease {
	return store.JobLease{Code: code, Owner: r.cfg.Instance, Version: version}
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
		isMine, err := r.sql.Renew(ctx, r.db, r.lease(code, version), r.cfg.Lease)
		if err == nil && !isMine { // after an error the next beat tries again
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
	if err := r.sql.Release(ctx, r.db, r.lease(j.Code, version), status(rep)); err != nil {
		return fmt.Errorf("schedule: %s: release the lease: %w", j.Code, err)
	}
	err = r.sql.AddRun(ctx, r.db, store.JobRun{
		Code: j.Code, Instance: r.cfg.Instance, Status: status(rep), Took: rep.Duration, Counts: string(counts), Error: rep.Error,
	})
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
	oldest, err := r.sql.RunBefore(ctx, r.db, code, keepRuns)
	if err != nil || oldest == 0 {
		return err
	}
	return r.sql.RemoveRuns(ctx, r.db, code, oldest)
}
