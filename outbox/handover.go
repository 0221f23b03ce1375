package outbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/eventrow"
)

// handover is the way of just committed events from the producers of this process to its
// publisher. It saves the search for them, nothing else: they are leased as by a claim, and who
// misses one finds it by claiming.
type handover struct {
	mu   sync.Mutex
	ids  []string
	over bool // there were too many: claim instead
	call chan struct{}
}

// handoverMost is how many events may wait to be handed over. More are a backlog, which claims
// work off faster.
const handoverMost = 50

func newHandover() *handover { return &handover{call: make(chan struct{}, 1)} }

// put hands over events.
func (h *handover) put(ids []string) {
	h.mu.Lock()
	if h.over = h.over || len(h.ids)+len(ids) > handoverMost; h.over {
		h.ids = nil
	} else {
		h.ids = append(h.ids, ids...)
	}
	h.mu.Unlock()
	signal(h.call)
}

// take returns what was handed over, and false if it was too much.
func (h *handover) take() (ids []string, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ids, ok = h.ids, !h.over
	h.ids, h.over = nil, false
	return ids, ok
}

// registryFor is how old the registry may be that events are handed over by. Settling looks again.
const registryFor = time.Second

// receive leases handed over events and dispatches them. It reports false if they have to be
// claimed instead.
func (s *session) receive(ctx context.Context) (bool, error) {
	ids, ok := s.p.handover.take()
	room, _ := s.lanes.Room()
	if !ok || len(ids) > min(s.free(), room) {
		return false, nil
	}
	if len(ids) == 0 {
		return true, nil
	}
	if time.Since(s.registryAt) > registryFor {
		if err := s.refresh(ctx); err != nil {
			return false, err
		}
	}
	c, dropped, err := s.claimByID(ctx, ids)
	if err != nil {
		return false, err
	}
	if len(dropped) > 0 {
		s.lookout.later(blockedFor, s.front)
	}
	if len(c.rows) == 0 {
		return true, nil
	}
	return true, s.dispatch(ctx, c)
}

// claimByID leases events that nobody has claimed yet, and gives back those that an earlier event
// of their aggregate blocks.
func (s *session) claimByID(ctx context.Context, ids []string) (c claim, dropped []*flight, err error) {
	defer s.lanes.Turn()()
	o, asked := s.p.ob, time.Now()
	rows, err := s.leaseByID(ctx, ids)
	if err != nil {
		return claim{}, nil, fmt.Errorf("outbox: lease events: %w", err)
	}
	if rows = s.notInFlight(rows); len(rows) == 0 {
		return claim{}, nil, nil
	}
	c.until, c.asked = rows[0].DueAt, asked // where the end of a lease stands
	for i := range rows {
		rows[i].LockVersion = 0 // as before the lease
	}
	if free := onlyOpen(rows); free != nil {
		c.rows = free
	} else if c.rows, err = s.heads(ctx, o.db, rows); err != nil {
		return claim{}, nil, fmt.Errorf("outbox: look before leased events: %w", err)
	}
	kept := make(map[int64]bool, len(c.rows))
	for i := range c.rows {
		c.rows[i].LockVersion = 1
		kept[c.rows[i].OutboxID] = true
	}
	for _, r := range rows {
		if !kept[r.OutboxID] {
			r.LockVersion = 1
			dropped = append(dropped, &flight{row: r})
		}
	}
	if err := s.giveBack(ctx, dropped, ending{status: StatusNew}, ""); err != nil {
		return claim{}, nil, err
	}
	c.consumers, c.handed = s.registry, true
	return c, dropped, nil
}

// leaseByID turns NEW events into DISPATCHING ones of this instance and returns them. The extra
// number is how many earlier events of the aggregate are open.
func (s *session) leaseByID(ctx context.Context, ids []string) ([]eventrow.Row, error) {
	o, as, hint := s.p.ob, " AS e", ""
	db := o.stmts.On(o.db)
	columns := eventrow.Columns(o.d) + ", (SELECT COUNT(*) FROM " + o.d.OpenBefore(table, "p", "e") + ")"
	if o.d.Name == "mysql" {
		as, hint = "", " FORCE INDEX (uk_event_id)"
	}
	lease := "UPDATE " + table + as + hint + " SET status = 'DISPATCHING', locked_by = ?, lock_version = 1, next_retry_at = " + o.d.After + ", updated_at = " + o.d.Now +
		" WHERE event_id IN (?) AND CASE WHEN status = 'NEW' THEN 1 END = 1 AND lock_version = 0" // as in heldBy
	args := []any{s.p.owner, dialect.Micro(s.p.cfg.Lease), ids}
	if o.d.Name == "postgres" {
		return eventrow.Read(ctx, db, lease+" RETURNING "+columns, args...)
	}
	if _, err := db.ExecContext(ctx, lease, args...); err != nil {
		return nil, err
	}
	return eventrow.Read(ctx, db, "SELECT "+columns+" FROM "+table+" e"+hint+" WHERE e.event_id IN (?) AND e.status = 'DISPATCHING' AND e.locked_by = ? AND e.lock_version = 1", ids, s.p.owner)
}

// onlyOpen returns the rows in id order if no other event of their aggregates is open before
// them, or else nil.
func onlyOpen(rows []eventrow.Row) []claimedRow {
	slices.SortFunc(rows, func(a, b eventrow.Row) int { return cmp.Compare(a.OutboxID, b.OutboxID) })
	seen := make(map[[2]string]int64, len(rows))
	out := make([]claimedRow, len(rows))
	for i, r := range rows {
		key := [2]string{r.AggregateType, r.AggregateID}
		if r.Extra > seen[key] {
			return nil
		}
		seen[key]++
		out[i].Row = r
	}
	return out
}

// notInFlight drops rows that this session has been working on already.
func (s *session) notInFlight(rows []eventrow.Row) []eventrow.Row {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := rows[:0]
	for _, r := range rows {
		if _, ok := s.flights[r.OutboxID]; !ok {
			kept = append(kept, r)
		}
	}
	return kept
}

// recheck makes up for the age of the registry: a handed over event is not SENT as long as a
// consumer waits for it that has registered since.
func (s *session) recheck(ctx context.Context, flights []*flight) error {
	var all *roster
	var late []consumelog.Delivery
	for _, f := range flights {
		if !f.handed {
			continue
		}
		if all == nil {
			read, err := s.p.ob.readRoster(ctx, s.p.ob.db)
			if err != nil {
				return err
			}
			all = &read
		}
		f.handed = false
		for _, name := range all.foreign(s.local, f.row.Type) {
			if !slices.Contains(f.needed, name) {
				f.needed = append(f.needed, name)
				f.clean.Store(false)
				late = append(late, f.delivery(name))
			}
		}
	}
	return s.p.ob.log.Defer(ctx, s.p.ob.db, late, 0)
}
