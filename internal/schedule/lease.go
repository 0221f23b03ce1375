package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/bluecone-go/bluecone/internal/contain"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/text"
)

const (
	keepRuns    = 200
	bookkeeping = 10 * time.Second
)

var (
	errLost = errors.New("the job's lease passed to another instance")
	errOver = errors.New("the job's lease has run out, because it could not be renewed: another instance may run the job")
)

// run takes the lease, runs the job under it, and writes down what came of it.
func (r *Runner) run(ctx context.Context, j Job, due time.Time, outOfTurn bool) (Report, error) {
	version, asked, err := r.acquire(ctx, j, due, outOfTurn)
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
		r.renew(jobCtx, j.Code, version, asked, cancel)
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

// guarded runs the job and turns a panic, and a call of runtime.Goexit, into an error.
func guarded(ctx context.Context, j Job) (counts Counts, err error) {
	err = contain.Call("job "+j.Code, func() (err error) {
		counts, err = j.Run(ctx)
		return err
	})
	if p, ok := err.(*contain.PanicError); ok { //nolint:errorlint // what it wraps is an error of the job's
		err = fmt.Errorf("%w\n%s", p, p.Stack)
	}
	return counts, err
}

// acquire takes the lease if it is free or expired. When the job is due, it also demands that nobody
// has taken this due time since it was read. The lease lasts from asked on, or longer.
func (r *Runner) acquire(ctx context.Context, j Job, due time.Time, outOfTurn bool) (version int64, asked time.Time, err error) {
	last, err := r.sql.LastDue(ctx, r.db, j.Code)
	if err != nil {
		return 0, asked, fmt.Errorf("schedule: %s: %w", j.Code, err)
	}
	if !outOfTurn && j.Spec.Next(time.UnixMicro(last.LastDue)).After(due) {
		return 0, asked, ErrBusy // somebody was faster
	}
	asked = time.Now()
	done, err := r.sql.Lease(ctx, r.db, r.lease(j.Code, last.Version), r.cfg.Lease, !outOfTurn)
	switch {
	case err != nil:
		return 0, asked, fmt.Errorf("schedule: %s: take the lease: %w", j.Code, err)
	case !done:
		return 0, asked, fmt.Errorf("schedule: %s: %w", j.Code, ErrBusy)
	}
	return last.Version + 1, asked, nil
}

// lease is the lease of a job that this instance has taken, or takes.
func (r *Runner) lease(code string, version int64) store.JobLease {
	return store.JobLease{Code: code, Owner: r.cfg.Instance, Version: version}
}

// renew prolongs the lease, which began at a time or later, at a third of its length. It cancels the job when the lease is lost, and
// when it is over because no renewal has succeeded.
func (r *Runner) renew(ctx context.Context, code string, version int64, asked time.Time, cancel context.CancelCauseFunc) {
	left := func() time.Duration { return time.Until(asked.Add(r.cfg.Lease)) }
	over := time.AfterFunc(left(), func() { cancel(errOver) }) // a driver may not heed the deadline of a renewal
	defer over.Stop()
	tick := time.NewTicker(r.cfg.Lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		isMine, err := r.tryRenew(ctx, code, version)
		switch {
		case err != nil:
			r.cfg.Logger.DebugContext(ctx, "the lease of a job could not be renewed; it is tried again in a moment", "job", code,
				telemetry.Err, err)
		case !isMine:
			cancel(errLost)
			return
		default:
			asked = now
			over.Reset(left())
		}
	}
}

// tryRenew prolongs the lease once. It does not wait longer than until the next try.
func (r *Runner) tryRenew(ctx context.Context, code string, version int64) (isMine bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Lease/3)
	defer cancel()
	return r.sql.Renew(ctx, r.db, r.lease(code, version), r.cfg.Lease)
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
