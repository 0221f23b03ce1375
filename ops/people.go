package ops

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/bluecone-go/bluecone/internal/store/view"
	"github.com/bluecone-go/bluecone/internal/text"
)

// aliveFor is how long after its last heartbeat an instance counts as alive: three beats.
const aliveFor = 30 * time.Second

// Instances lists the publishers that have been seen within a day, the latest first. One that has
// ended as it should is not among them.
func (o *Ops) Instances(ctx context.Context) ([]Instance, error) { return o.overviews.instances(ctx) }

func (v *overviews) instances(ctx context.Context) ([]Instance, error) {
	return share(ctx, v.access, "instances", nil, func(ctx context.Context) ([]Instance, error) {
		rows, err := view.Instances(ctx, v.access.sql, instancesFor, maxNames)
		if err != nil {
			return nil, fmt.Errorf("ops: read instances: %w", err)
		}
		out := []Instance{}
		for _, r := range rows {
			out = append(out, Instance{
				Name: r.Name, Host: r.Host, Version: r.Version, Started: r.StartedAt, Seen: r.SeenAt, Alive: r.SeenFor < aliveFor,
				Draining: r.IsDraining, InFlight: r.InFlight, ClockOffset: r.ClockOffset,
			})
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
	id, err := before(q.Cursor)
	if err != nil {
		return Page[AuditRow]{}, err
	}
	if q.Target != "" {
		if err := asInvalid(text.Key("ops: target", q.Target, longest)); err != nil {
			return Page[AuditRow]{}, err
		}
	}
	if CallerOf(ctx).limited() {
		if q.Target == "" {
			return Page[AuditRow]{}, CallerOf(ctx).whole("the audit log of everything")
		}
		if seen, err := o.search.named(ctx, Query{EventID: q.Target}, listText); err != nil || len(seen) == 0 {
			return Page[AuditRow]{Rows: []AuditRow{}}, err
		}
	}
	rows, err := auditRows(view.AuditBefore(ctx, o.access.sql, id, q.Target, limit+1, listText))
	p := Page[AuditRow]{Rows: rows}
	if len(rows) > limit {
		p.Rows = rows[:limit]
		p.Next = strconv.FormatInt(p.Rows[limit-1].ID, 10)
	}
	return p, err
}

func auditRows(rows []view.AuditRow, err error) ([]AuditRow, error) {
	if err != nil {
		return nil, fmt.Errorf("ops: read the audit log: %w", err)
	}
	out := []AuditRow{}
	for _, r := range rows {
		out = append(out, AuditRow{
			ID: r.ID, Actor: r.Actor, Action: r.Action, Target: r.Target, Reason: shown(r.Reason, listText),
			Details: shown(r.Details, listText), At: r.At,
		})
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

// before reads the cursor of a list by falling id: the id of the last row of the page before, 0 for the first page.
func before(cursor string) (id int64, err error) {
	if cursor == "" {
		return 0, nil
	}
	id, err = strconv.ParseInt(cursor, 10, 64)
	if err != nil || id <= 0 {
		return 0, invalidf("ops: cursor %s is not a cursor: take it from the page before", text.Quote(cursor))
	}
	return id, nil
}
