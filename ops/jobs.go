package ops

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/audit"
	"github.com/bluecone-go/bluecone/internal/schedule"
	"github.com/bluecone-go/bluecone/internal/text"
)

// runsShown is how many runs of a job are listed.
const runsShown = 10

// Jobs lists the scheduled jobs of the deployment.
func (o *Ops) Jobs(ctx context.Context) ([]JobState, error) {
	if err := CallerOf(ctx).whole("the list of jobs"); err != nil {
		return nil, err
	}
	return share(ctx, o.access, "jobs", nil, o.jobs)
}

func (o *Ops) jobs(ctx context.Context) ([]JobState, error) {
	states, now, err := o.leases(ctx)
	if err != nil {
		return nil, err
	}
	for _, j := range o.cfg.Jobs {
		code, cron := j.Schedule()
		i := slices.IndexFunc(states, func(s JobState) bool { return s.Code == code })
		if i < 0 {
			i, states = len(states), append(states, JobState{Code: code})
		}
		states[i].Here, states[i].Cron, states[i].Words = true, cron, schedule.Words(cron)
		if spec, err := schedule.Parse(cron); err == nil {
			from := states[i].LastDue
			if from.IsZero() {
				from = now
			}
			states[i].NextDue = spec.Next(from)
		}
	}
	for i := range states {
		if states[i].Runs, err = o.runs(ctx, states[i].Code); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(states, func(a, b JobState) int { return strings.Compare(a.Code, b.Code) })
	return states, nil
}

// leases reads what the database says of jobs.
func (o *Ops) leases(ctx context.Context) (states []JobState, now time.Time, err error) {
	err = o.rows(ctx, func(rows *sql.Rows) error {
		var s JobState
		var at, due, started, finished int64
		err := rows.Scan(&at, &s.Code, &s.Running, &s.LockedBy, &due, &started, &finished, &s.LastStatus)
		now, s.LastDue, s.LastStarted, s.LastFinished = instant(at), instant(due), instant(started), instant(finished)
		if !s.Running {
			s.LockedBy = ""
		}
		states = append(states, s)
		return err
	}, "SELECT "+o.d.Micros(o.d.Now)+", job_code, CASE WHEN locked_until > "+o.d.Now+" THEN 1 ELSE 0 END, COALESCE(locked_by, ''), COALESCE("+o.d.Micros("last_due_at")+", 0), "+
		"COALESCE("+o.d.Micros("last_started_at")+", 0), COALESCE("+o.d.Micros("last_finished_at")+", 0), COALESCE(last_status, '') FROM bc_job_lease ORDER BY job_code LIMIT ?", maxNames)
	if err != nil {
		err = fmt.Errorf("ops: read jobs: %w", err)
	}
	if now.IsZero() {
		now = time.Now().UTC()
	}
	return states, now, err
}

func (o *Ops) runs(ctx context.Context, code string) ([]JobRun, error) {
	out := []JobRun{}
	err := o.rows(ctx, func(rows *sql.Rows) error {
		var r JobRun
		var counts string
		var started, finished, us int64
		err := rows.Scan(&r.Instance, &r.Status, &started, &finished, &us, &counts, &r.Error)
		r.StartedAt, r.FinishedAt, r.Duration = instant(started), instant(finished), time.Duration(us)*time.Microsecond
		_ = json.Unmarshal([]byte(counts), &r.Counts) // what cannot be read is not shown
		r.Error = shown(r.Error, listText)
		out = append(out, r)
		return err
	}, "SELECT "+o.name("instance")+", "+o.name("status")+", "+o.d.Micros("started_at")+", COALESCE("+o.d.Micros("finished_at")+", 0), COALESCE(duration_us, 0), COALESCE("+cut("counts", metadataText)+", ''), COALESCE("+cut("error_message", listText)+", '') "+
		"FROM bc_job_run WHERE job_code = ? ORDER BY id DESC LIMIT ?", code, runsShown)
	if err != nil {
		return nil, fmt.Errorf("ops: read the runs of %s: %w", code, err)
	}
	return out, nil
}

// RunJob runs a job of this process at once. A job that other instances have is made due instead
// (ran is false): whoever has it runs it at its next look, within half a minute.
func (o *Ops) RunJob(ctx context.Context, op Operation, code string) (counts map[string]int64, ran bool, err error) {
	if err := CallerOf(ctx).whole("a job"); err != nil {
		return nil, false, err
	}
	defer o.access.forget()
	for _, j := range o.cfg.Jobs {
		if c, _ := j.Schedule(); c != code {
			continue
		}
		if err := o.audited(ctx, op, "run job", code, "in this process", nil); err != nil {
			return nil, false, err
		}
		counts, err = j.RunNow(ctx)
		if err != nil {
			err = fmt.Errorf("ops: job %s: %w", code, err)
		}
		return counts, true, err
	}
	return nil, false, o.audited(ctx, op, "run job", code, "at its next look", func(ctx context.Context, tx bun.Tx) error {
		// A turn that was last due in the distant past is one that everybody has missed.
		res, err := tx.ExecContext(ctx, "UPDATE bc_job_lease SET last_due_at = "+o.d.At+" WHERE job_code = ?", time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro(), code)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, fmt.Errorf("no instance has ever had a job %q: %w", code, ErrNotFound))
		}
		return nil
	})
}

// audited runs fn and writes the audit row in one transaction.
func (o *Ops) audited(ctx context.Context, op Operation, action, target, details string, fn func(ctx context.Context, tx bun.Tx) error) error {
	err := asInvalid(op.Validate())
	if err == nil {
		err = o.db.RunInTx(ctx, o.d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) error {
			if fn != nil {
				if err := fn(ctx, tx); err != nil {
					return err
				}
			}
			return audit.Write(ctx, tx, o.d, audit.Entry{Actor: op.Actor, Action: action, Target: target, Reason: op.Reason, Details: details})
		})
	}
	if err != nil {
		return fmt.Errorf("ops: %s %s: %w", action, text.Quote(target), err)
	}
	o.access.forget()
	o.cfg.Logger.InfoContext(ctx, "operator", "actor", op.Actor, "action", action, "target", target, "reason", op.Reason)
	return nil
}
