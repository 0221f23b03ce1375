package view

import (
	"context"
	"database/sql"
	"time"
	"unicode/utf8"

	"github.com/uptrace/bun"
)

// Instance is a publisher that has announced itself.
type Instance struct {
	Name, Host, Version string
	InFlight            int64
	ClockOffset         time.Duration
	IsDraining          bool
	StartedAt, SeenAt   time.Time
	SeenFor             time.Duration // since it was last seen
}

// Instances lists the publishers that were seen within a time, the latest first.
func Instances(ctx context.Context, r Reader, within time.Duration, most int) (out []Instance, err error) {
	err = r.Rows(ctx, func(rows *sql.Rows) error {
		var i Instance
		var now, offset, started, seen int64
		err := rows.Scan(&now, &i.Name, &i.Host, &i.Version, &i.InFlight, &offset, &i.IsDraining, &started, &seen)
		i.ClockOffset, i.StartedAt, i.SeenAt = time.Duration(offset)*time.Microsecond, Instant(started), Instant(seen)
		i.SeenFor = time.Duration(now-seen) * time.Microsecond
		out = append(out, i)
		return err
	}, "SELECT "+r.D.Micros(r.D.Now)+", "+r.name("name")+", "+r.name("host")+", "+r.name("version")+", "+r.number("in_flight")+", "+
		r.number("clock_offset_us")+", "+flag("draining")+", "+
		r.D.Micros("started_at")+", "+r.D.Micros("seen_at")+
		" FROM bc_instance WHERE seen_at > "+r.D.After+" ORDER BY seen_at DESC, name LIMIT ?", -within.Microseconds(), most)
	return out, err
}

// AuditRow is one thing that somebody did.
type AuditRow struct {
	ID                    int64
	Actor, Action, Target string
	Reason, Details       string
	At                    time.Time
}

// AuditBefore lists audit rows with smaller ids than one (0: all), the newest first. An empty target means any.
func AuditBefore(ctx context.Context, r Reader, id int64, target string, most, texts int) ([]AuditRow, error) {
	where, args := "id > 0", []any{}
	if id != 0 {
		where, args = "id < ?", append(args, id)
	}
	if target != "" {
		where, args = where+" AND target = ?", append(args, target)
	}
	return auditRows(ctx, r, texts, where+" ORDER BY id DESC LIMIT ?", append(args, most)...)
}

// AuditOf lists the audit rows of targets, the newest first.
func AuditOf(ctx context.Context, r Reader, targets []string, most, texts int) ([]AuditRow, error) {
	return auditRows(ctx, r, texts, "target IN (?) ORDER BY id DESC LIMIT ?", bun.List(targets), most)
}

func auditRows(ctx context.Context, r Reader, texts int, where string, args ...any) (out []AuditRow, err error) {
	err = r.Rows(ctx, func(rows *sql.Rows) error {
		var a AuditRow
		var at int64
		err := rows.Scan(&a.ID, &a.Actor, &a.Action, &a.Target, &a.Reason, &a.Details, &at)
		a.At = Instant(at)
		out = append(out, a)
		return err
	}, "SELECT id, "+r.name("actor")+", "+r.name("action")+", "+r.name("target")+", "+cut("reason",
		texts)+", "+orEmpty(cut("details", texts))+", "+
		r.D.Micros("created_at")+" FROM bc_audit_log WHERE "+where, args...)
	return out, err
}

// Consumer is a row of the registry, with one of the event types that it is registered for.
type Consumer struct {
	At                    time.Time // now, by the database's clock
	Name, DisplayName     string    // its key; the name empty if it is that
	Types                 string    // JSON
	IsReplayable          bool
	IsPaused              bool
	PausedUntil           time.Time
	PausedBy, PauseReason string
	RegisteredAt, SeenAt  time.Time
	SeenFor               time.Duration // since it was last announced
	Type                  string        // empty if there is none
	TypeSeenFor           time.Duration // since an instance last took the type
}

// Consumers reads the registry, by the names and types of consumers.
func Consumers(ctx context.Context, r Reader, texts int, each func(Consumer) error) error {
	return r.Rows(ctx, func(rows *sql.Rows) error {
		var c Consumer
		var now, until, registered, seen, typeSeen int64
		err := rows.Scan(&now, &c.Name, &c.DisplayName, &c.Types, &c.IsReplayable, &c.IsPaused, &until, &c.PausedBy, &c.PauseReason,
			&registered, &seen, &c.Type, &typeSeen)
		if err != nil {
			return err
		}
		c.At, c.PausedUntil, c.RegisteredAt, c.SeenAt = Instant(now), Instant(until), Instant(registered), Instant(seen)
		c.SeenFor, c.TypeSeenFor = time.Duration(now-seen)*time.Microsecond, time.Duration(now-typeSeen)*time.Microsecond
		return each(c)
	}, "SELECT "+r.D.Micros(r.D.Now)+", "+r.name("c.name")+", "+
		"CASE WHEN c.display_name = c.name THEN '' ELSE "+r.name("c.display_name")+" END, "+cut("c.event_types", r.Documents)+", "+
		flag("c.replayable")+", CASE WHEN c.paused_until > "+r.D.Now+" THEN 1 ELSE 0 END, "+
		orZero(r.D.Micros("c.paused_until"))+", "+orEmpty(r.name("c.paused_by"))+", "+orEmpty(cut("c.pause_reason", texts))+", "+
		r.D.Micros("c.registered_at")+", "+r.D.Micros("c.seen_at")+", "+orEmpty(r.name("t.event_type"))+", "+orZero(r.D.Micros("t.seen_at"))+
		" FROM bc_consumer c LEFT JOIN bc_consumer_type t ON t.consumer_name = c.name ORDER BY c.name, t.event_type")
}

// Circuits calls each for every instance, seen within a time, that leaves consumers alone because what they call is away: the
// names of the consumers are separated by commas.
func Circuits(ctx context.Context, r Reader, within time.Duration, most int, each func(instance, consumers string)) error {
	return r.Rows(ctx, func(rows *sql.Rows) error {
		var instance, consumers string
		err := rows.Scan(&instance, &consumers)
		each(instance, consumers)
		return err
	}, "SELECT "+r.name("name")+", "+cut("circuits", r.Documents)+
		" FROM bc_instance WHERE circuits IS NOT NULL AND seen_at > "+r.D.After+" LIMIT ?", -within.Microseconds(), most)
}

// JobLease is what the database says of a job.
type JobLease struct {
	At                             time.Time // now, by the database's clock
	Code                           string
	IsRunning                      bool
	LockedBy                       string
	LastDue, LastStarted, LastDone time.Time
	LastStatus                     string
	Cron                           string // as the instance says that started last, empty for one of a release before migration 0011
}

// JobLeases lists jobs by their codes.
func JobLeases(ctx context.Context, r Reader, most int) (out []JobLease, err error) {
	err = r.Rows(ctx, func(rows *sql.Rows) error {
		var j JobLease
		var at, due, started, finished int64
		err := rows.Scan(&at, &j.Code, &j.IsRunning, &j.LockedBy, &due, &started, &finished, &j.LastStatus, &j.Cron)
		j.At, j.LastDue, j.LastStarted, j.LastDone = Instant(at), Instant(due), Instant(started), Instant(finished)
		out = append(out, j)
		return err
	}, "SELECT "+r.D.Micros(r.D.Now)+", job_code, CASE WHEN locked_until > "+r.D.Now+" THEN 1 ELSE 0 END, COALESCE(locked_by, ''), "+
		orZero(r.D.Micros("last_due_at"))+", "+orZero(r.D.Micros("last_started_at"))+", "+orZero(r.D.Micros("last_finished_at"))+
		", COALESCE(last_status, ''), COALESCE("+r.name("cron")+", '') FROM bc_job_lease ORDER BY job_code LIMIT ?", most)
	return out, err
}

// JobRun is one run of a job.
type JobRun struct {
	Instance, Status      string
	StartedAt, FinishedAt time.Time
	Duration              time.Duration
	Counts                string // JSON
	Error                 string
}

// JobRuns lists the latest runs of a job, the newest first. Counts that are longer than so many characters may be are left
// out: a part of them would be no JSON.
func JobRuns(ctx context.Context, r Reader, code string, most, texts int) (out []JobRun, err error) {
	err = r.Rows(ctx, func(rows *sql.Rows) error {
		var j JobRun
		var started, finished, us int64
		err := rows.Scan(&j.Instance, &j.Status, &started, &finished, &us, &j.Counts, &j.Error)
		j.StartedAt, j.FinishedAt, j.Duration = Instant(started), Instant(finished), time.Duration(us)*time.Microsecond
		out = append(out, j)
		return err
	}, "SELECT "+r.name("instance")+", "+r.name("status")+", "+r.D.Micros("started_at")+", "+orZero(r.D.Micros("finished_at"))+
		", "+orZero(r.number("duration_us"))+", CASE WHEN "+r.D.Bytes("counts")+" <= ? THEN COALESCE(counts, '') ELSE '' END, "+
		orEmpty(cut("error_message", texts))+" FROM bc_job_run WHERE job_code = ? ORDER BY id DESC LIMIT ?", texts*utf8.UTFMax, code, most)
	return out, err
}
