package alert

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/bluecone-go/bluecone/internal/schedule"
	"github.com/bluecone-go/bluecone/internal/store"
)

// jobs judges whether the scheduled jobs run, and how they end.
func (l *look) jobs(ctx context.Context) error {
	jobs, err := store.NewJobs(l.d).States(ctx, l.db, JobCode)
	if err != nil {
		return err
	}
	for _, j := range jobs {
		if err := l.overdue(j); err != nil {
			return err
		}
		if j.LastStatus == "FAILED" {
			if err := l.failed(ctx, j); err != nil {
				return err
			}
		}
	}
	return nil
}

// overdue finds a job that has missed a whole turn.
func (l *look) overdue(j store.JobState) error {
	cron := l.cfg.Jobs[j.Code]
	if cron == "" {
		return nil
	}
	spec, err := schedule.Parse(cron)
	if err != nil {
		return err
	}
	last := j.LastFinished
	if last == 0 { // it was made known then
		last = j.LastDue
	}
	missed := spec.Next(spec.Next(time.UnixMicro(last)))
	if late := time.UnixMicro(l.now).Sub(missed); exceeds(late, l.cfg.Limits.JobLate) {
		l.add(signal{
			rule: RuleJobLate, subject: j.Code, count: 1, since: last,
			says: fmt.Sprintf("the job %s (%s) has not finished a run for %s", j.Code, cron, span(l.age(last))),
		})
	}
	return nil
}

// capped is how a run begins to say that there were more facts without their event than it may repair.
const capped = "the limit of repairs per run is reached"

// failed tells why the last run of a job ended badly.
func (l *look) failed(ctx context.Context, j store.JobState) error {
	said, err := store.NewJobs(l.d).LastError(ctx, l.db, j.Code)
	if err != nil {
		return err
	}
	if strings.Contains(said, capped) {
		l.add(signal{
			rule: RuleRepairs, subject: j.Code, count: 1, since: j.LastFinished,
			says: "the job " + j.Code + " has found more facts without their event than it may repair in one run",
		})
		return nil
	}
	l.add(signal{
		rule: RuleJobFailed, subject: j.Code, count: 1, since: j.LastFinished,
		says: "the last run of the job " + j.Code + " failed",
	})
	return nil
}
