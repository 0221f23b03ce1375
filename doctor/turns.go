package doctor

import (
	"context"
	"strconv"
	"time"

	"github.com/bluecone-go/bluecone/internal/schedule"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/store/view"
)

// jobLate is how much later than a whole missed turn a job may be, as for the alert job_late.
const jobLate = 2 * time.Minute

// missedTurns finds jobs that no instance has finished for more than a whole turn. When a job is due stands in its row, written
// by the instance that started last; of jobs of releases before migration 0011 it is not known.
func missedTurns(ctx context.Context, x *exam) ([]Finding, error) {
	jobs, err := view.JobLeases(ctx, x.sql, mostFindings+1)
	var found []Finding
	for _, j := range jobs {
		last := j.LastDone
		if last.IsZero() { // it was made known then
			last = j.LastDue
		}
		if j.Cron == "" || last.IsZero() {
			continue
		}
		spec, err := schedule.Parse(j.Cron)
		if err != nil {
			found = append(found, warn("job_cron", "the row of the job {job} in bc_job_lease says {cron}, which is no schedule",
				"set its cron to NULL: an instance that starts and has the job writes it",
				values{"job": strconv.Quote(j.Code), "cron": strconv.Quote(j.Cron)})...)
			continue
		}
		if j.At.Sub(spec.Next(spec.Next(last))) > jobLate {
			found = append(found, warn("job_missed", "the job {job} ({cron}) has not finished a run for {age}: it has missed its turns",
				"start an instance that has it, and see whether one run hangs; if no release has it any more, delete its row of bc_job_lease",
				values{"job": j.Code, "cron": j.Cron, "age": j.At.Sub(last).Round(time.Second).String()})...)
		}
	}
	return found, err
}

const (
	retentionJob = "outbox_retention" // as outbox calls it
	// youngDatabase is how old a delivered event must be for a retention that never ran to be missed.
	youngDatabase = time.Hour
	// oldestEvents is among how many of the oldest events one is looked for that was delivered: those that are DEAD stay.
	oldestEvents = 1000
)

// retention looks at the oldest event that was delivered: tables that nobody cleans grow for ever.
func retention(ctx context.Context, x *exam) ([]Finding, error) {
	if x.cfg.Keep < 0 {
		return nil, nil
	}
	age, err := view.OldestSent(ctx, x.sql, oldestEvents)
	if err != nil || age == 0 {
		return nil, err
	}
	known, err := store.NewJobs(x.d).Exists(ctx, x.db, retentionJob)
	switch {
	case err != nil:
		return nil, err
	case !known && age > youngDatabase:
		return warn("retention_off", "no instance has ever removed delivered events: the tables grow for ever",
			"let PublisherConfig.Retention on, which is its default, or run what outbox.NewRetention makes; if that is on purpose, say so "+
				"by a negative Config.Keep of the doctor", nil), nil
	case age > 2*x.cfg.Keep:
		return warn("retention_behind", "the oldest event was delivered {age} ago, and should be kept for {keep}",
			"see what the last runs of the job outbox_retention say; if events are kept for longer, say so by Config.Keep of the doctor",
			values{"age": age.Round(time.Second).String(), "keep": x.cfg.Keep.String()}), nil
	}
	return nil, nil
}
