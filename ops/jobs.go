package ops

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/schedule"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/store/view"
	"github.com/bluecone-go/bluecone/internal/text"
)

// runsShown is how many runs of a job are listed.
const runsShown = 10

// Jobs lists the scheduled jobs of the deployment.
func (o *Ops) Jobs(ctx context.Context) ([]JobState, error) {
	if err := CallerOf(ctx).whole("the list of jobs"); err != nil {
		return nil, err
	}
	return share(ctx, o.access, "jobs", nil, o.jobs.list)
}

// RunJob runs a job of this process at once. A job that other instances have is made due instead
// (ran is false): whoever has it runs it at its next look, within half a minute.
func (o *Ops) RunJob(ctx context.Context, op Operation, code string) (counts map[string]int64, ran bool, err error) {
	if err := CallerOf(ctx).whole("a job"); err != nil {
		return nil, false, err
	}
	return o.jobs.run(ctx, op, code)
}

// jobs are those of the deployment, and those of this process.
type jobs struct {
	access *access
	acts   *acts
	here   []Job
}

func (j *jobs) list(ctx context.Context) ([]JobState, error) {
	states, now, err := j.leases(ctx)
	if err != nil {
		return nil, err
	}
	for _, here := range j.here {
		code, cron := here.Schedule()
		i := slices.IndexFunc(states, func(s JobState) bool { return s.Code == code })
		if i < 0 {
			i, states = len(states), append(states, JobState{Code: code})
		}
		states[i].Here = true
		states[i].due(cron, now)
	}
	for i := range states {
		if states[i].Runs, err = j.runs(ctx, states[i].Code); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(states, func(a, b JobState) int { return strings.Compare(a.Code, b.Code) })
	return states, nil
}

// due says when a job is due, if its cron expression can be read.
func (s *JobState) due(cron string, now time.Time) {
	spec, err := schedule.Parse(cron)
	if err != nil {
		return
	}
	from := s.LastDue
	if from.IsZero() {
		from = now
	}
	s.Cron, s.Words, s.NextDue = cron, schedule.Words(cron), spec.Next(from)
}

// leases reads what the database says of jobs.
func (j *jobs) leases(ctx context.Context) (states []JobState, now time.Time, err error) {
	rows, err := view.JobLeases(ctx, j.access.sql, maxNames)
	if err != nil {
		err = fmt.Errorf("ops: read jobs: %w", err)
	}
	for _, r := range rows {
		now = r.At
		s := JobState{
			Code: r.Code, Running: r.IsRunning, LastDue: r.LastDue, LastStarted: r.LastStarted, LastFinished: r.LastDone,
			LastStatus: r.LastStatus,
		}
		s.due(r.Cron, r.At)
		if r.IsRunning {
			s.LockedBy = r.LockedBy
		}
		states = append(states, s)
	}
	if now.IsZero() {
		now = time.Now().UTC()
	}
	return states, now, err
}

func (j *jobs) runs(ctx context.Context, code string) ([]JobRun, error) {
	rows, err := view.JobRuns(ctx, j.access.sql, code, runsShown, listText)
	if err != nil {
		return nil, fmt.Errorf("ops: read the runs of %s: %w", code, err)
	}
	out := []JobRun{}
	for _, r := range rows {
		run := JobRun{
			Instance: r.Instance, Status: r.Status, StartedAt: r.StartedAt, FinishedAt: r.FinishedAt, Duration: r.Duration,
			Error: shown(r.Error, listText),
		}
		run.Counts = storedCounts(r.Counts)
		out = append(out, run)
	}
	return out, nil
}

func (j *jobs) run(ctx context.Context, op Operation, code string) (counts map[string]int64, ran bool, err error) {
	defer j.access.forget()
	for _, here := range j.here {
		if c, _ := here.Schedule(); c != code {
			continue
		}
		if err := j.acts.audited(ctx, op, "run job", code, "in this process", nil); err != nil {
			return nil, false, err
		}
		counts, err = here.RunNow(ctx)
		if err != nil {
			err = fmt.Errorf("ops: job %s: %w", code, err)
		}
		return counts, true, err
	}
	return nil, false, j.acts.audited(ctx, op, "run job", code, "at its next look", func(ctx context.Context, tx bun.Tx) error {
		known, err := store.MakeJobDue(ctx, tx, j.access.sql.D, code)
		if err == nil && !known {
			err = unknownf("no instance has ever had a job %s", text.Quote(code))
		}
		return err
	})
}
