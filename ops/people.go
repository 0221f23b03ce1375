package ops

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"time"

	"github.com/bluecone-go/bluecone/internal/text"
)

// aliveFor is how long after its last heartbeat an instance counts as alive: three beats.
const aliveFor = 30 * time.Second

// Instances lists the publishers that have been seen within a day, the latest first. One that has
// ended as it should is not among them.
func (o *Ops) Instances(ctx context.Context) ([]Instance, error) {
	return share(ctx, o.access, "instances", nil, func(ctx context.Context) ([]Instance, error) {
		out := []Instance{}
		err := o.rows(ctx, func(rows *sql.Rows) error {
			var i Instance
			var now, offset, started, seen int64
			err := rows.Scan(&now, &i.Name, &i.Host, &i.Version, &i.InFlight, &offset, &i.Draining, &started, &seen)
			i.ClockOffset, i.Started, i.Seen = time.Duration(offset)*time.Microsecond, instant(started), instant(seen)
			i.Alive = time.Duration(now-seen)*time.Microsecond < aliveFor
			out = append(out, i)
			return err
		}, "SELECT "+o.d.Micros(o.d.Now)+", "+o.name("name")+", "+o.name("host")+", "+o.name("version")+", in_flight, clock_offset_us, draining, "+o.d.Micros("started_at")+", "+o.d.Micros("seen_at")+
			" FROM bc_instance WHERE seen_at > "+o.d.After+" ORDER BY seen_at DESC, name LIMIT ?", -instancesFor.Microseconds(), maxNames)
		if err != nil {
			return nil, fmt.Errorf("ops: read instances: %w", err)
		}
		return out, nil
	})
}

// Audit lists what was done, newest first.
func (o *Ops) Audit(ctx context.Context, q AuditQuery) (Page[AuditRow], error) {
	limit, err := pageSize(q.Limit)
	if err != nil {
		return Page[AuditRow]{}, err
	}
	where, args, err := before(q.Cursor)
	if err != nil {
		return Page[AuditRow]{}, err
	}
	if q.Target != "" {
		if err := asInvalid(text.Key("ops: target", q.Target, longest)); err != nil {
			return Page[AuditRow]{}, err
		}
		where, args = where+" AND target = ?", append(args, q.Target)
	}
	if CallerOf(ctx).limited() {
		if q.Target == "" {
			return Page[AuditRow]{}, CallerOf(ctx).whole("the audit log of everything")
		}
		if seen, err := o.named(ctx, Query{EventID: q.Target}, listText); err != nil || len(seen) == 0 {
			return Page[AuditRow]{Rows: []AuditRow{}}, err
		}
	}
	rows, err := o.auditRows(ctx, where+" ORDER BY id DESC LIMIT ?", append(args, limit+1)...)
	p := Page[AuditRow]{Rows: rows}
	if len(rows) > limit {
		p.Rows = rows[:limit]
		p.Next = strconv.FormatInt(p.Rows[limit-1].ID, 10)
	}
	return p, err
}

func (o *Ops) auditRows(ctx context.Context, where string, args ...any) ([]AuditRow, error) {
	out := []AuditRow{}
	err := o.rows(ctx, func(rows *sql.Rows) error {
		var r AuditRow
		var at int64
		err := rows.Scan(&r.ID, &r.Actor, &r.Action, &r.Target, &r.Reason, &r.Details, &at)
		r.At, r.Reason, r.Details = instant(at), shown(r.Reason, pageText), shown(r.Details, pageText)
		out = append(out, r)
		return err
	}, "SELECT id, "+o.name("actor")+", "+o.name("action")+", "+o.name("target")+", "+cut("reason", pageText)+", COALESCE("+cut("details", pageText)+", ''), "+o.d.Micros("created_at")+" FROM bc_audit_log WHERE "+where, args...)
	if err != nil {
		return nil, fmt.Errorf("ops: read the audit log: %w", err)
	}
	return out, nil
}

func pageSize(limit int) (int, error) {
	if limit < 0 || limit > maxLimit {
		return 0, invalidf("ops: a limit of %d: it must be between 1 and %d (0 means %d)", limit, maxLimit, defaultLimit)
	}
	if limit == 0 {
		limit = defaultLimit
	}
	return limit, nil
}

// before is the condition of a page of a list by falling id.
func before(cursor string) (where string, args []any, err error) {
	if cursor == "" {
		return "id > 0", nil, nil
	}
	id, err := strconv.ParseInt(cursor, 10, 64)
	if err != nil || id <= 0 {
		return "", nil, invalidf("ops: %q is not a cursor: take it from the page before", cursor)
	}
	return "id < ?", []any{id}, nil
}
