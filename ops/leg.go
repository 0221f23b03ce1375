package ops

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/text"
	"github.com/bluecone-go/bluecone/outbox"
)

// A search goes through one or more legs. A leg is a walk along one index, from a cursor on, that
// looks at a bounded number of rows and keeps those that fit the rest of the query.
type leg struct {
	table   string
	index   string   // which index MySQL has to walk
	where   []string // the equalities that choose a range of the index
	args    []any
	timed   bool     // the range is in the order of next_retry_at and id; otherwise of id
	filter  []string // what else rows x, or their events e, must be like
	filters []any
	join    bool // the filter needs the events of deliveries
	group   string
}

// cursor is a place in a search: so far in leg number n.
type cursor struct {
	leg    int
	micros int64 // of a timed leg
	id     int64
	end    bool
}

// String is what a page hands out, empty at the end.
func (c cursor) String() string {
	if c.end {
		return ""
	}
	return fmt.Sprintf("%d.%d.%d", c.leg, c.micros, c.id)
}

func parseCursor(s string) (cursor, error) {
	var c cursor
	if s == "" {
		return c, nil
	}
	if n, err := fmt.Sscanf(s, "%d.%d.%d", &c.leg, &c.micros, &c.id); err != nil || n != 3 || c.String() != s || c.leg < 0 {
		return c, invalidf("ops: %q is not a cursor: take it from the page before", s)
	}
	return c, nil
}

// hit is a row that fits.
type hit struct {
	table      string
	id, micros int64
	eventID    string
	outboxID   int64
	eventType  string
	error      string // of a delivery, if fingerprints are asked for
}

// findings of a search statement or several.
type found struct {
	hits       []hit
	next       cursor
	searchedTo time.Time
}

// find goes through the legs of a query until it has a page, or has looked at enough.
func (o *Ops) find(ctx context.Context, q Query, ascending bool) (found, error) {
	at, err := parseCursor(q.Cursor)
	if err != nil {
		return found{}, err
	}
	legs, err := o.legs(ctx, q)
	if err != nil {
		return found{}, err
	}
	owned(ctx, legs)
	if ascending {
		slices.Reverse(legs)
	}
	var f found
	for ; at.leg < len(legs); at = (cursor{leg: at.leg + 1}) {
		l := legs[at.leg]
		hits, next, err := o.walk(ctx, l, at, q.Limit-len(f.hits), ascending)
		if err != nil {
			return found{}, fmt.Errorf("ops: search: %w", err)
		}
		f.hits = append(f.hits, hits...)
		if next.end {
			continue
		}
		f.next = next
		if len(f.hits) < q.Limit {
			f.searchedTo, err = o.savedAt(ctx, l, next.id)
		}
		return f, err
	}
	f.next = cursor{end: true}
	return f, nil
}

// owned limits legs to what belongs to the caller's tenants.
func owned(ctx context.Context, legs []leg) {
	caller := CallerOf(ctx)
	if !caller.limited() {
		return
	}
	condition, arg := caller.owns("x")
	for i, l := range legs {
		legs[i].filter, legs[i].filters = append(slices.Clone(l.filter), condition), append(slices.Clone(l.filters), arg)
	}
}

// walk does one leg, or as much of it as one statement may look at. What is to be filtered is bounded
// first: no statement holds back rows in a temporary table.
func (o *Ops) walk(ctx context.Context, l leg, at cursor, limit int, ascending bool) (hits []hit, next cursor, err error) {
	from, args, edge, err := o.reach(ctx, l, at, ascending)
	if err != nil {
		return nil, cursor{}, err
	}
	most := limit + 1
	if l.group != "" {
		most = l.look()
	}
	query := "SELECT x.id, " + o.microsOrZero(l, "x.next_retry_at") + ", " + o.name("x.event_id") + ", " + o.name("x.event_type") + ", " + l.outboxID("x") + ", " + l.errorText("x") + " FROM " + from + l.orderBy(ascending) + fmt.Sprintf(" LIMIT %d", most)
	err = o.rows(ctx, func(rows *sql.Rows) error {
		h := hit{table: l.table}
		err := rows.Scan(&h.id, &h.micros, &h.eventID, &h.eventType, &h.outboxID, &h.error)
		if l.group == "" || fingerprint(l.args[0].(string), h.eventType, text.Mask(h.error)) == l.group {
			hits = append(hits, h)
		}
		return err
	}, query, args...)
	if err != nil {
		return nil, cursor{}, err
	}
	if len(hits) > limit {
		hits = hits[:limit]
		last := hits[limit-1]
		return hits, cursor{leg: at.leg, micros: last.micros, id: last.id}, nil
	}
	return hits, edge, nil
}

// tally counts what one leg holds, up to limit, or as much of it as one statement may look at. It reads
// nothing but the index where the filter allows: rows of the same state lie far apart in the table.
func (o *Ops) tally(ctx context.Context, l leg, at cursor, limit int) (n int64, next cursor, err error) {
	if l.group != "" { // what belongs to a group, only the text tells
		hits, next, err := o.walk(ctx, l, at, limit, false)
		return int64(len(hits)), next, err
	}
	from, args, edge, err := o.reach(ctx, l, at, false)
	if err != nil {
		return 0, cursor{}, err
	}
	err = o.row(ctx, []any{&n}, fmt.Sprintf("SELECT COUNT(*) FROM (SELECT x.id FROM %s%s LIMIT %d) n", from, l.orderBy(false), limit), args...)
	return n, edge, err
}

// reach is the part of a leg, from the cursor on, that one statement may look at, filtered, and where
// it ends.
func (o *Ops) reach(ctx context.Context, l leg, at cursor, ascending bool) (from string, args []any, edge cursor, err error) {
	edge = cursor{end: true}
	if len(l.filter) > 0 || l.group != "" {
		if edge, err = o.edge(ctx, l, at, ascending); err != nil {
			return "", nil, cursor{}, err
		}
	}
	from, where, args := o.stretch(l, at, edge, ascending)
	if l.join {
		from += " JOIN " + eventTable + " e ON e.event_id = x.event_id"
	}
	return from + l.whereOf(append(where, l.filter...)), append(args, l.filters...), edge, nil
}

// look is how many rows one statement may look at: fewer, if it has to read what each of them says.
func (l leg) look() int {
	if l.group != "" {
		return deadLook
	}
	return lookAt
}

// edge is the last row that a statement may look at from the cursor on: the end if the leg is
// shorter than that.
func (o *Ops) edge(ctx context.Context, l leg, at cursor, ascending bool) (cursor, error) {
	from, where, args := o.stretch(l, at, cursor{end: true}, ascending)
	c := cursor{leg: at.leg}
	err := o.row(ctx, []any{&c.id, &c.micros}, "SELECT x.id, "+o.microsOrZero(l, "x.next_retry_at")+" FROM "+from+l.whereOf(where)+l.orderBy(ascending)+fmt.Sprintf(" LIMIT 1 OFFSET %d", l.look()-1), args...)
	if errors.Is(err, sql.ErrNoRows) {
		return cursor{end: true}, nil
	}
	return c, err
}

// stretch is the part of a leg, as x, that lies behind the cursor and not behind the edge.
func (o *Ops) stretch(l leg, at, edge cursor, ascending bool) (from string, where []string, args []any) {
	from, where, args = l.table+" x", slices.Clone(l.where), slices.Clone(l.args)
	if o.d.Name == "mysql" && l.index != "" {
		from += " FORCE INDEX (" + l.index + ")"
	}
	less, more := "<", ">"
	if ascending {
		less, more = more, less
	}
	bound := func(c cursor, op, orEqual string) {
		if !l.timed {
			where, args = append(where, "x.id "+op+orEqual+" ?"), append(args, c.id)
			return
		}
		where = append(where, "x.next_retry_at "+op+"= "+o.d.At, "(x.next_retry_at "+op+" "+o.d.At+" OR x.id "+op+orEqual+" ?)")
		args = append(args, c.micros, c.micros, c.id)
	}
	if at.id != 0 {
		bound(at, less, "")
	}
	if !edge.end {
		bound(edge, more, "=")
	}
	return from, where, args
}

func (leg) whereOf(conditions []string) string {
	if len(conditions) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(conditions, " AND ")
}

func (l leg) orderBy(ascending bool) string {
	direction := map[bool]string{true: "", false: " DESC"}[ascending]
	if l.timed {
		return " ORDER BY x.next_retry_at" + direction + ", x.id" + direction
	}
	return " ORDER BY x.id" + direction
}

func (o *Ops) microsOrZero(l leg, column string) string {
	if !l.timed {
		return "0"
	}
	return "COALESCE(" + o.d.Micros(column) + ", 0)"
}

func (l leg) outboxID(x string) string {
	if l.table == logTable {
		return "COALESCE(" + x + ".outbox_id, 0)"
	}
	return x + ".id"
}

func (l leg) errorText(x string) string {
	if l.group != "" {
		return "COALESCE(" + cut(x+".error_message", listText) + ", '')"
	}
	return "''"
}

// savedAt tells when the row was made to which a search has got.
func (o *Ops) savedAt(ctx context.Context, l leg, id int64) (time.Time, error) {
	var micros int64
	err := o.row(ctx, []any{&micros}, "SELECT "+o.d.Micros("created_at")+" FROM "+l.table+" WHERE id = ?", id)
	if errors.Is(err, sql.ErrNoRows) {
		return time.Time{}, nil
	}
	return instant(micros), err
}

// legs chooses the walks that a query needs: the narrowest index that serves it.
func (o *Ops) legs(ctx context.Context, q Query) ([]leg, error) {
	if q.Consumer != "" {
		return o.deliveryLegs(q), nil
	}
	types := []string{q.AggregateType}
	if q.AggregateID != "" && q.AggregateType == "" {
		var err error
		if types, err = o.aggregateTypes(ctx); err != nil {
			return nil, err
		}
	}
	from, to, err := o.idBounds(ctx, eventTable, q.Since, q.Until)
	if err != nil {
		return nil, err
	}
	bounded := func(l leg) leg { // the bounds are those of the live table
		if from > 0 {
			l.where, l.args = append(l.where, "x.id >= ?"), append(l.args, from)
		}
		if to > 0 {
			l.where, l.args = append(l.where, "x.id < ?"), append(l.args, to)
		}
		return l
	}
	var legs []leg
	add := func(both bool, l leg) {
		l.table = eventTable
		archived := l
		archived.table = archiveTable
		if legs = append(legs, bounded(o.filtered(q, l))); both && (q.Status == "" || q.Status == outbox.StatusSent) {
			legs = append(legs, o.filtered(q, archived))
		}
	}
	switch {
	case q.TraceID != "":
		add(true, leg{index: "idx_trace_id", where: []string{"x.trace_id = ?"}, args: []any{q.TraceID}})
	case q.AggregateID != "":
		for _, t := range types {
			add(true, leg{index: "idx_aggregate", where: []string{"x.aggregate_type = ?", "x.aggregate_id = ?"}, args: []any{t, q.AggregateID}})
		}
	case q.Status != "" && q.Status != outbox.StatusSent:
		of := leg{index: "idx_status_next_retry", where: []string{"x.status = ?", "x.status <> 'SENT'"}, args: []any{string(q.Status)}} // SQLite has to be told
		due, never := of, of
		due.where, due.timed = append(slices.Clone(of.where), "x.next_retry_at IS NOT NULL"), true
		never.where = append(slices.Clone(of.where), "x.next_retry_at IS NULL")
		add(false, due)
		add(false, never)
	default:
		add(false, leg{index: "PRIMARY"})
	}
	return legs, nil
}

// filtered adds to a leg of events what else the query wants of them.
func (o *Ops) filtered(q Query, l leg) leg {
	has := func(column string) bool {
		return slices.ContainsFunc(l.where, func(w string) bool { return strings.HasPrefix(w, "x."+column+" =") })
	}
	add := func(wanted bool, column, op, value string, arg any) {
		if wanted && !has(column) {
			l.filter, l.filters = append(l.filter, "x."+column+" "+op+" "+value), append(l.filters, arg)
		}
	}
	add(q.TenantID != 0, "tenant_id", "=", "?", q.TenantID)
	add(q.EventType != "", "event_type", "=", "?", q.EventType)
	add(q.Status != "", "status", "=", "?", string(q.Status))
	add(q.AggregateType != "", "aggregate_type", "=", "?", q.AggregateType)
	add(q.AggregateID != "", "aggregate_id", "=", "?", q.AggregateID)
	add(!q.Since.IsZero(), "created_at", ">=", o.d.At, q.Since.UnixMicro())
	add(!q.Until.IsZero(), "created_at", "<", o.d.At, q.Until.UnixMicro())
	return l
}

// deliveryLegs are walks along the deliveries of one consumer.
func (o *Ops) deliveryLegs(q Query) []leg {
	statuses := []consumelog.Status{q.DeliveryStatus}
	if q.DeliveryStatus == "" { // of a fingerprint
		statuses = []consumelog.Status{consumelog.Dead, consumelog.Failed}
	}
	var legs []leg
	for _, s := range statuses {
		of := leg{table: logTable, index: "idx_consumer_due", where: []string{"x.consumer_name = ?", "x.status = ?"}, args: []any{q.Consumer, string(s)}, group: q.Fingerprint}
		if s == consumelog.Success && o.d.Name != "mysql" { // the index leaves these out
			legs = append(legs, o.filteredDeliveries(q, leg{
				table: logTable, filter: []string{"x.consumer_name = ?", "x.status = ?"}, filters: of.args,
			}))
			continue
		}
		if s != consumelog.Success {
			of.where = append(of.where, "x.status <> 'SUCCESS'") // SQLite has to be told
		}
		due, never := of, of
		due.where, due.timed = append(slices.Clone(of.where), "x.next_retry_at IS NOT NULL"), true
		never.where = append(slices.Clone(of.where), "x.next_retry_at IS NULL")
		legs = append(legs, o.filteredDeliveries(q, due), o.filteredDeliveries(q, never))
	}
	return legs
}

// filteredDeliveries adds to a leg of deliveries what else the query wants of them and their events.
func (o *Ops) filteredDeliveries(q Query, l leg) leg {
	add := func(wanted bool, condition string, arg any) {
		if wanted {
			l.filter, l.filters = append(l.filter, condition), append(l.filters, arg)
		}
	}
	add(q.TenantID != 0, "x.tenant_id = ?", q.TenantID)
	add(q.EventType != "", "x.event_type = ?", q.EventType)
	add(q.AggregateType != "", "x.aggregate_type = ?", q.AggregateType)
	add(q.AggregateID != "", "x.aggregate_id = ?", q.AggregateID)
	of := len(l.filter)
	add(q.Status != "", "e.status = ?", string(q.Status))
	add(q.TraceID != "", "e.trace_id = ?", q.TraceID)
	add(!q.Since.IsZero(), "e.created_at >= "+o.d.At, q.Since.UnixMicro())
	add(!q.Until.IsZero(), "e.created_at < "+o.d.At, q.Until.UnixMicro())
	l.join = len(l.filter) > of
	return l
}
