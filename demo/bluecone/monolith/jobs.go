package monolith

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bluecone-go/bluecone/alert"
	"github.com/bluecone-go/bluecone/consistency"
	"github.com/bluecone-go/bluecone/outbox"
	"github.com/bluecone-go/bluecone/reaper"
	"github.com/bluecone-go/bluecone/schedule"
)

// ErrNoJob means that there is no job of that code.
var ErrNoJob = errors.New("there is no such job")

// RunJob runs a job once and answers its report. If its own schedule has it at work, it waits for its turn.
func (a *App) RunJob(ctx context.Context, code string) (any, error) {
	switch code {
	case "outbox_publisher":
		return a.Publisher.RunOnce(ctx)
	case reaper.JobCode:
		return a.Reap(ctx)
	case consistency.JobCode:
		return a.Repair(ctx)
	case outbox.RetentionJob:
		removed, err := inTurn(ctx, a.Retention.RunOnce)
		return map[string]int64{"removed": removed}, err
	case alert.JobCode:
		return inTurn(ctx, a.Alerter.RunOnce)
	}
	return nil, fmt.Errorf("%w: %q; the jobs are outbox_publisher, %s, %s, %s and %s", ErrNoJob, code, reaper.JobCode,
		consistency.JobCode, outbox.RetentionJob, alert.JobCode)
}

// Reap releases expired locks now.
func (a *App) Reap(ctx context.Context) (reaper.Report, error) {
	return inTurn(ctx, a.Reaper.RunOnce)
}

// Repair saves missing events now, of the named checks or of all.
func (a *App) Repair(ctx context.Context, checks ...string) (consistency.Report, error) {
	return inTurn(ctx, func(ctx context.Context) (consistency.Report, error) {
		return a.Consistency.RunOnce(ctx, checks...)
	})
}

// inTurn runs once until it is not busy.
func inTurn[T any](ctx context.Context, once func(context.Context) (T, error)) (T, error) {
	for {
		report, err := once(ctx)
		if !errors.Is(err, schedule.ErrBusy) {
			return report, err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return report, err
		}
	}
}
