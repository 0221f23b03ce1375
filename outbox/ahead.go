package outbox

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/eventrow"
)

// heads keeps, in id order, the rows that may be worked on here. It drops those whose aggregate
// has an earlier row that is NEW, DISPATCHING, parked or due, unless that row is in this claim too
// or leased by this instance. It reads after the rows are locked. So two instances never work on
// two events of one aggregate.
func (s *session) heads(ctx context.Context, tx bun.IDB, rows []eventrow.Row) ([]claimedRow, error) {
	slices.SortFunc(rows, func(a, b eventrow.Row) int { return cmp.Compare(a.OutboxID, b.OutboxID) })
	claims := make(map[[2]string][]eventrow.Row, len(rows))
	for _, r := range rows {
		key := [2]string{r.AggregateType, r.AggregateID}
		claims[key] = append(claims[key], r)
	}
	found, err := s.earlier(ctx, tx, claims)
	if err != nil {
		return nil, err
	}
	kept, again := make([]claimedRow, 0, len(rows)), make(map[[2]string]bool)
	for _, r := range rows {
		key := [2]string{r.AggregateType, r.AggregateID}
		a := found[key]
		if a.blocker > 0 && a.blocker < r.OutboxID {
			continue
		}
		again[key] = again[key] || r.LockVersion > 0
		kept = append(kept, claimedRow{Row: r, behind: a.many || again[key], before: a.before(r.OutboxID)})
	}
	return kept, nil
}

// ahead is what is open of an aggregate before the last event of it that a claim has found, and not
// found by the claim.
type ahead struct {
	blocker int64   // the first that somebody else must deliver, 0 for none
	ids     []int64 // of all, in order, unless there are many
	many    bool
}

// mostAhead bounds what claims read of what is open before them, behind a consumer that is paused, say.
const mostAhead = 100

// and adds an event to what is ahead.
func (a ahead) and(id int64, blocks bool) ahead {
	if blocks && a.blocker == 0 {
		a.blocker = id
	}
	if !a.many {
		a.ids = append(a.ids, id)
	}
	return a
}

// before are the events before one of the claimed.
func (a ahead) before(id int64) []int64 {
	n, _ := slices.BinarySearch(a.ids, id)
	return a.ids[:n:n]
}

// earlier looks for open events that lie before the last claimed one of each aggregate and are
// not claimed.
func (s *session) earlier(ctx context.Context, tx bun.IDB, claims map[[2]string][]eventrow.Row) (map[[2]string]ahead, error) {
	ids, keys, own := make([]int64, 0, len(claims)), make(map[int64][2]string, len(claims)), make(map[int64]int, len(claims))
	claimed := 0
	for key, rows := range claims {
		last := rows[len(rows)-1].OutboxID
		ids, keys[last], own[last] = append(ids, last), key, len(rows)-1
		claimed += len(rows)
	}
	// Nearly always hardly anything else is open.
	limit := claimed + 10*len(ids) + mostAhead
	rows, err := s.listAhead(ctx, tx, ids, limit)
	if err != nil {
		return nil, err
	}
	found := make(map[[2]string]ahead)
	if len(rows) == limit {
		var many []int64
		if rows, many, err = s.countAhead(ctx, tx, ids, own); err != nil {
			return nil, err
		}
		for _, id := range many {
			found[keys[id]] = ahead{many: true}
		}
	}
	slices.SortFunc(rows, func(a, b []int64) int { return cmp.Compare(a[1], b[1]) })
	for _, row := range rows {
		key, id := keys[row[0]], row[1]
		if !slices.ContainsFunc(claims[key], func(r eventrow.Row) bool { return r.OutboxID == id }) {
			found[key] = found[key].and(id, row[2] == 1)
		}
	}
	return found, nil
}

// countAhead counts what is open before events, besides their own. Before those where it is much, whose ids it returns,
// it lists only what somebody else must deliver.
func (s *session) countAhead(ctx context.Context, tx bun.IDB, ids []int64, own map[int64]int) (rows [][]int64, many []int64, err error) {
	o := s.p.ob
	open, err := numbers(ctx, o.stmts.On(tx), "SELECT e.id, (SELECT COUNT(*) FROM "+o.d.OpenBefore(table, "p", "e")+") FROM "+o.d.Keyed(table)+" WHERE e.id IN (?)", ids)
	if err != nil {
		return nil, nil, err
	}
	var few []int64
	for _, p := range open {
		switch others := int(p[1]) - own[p[0]]; {
		case others > mostAhead:
			many = append(many, p[0])
		case others > 0:
			few = append(few, p[0])
		}
	}
	if rows, err = s.listAhead(ctx, tx, few, math.MaxInt32); err != nil || len(many) == 0 {
		return rows, nil, err
	}
	blockers, err := numbers(ctx, o.stmts.On(tx), "SELECT e.id, p.id, 1"+o.openBefore()+" AND "+o.inTheWay(), many, s.p.owner)
	return append(rows, blockers...), many, err
}

// listAhead lists up to limit events that are open before others: the event, what is before it, and 1 if somebody else
// must deliver that.
func (s *session) listAhead(ctx context.Context, tx bun.IDB, ids []int64, limit int) ([][]int64, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	o := s.p.ob
	return numbers(ctx, o.stmts.On(tx), "SELECT e.id, p.id, CASE WHEN "+o.inTheWay()+" THEN 1 ELSE 0 END"+o.openBefore()+" LIMIT ?", s.p.owner, ids, limit)
}

// openBefore are the events p that are open before the events e.
func (o *Outbox) openBefore() string {
	return " FROM " + o.d.Keyed(table) + o.d.Open(table, "p", "e", "p.id < e.id") + " WHERE e.id IN (?)"
}

// inTheWay is a condition on an open event p: an instance other than ? must deliver it first.
func (o *Outbox) inTheWay() string {
	return "p.status IN ('NEW', 'DISPATCHING', 'SCHEDULED') AND NOT (p.status = 'DISPATCHING' AND p.locked_by = ? AND p.next_retry_at > " + o.d.Now + ") " +
		"AND NOT (p.status = 'SCHEDULED' AND p.lock_version = 0 AND p.next_retry_at > " + o.d.Now + ")"
}

// numbers runs a query for whole numbers.
func numbers(ctx context.Context, db eventrow.Querier, query string, args ...any) (out [][]int64, err error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	dest := make([]any, len(columns))
	for rows.Next() {
		row := make([]int64, len(columns))
		for i := range row {
			dest[i] = &row[i]
		}
		if err := rows.Scan(dest...); err != nil {
			return nil, err
		}
		out = append(out, row)
	}
	return out, rows.Err()
}
