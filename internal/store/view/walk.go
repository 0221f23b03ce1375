package view

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Walk goes along one index, from a place on, looks at a bounded number of rows and keeps those that fit the rest of the query.
type Walk struct {
	Table   Table
	index   string   // which index MySQL has to walk
	where   []string // the equalities that choose a range of the index
	args    []any
	isTimed bool     // the range is in the order of next_retry_at and id; otherwise of id
	filter  []string // what else rows x, or their events e, must be like
	filters []any
	joins   bool // the filter needs the events of deliveries
	errors  int  // how many characters of the errors of deliveries are read; 0: none
	look    int  // how many rows one statement may look at
}

// Place is a place in a walk.
type Place struct {
	Micros int64 // of a timed walk
	ID     int64
	IsEnd  bool
}

// Hit is a row that fits.
type Hit struct {
	Table      Table
	ID, Micros int64
	EventID    string
	OutboxID   int64
	EventType  string
	Error      string // of a delivery, if the walk reads errors
}

// ReadsErrors reports whether the hits of the walk have the errors of deliveries.
func (w Walk) ReadsErrors() bool { return w.errors > 0 }

// Hits walks as far as one statement may look, up to so many hits that keep agrees to (nil: to all), and tells where the walk
// goes on. What is to be filtered is bounded first: no statement holds back rows in a temporary table.
func (w Walk) Hits(ctx context.Context, r Reader, at Place, limit int, ascending bool, keep func(Hit) bool) ([]Hit, Place, error) {
	from, args, edge, err := w.reach(ctx, r, at, ascending)
	if err != nil {
		return nil, Place{}, err
	}
	most := limit + 1
	if keep != nil {
		most = w.look
	}
	query := "SELECT x.id, " + w.due(r) + ", " + r.name("x.event_id") + ", " + r.name("x.event_type") + ", " + w.outboxID() + ", " +
		w.errorText() +
		" FROM " + from + w.orderBy(ascending) + fmt.Sprintf(" LIMIT %d", most)
	var hits []Hit
	err = r.Rows(ctx, func(rows *sql.Rows) error {
		h := Hit{Table: w.Table}
		err := rows.Scan(&h.ID, &h.Micros, &h.EventID, &h.EventType, &h.OutboxID, &h.Error)
		if keep == nil || keep(h) {
			hits = append(hits, h)
		}
		return err
	}, query, args...)
	if err != nil {
		return nil, Place{}, err
	}
	if len(hits) > limit {
		hits = hits[:limit]
		last := hits[limit-1]
		return hits, Place{Micros: last.Micros, ID: last.ID}, nil
	}
	return hits, edge, nil
}

// Count counts, up to a limit, what fits as far as one statement may look. It reads nothing but the index where the filter
// allows: rows of the same state lie far apart in the table.
func (w Walk) Count(ctx context.Context, r Reader, at Place, limit int) (n int64, next Place, err error) {
	from, args, edge, err := w.reach(ctx, r, at, false)
	if err != nil {
		return 0, Place{}, err
	}
	err = r.row(ctx, []any{&n}, fmt.Sprintf("SELECT COUNT(*) FROM (SELECT x.id FROM %s%s LIMIT %d) n", from, w.orderBy(false), limit), args...)
	return n, edge, err
}

// reach is the part of a walk, from the place on, that one statement may look at, filtered, and where it ends.
func (w Walk) reach(ctx context.Context, r Reader, at Place, ascending bool) (from string, args []any, edge Place, err error) {
	edge = Place{IsEnd: true}
	if len(w.filter) > 0 || w.errors > 0 {
		if edge, err = w.edge(ctx, r, at, ascending); err != nil {
			return "", nil, Place{}, err
		}
	}
	from, where, args := w.stretch(r, at, edge, ascending)
	if w.joins {
		from += " JOIN " + string(Events) + " e ON e.event_id = x.event_id"
	}
	return from + whereOf(append(where, w.filter...)), append(args, w.filters...), edge, nil
}

// edge is the last row that a statement may look at from the place on: the end if the walk is shorter than that.
func (w Walk) edge(ctx context.Context, r Reader, at Place, ascending bool) (Place, error) {
	from, where, args := w.stretch(r, at, Place{IsEnd: true}, ascending)
	var p Place
	err := r.row(ctx, []any{&p.ID, &p.Micros}, "SELECT x.id, "+w.due(r)+" FROM "+from+whereOf(where)+w.orderBy(ascending)+
		fmt.Sprintf(" LIMIT 1 OFFSET %d", w.look-1), args...)
	if errors.Is(err, sql.ErrNoRows) {
		return Place{IsEnd: true}, nil
	}
	return p, err
}

// stretch is the part of a walk, as x, that lies behind the place and not behind the edge.
func (w Walk) stretch(r Reader, at, edge Place, ascending bool) (from string, where []string, args []any) {
	from, where, args = string(w.Table)+" x", slices.Clone(w.where), slices.Clone(w.args)
	if r.D.Name == "mysql" && w.index != "" {
		from += " FORCE INDEX (" + w.index + ")"
	}
	less, more := "<", ">"
	if ascending {
		less, more = more, less
	}
	bound := func(p Place, op, orEqual string) {
		if !w.isTimed {
			where, args = append(where, "x.id "+op+orEqual+" ?"), append(args, p.ID)
			return
		}
		where = append(where, "x.next_retry_at "+op+"= "+r.D.At, "(x.next_retry_at "+op+" "+r.D.At+" OR x.id "+op+orEqual+" ?)")
		args = append(args, p.Micros, p.Micros, p.ID)
	}
	if at.ID != 0 {
		bound(at, less, "")
	}
	if !edge.IsEnd {
		bound(edge, more, "=")
	}
	return from, where, args
}

func whereOf(conditions []string) string {
	if len(conditions) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(conditions, " AND ")
}

func (w Walk) orderBy(ascending bool) string {
	direction := map[bool]string{true: "", false: " DESC"}[ascending]
	if w.isTimed {
		return " ORDER BY x.next_retry_at" + direction + ", x.id" + direction
	}
	return " ORDER BY x.id" + direction
}

// due is when a row is due, in microseconds, if the walk is in that order.
func (w Walk) due(r Reader) string {
	if !w.isTimed {
		return "0"
	}
	return orZero(r.D.Micros("x.next_retry_at"))
}

func (w Walk) outboxID() string {
	if w.Table == Deliveries {
		return "COALESCE(x.outbox_id, 0)"
	}
	return "x.id"
}

func (w Walk) errorText() string {
	if w.errors > 0 {
		return orEmpty(cut("x.error_message", w.errors))
	}
	return "''"
}

// with adds a condition that rows must fulfil, if it is wanted.
func (w Walk) with(wanted bool, condition string, arg any) Walk {
	if wanted {
		w.filter, w.filters = append(slices.Clone(w.filter), condition), append(slices.Clone(w.filters), arg)
	}
	return w
}
