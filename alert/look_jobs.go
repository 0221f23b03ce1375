package alert

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/bluecone-go/bluecone/internal/schedule"
)

// job is the row of a job that some instance has.
type job struct {
	code, status string
	due, finish  int64
}

// jobs judges whether the scheduled jobs run, and how they end.
func (l *look) jobs(ctx context.Context) error {
	var jobs []job
	err := l.each(ctx, func(scan func(...any) error) error {
		var j job
		err := scan(&j.code, &j.status, &j.due, &j.finish)
		jobs = append(jobs, j)
		return err
	}, "SELECT job_code, COALESCE(last_status, ''), COALESCE("+l.d.Micros("last_due_at")+", 0), "+
		"COALESCE("+l.d.Micros("last_finished_at")+", 0) FROM bc_job_lease WHERE job_code <> ?", JobCode)
	if err != nil {
		return err
	}
	for _, j := range jobs {
		if err := l.overdue(j); err != nil {
			return err
		}
		if j.status == "FAILED" {
			if err := l.failed(ctx, j); err != nil {
				return err
			}
		}
	}
	return nil
}

// overdue finds a job that has missed a whole turn.
func (l *look) overdue(j job) error {
	cron := l.cfg.Jobs[j.code]
	if cron == "" {
		return nil
	}
	spec, err := schedule.Parse(cron)
	if err != nil {
		return err
	}
	last := j.finish
	if last == 0 { // it was made known then
		last = j.due
	}
	missed := spec.Next(spec.Next(time.UnixMicro(last)))
	if late := time.UnixMicro(l.now).Sub(missed); exceeds(late, l.cfg.Limits.JobLate) {
		l.add(signal{
			rule: RuleJobLate, subject: j.code, count: 1, since: last,
			says: fmt.Sprintf("the job %s (%s) has not finished a run for %s", j.code, cron, span(l.age(last))),
		})
	}
	return nil
}

// capped is how a run begins to say that there were more facts without their event than it may repair.
const capped = "the limit of repairs per run is reached"

// failed tells why the last run of a job ended badly.
func (l *look) failed(ctx context.Context, j job) error {
	var said string
	err := l.db.QueryRowContext(ctx, "SELECT COALESCE((SELECT error_message FROM bc_job_run WHERE job_code = ? ORDER BY id DESC LIMIT 1), '')",
		j.code).Scan(&said)
	if err != nil {
		return err
	}
	if strings.Contains(said, capped) {
		l.add(signal{
			rule: RuleRepairs, subject: j.code, count: 1, since: j.finish,
			says: "the job " + j.code + " has found more facts without their event than it may repair in one run",
		})
		return nil
	}
	l.add(signal{
		rule: RuleJobFailed, subject: j.code, count: 1, since: j.finish,
		says: "the last run of the job " + j.code + " failed",
	})
	return nil
}
