package ops

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/store/view"
	"github.com/bluecone-go/bluecone/internal/text"
)

// A search goes through one or more legs. A leg is a walk along one index.

// cursor is a place in a search: so far in leg number n.
type cursor struct {
	leg   int
	place view.Place
}

// end is the cursor of a search that is over.
func end() cursor { return cursor{place: view.Place{IsEnd: true}} }

// String is what a page hands out, empty at the end.
func (c cursor) String() string {
	if c.place.IsEnd {
		return ""
	}
	return fmt.Sprintf("%d.%d.%d", c.leg, c.place.Micros, c.place.ID)
}

func parseCursor(s string) (cursor, error) {
	var c cursor
	if s == "" {
		return c, nil
	}
	if n, err := fmt.Sscanf(s, "%d.%d.%d", &c.leg, &c.place.Micros, &c.place.ID); err != nil || n != 3 || c.String() != s || c.leg < 0 {
		return c, invalidf("ops: cursor %s is not a cursor: take it from the page before", text.Quote(s))
	}
	return c, nil
}

// found is what a search has found, and where it goes on.
type found struct {
	hits       []view.Hit
	next       cursor
	searchedTo time.Time
}

// find goes through the legs of a query until it has a page, or has looked at enough.
func (s *searcher) find(ctx context.Context, q Query, ascending bool) (found, error) {
	at, err := parseCursor(q.Cursor)
	if err != nil {
		return found{}, err
	}
	legs, err := s.legs(ctx, q)
	if err != nil {
		return found{}, err
	}
	if ascending {
		slices.Reverse(legs)
	}
	var f found
	for ; at.leg < len(legs); at = (cursor{leg: at.leg + 1}) {
		l := legs[at.leg]
		hits, next, err := l.Hits(ctx, s.access.sql, at.place, q.Limit-len(f.hits), ascending, q.inGroup(l))
		if err != nil {
			return found{}, fmt.Errorf("ops: search: %w", err)
		}
		f.hits = append(f.hits, hits...)
		if next.IsEnd {
			continue
		}
		f.next = cursor{at.leg, next}
		if len(f.hits) < q.Limit {
			f.searchedTo, err = view.SavedAt(ctx, s.access.sql, l.Table, next.ID)
		}
		return f, err
	}
	f.next = end()
	return f, nil
}

// inGroup is the condition on the hits of a leg that they belong to the group of dead letters that the query names, nil for none:
// what belongs to a group, only the text tells.
func (q Query) inGroup(l view.Walk) func(view.Hit) bool {
	if !l.ReadsErrors() {
		return nil
	}
	return func(h view.Hit) bool {
		return fingerprint(q.Consumer, h.EventType, text.Mask(h.Error)) == q.Fingerprint
	}
}

// tally counts what one leg holds, up to limit, or as much of it as one statement may look at.
func (s *searcher) tally(ctx context.Context, q Query, l view.Walk, at view.Place, limit int) (n int64, next view.Place, err error) {
	if inGroup := q.inGroup(l); inGroup != nil {
		hits, next, err := l.Hits(ctx, s.access.sql, at, limit, false, inGroup)
		return int64(len(hits)), next, err
	}
	return l.Count(ctx, s.access.sql, at, limit)
}

// legs chooses the walks that a query needs, limited to what belongs to the caller's tenants.
func (s *searcher) legs(ctx context.Context, q Query) ([]view.Walk, error) {
	look := lookAt
	of := view.Search{
		AggregateTypes: []string{q.AggregateType}, AggregateType: q.AggregateType, AggregateID: q.AggregateID, TraceID: q.TraceID,
		TenantID: q.TenantID, EventType: q.EventType, Status: string(q.Status), Consumer: q.Consumer, Since: q.Since, Until: q.Until,
	}
	if caller := CallerOf(ctx); caller.limited() {
		of.Tenants = caller.Tenants
	}
	var err error
	switch {
	case q.Fingerprint != "":
		look, of.Errors = deadLook, listText
		of.States = []string{string(consumelog.Dead), string(consumelog.Failed)}
		if q.DeliveryStatus != "" {
			of.States = []string{string(q.DeliveryStatus)}
		}
		return view.Walks(s.access.sql.D, of, look), nil
	case q.Consumer != "":
		of.States = []string{string(q.DeliveryStatus)}
		return view.Walks(s.access.sql.D, of, look), nil
	case q.AggregateID != "" && q.AggregateType == "":
		if of.AggregateTypes, err = s.aggregateTypes(ctx); err != nil {
			return nil, err
		}
	}
	if of.FromID, of.ToID, err = s.idBounds(ctx, view.Events, q.Since, q.Until); err != nil {
		return nil, err
	}
	return view.Walks(s.access.sql.D, of, look), nil
}
