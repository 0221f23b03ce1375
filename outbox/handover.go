package outbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	due "github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/store"
)

// registryFor is how old the registry may be that events are handed over by. Settling looks again.
const registryFor = time.Second

// receive leases handed over events and dispatches them. It reports false if they have to be
// claimed instead.
func (s *session) receive(ctx context.Context) (bool, error) {
	ids, ok := s.p.handover.Take()
	room, _ := s.lanes.Room()
	if !ok || len(ids) > min(s.free(), room) {
		return false, nil
	}
	if len(ids) == 0 {
		return true, nil
	}
	if time.Since(s.rosterAt) > registryFor {
		if err := s.refresh(ctx); err != nil {
			return false, err
		}
	}
	c, dropped, err := s.claimByID(ctx, ids)
	if err != nil {
		return false, err
	}
	if len(dropped) > 0 {
		s.alarm.set(due.BlockedFor)
	}
	if len(c.Rows) == 0 {
		return true, nil
	}
	return true, s.dispatch(ctx, c)
}

// claimByID leases events that nobody has claimed yet, and gives back those that an earlier event
// of their aggregate blocks.
func (s *session) claimByID(ctx context.Context, ids []string) (c claim, dropped []*flight, err error) {
	defer s.lanes.Turn()()
	rows, err := s.p.ob.claims.LeaseFresh(ctx, s.p.ob.db, s.newLease(), ids)
	if err != nil {
		return claim{}, nil, fmt.Errorf("outbox: lease events: %w", err)
	}
	if rows = s.notInFlight(rows); len(rows) == 0 {
		return claim{}, nil, nil
	}
	c = claim{Result: due.Result{Until: rows[0].DueAt}, consumers: s.roster, handed: true} // where the end of a lease stands
	slices.SortFunc(rows, func(a, b eventrow.Row) int { return cmp.Compare(a.OutboxID, b.OutboxID) })
	for _, r := range rows {
		if first := r.Extra; first != 0 && first < r.OutboxID {
			dropped = append(dropped, &flight{row: r})
			continue
		}
		c.Rows = append(c.Rows, r)
	}
	return c, dropped, s.giveBack(ctx, dropped, settle.Return{Status: settle.New})
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
	var late []store.Delivery
	for _, f := range flights {
		if f.routed == nil {
			continue
		}
		if all == nil {
			read, _, err := s.registry.read(ctx, s.p.ob.db)
			if err != nil {
				return err
			}
			all = read
		}
		if f.routed != all {
			late = append(late, f.routeAgain(all)...)
		}
		f.routed = nil
	}
	return s.p.ob.log.Defer(ctx, s.p.ob.db, late, 0)
}

// routeAgain adds the consumers of other instances that have to get the event by a newer registry.
func (f *flight) routeAgain(all *roster) (late []store.Delivery) {
	needed := make(map[string]bool, len(f.needed))
	for _, name := range f.needed {
		needed[name] = true
	}
	for _, name := range all.elsewhere[f.row.Type] {
		if !needed[name] {
			f.needed = append(f.needed, name)
			f.clean.Store(false)
			late = append(late, f.delivery(name))
		}
	}
	return late
}
