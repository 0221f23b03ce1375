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

func (q Query) withDefaults() (Query, error) {
	if err := q.validate(); err != nil {
		return q, err
	}
	switch {
	case q.Limit < 0 || q.Limit > maxLimit:
		return q, invalidf("ops: a limit of %d: it must be between 1 and %d (0 means %d)", q.Limit, maxLimit, defaultLimit)
	case q.Limit == 0:
		q.Limit = defaultLimit
	}
	if q.Fingerprint != "" {
		consumer, eventType, ok := parseFingerprint(q.Fingerprint)
		if !ok || (q.Consumer != "" && q.Consumer != consumer) || (q.EventType != "" && q.EventType != eventType) {
			return q, invalidf("ops: fingerprint %q is not one of a group of dead letters, or contradicts the consumer or the event type",
				q.Fingerprint)
		}
		q.Consumer, q.EventType = consumer, eventType
	} else if q.DeliveryStatus != "" && q.Consumer == "" {
		return q, invalidf("ops: a delivery status without a consumer: name the consumer")
	}
	if q.Consumer != "" && q.DeliveryStatus == "" && q.Fingerprint == "" {
		q.DeliveryStatus = consumelog.Dead
	}
	if !q.Since.IsZero() && !q.Until.IsZero() && !q.Since.Before(q.Until) {
		return q, invalidf("ops: the search ends at %v, before it begins at %v", q.Until, q.Since)
	}
	return q, nil
}

// direct reports whether the query names its events, so that they need no searching for.
func (q Query) direct() bool { return q.EventID != "" || q.IdempotencyKey != "" }

// searcher finds events.
type searcher struct {
	*loader

	publishable publishable
	timeout     time.Duration
}

// Events lists events: newest first, or in the reverse order in which they fall due if the query
// selects events, or deliveries, that wait. What it answers is shared: do not change it.
func (o *Ops) Events(ctx context.Context, q Query) (Page[Event], error) {
	return share(ctx, o.access, "events", q, func(ctx context.Context) (Page[Event], error) {
		p, err := o.search.page(ctx, q)
		if err == nil {
			err = o.search.complete(ctx, p.Rows)
		}
		return p, err
	})
}

// EventTypes lists the event types that are known: consumed, publishable, or saved lately.
func (o *Ops) EventTypes(ctx context.Context) ([]string, error) { return o.search.eventTypes(ctx) }

// page reads a page of a search, without deliveries.
func (s *searcher) page(ctx context.Context, q Query) (Page[Event], error) {
	q, err := q.withDefaults()
	if err != nil {
		return Page[Event]{}, err
	}
	if q.direct() {
		events, err := s.named(ctx, q, listText)
		slices.Reverse(events)
		return Page[Event]{Rows: append([]Event{}, events...)}, err
	}
	found, err := s.find(ctx, q, false)
	if err != nil {
		return Page[Event]{}, err
	}
	p := Page[Event]{Rows: make([]Event, 0, len(found.hits)), Next: found.next.String(), SearchedTo: found.searchedTo}
	err = s.loadHits(ctx, found.hits, &p.Rows)
	caller := CallerOf(ctx) // a delivery may say another tenant than its event
	p.Rows = slices.DeleteFunc(p.Rows, func(e Event) bool { return !caller.Sees(e.TenantID) })
	return p, err
}

// loadHits loads the events of hits, in their order. Deliveries of events that are gone are left out.
func (s *searcher) loadHits(ctx context.Context, hits []view.Hit, out *[]Event) error {
	rows := make(map[view.Table][]int64)
	var ids []string
	for _, h := range hits {
		if h.Table == view.Deliveries {
			ids = append(ids, h.EventID)
		} else {
			rows[h.Table] = append(rows[h.Table], h.ID)
		}
	}
	byID := make(map[string]Event, len(hits))
	events, err := s.eventsByID(ctx, ids, listText)
	if err != nil {
		return err
	}
	for table, ids := range rows {
		more, err := s.eventsByRow(ctx, table, ids)
		if err != nil {
			return err
		}
		events = append(events, more...)
	}
	for _, e := range events {
		byID[e.EventID] = e
	}
	for _, h := range hits {
		if e, ok := byID[h.EventID]; ok {
			*out = append(*out, e)
			delete(byID, h.EventID)
		}
	}
	return nil
}

// named returns the events that the query names, as far as they fit the rest of it.
func (s *searcher) named(ctx context.Context, q Query, most int) ([]Event, error) {
	ids := []string{q.EventID}
	if q.EventID == "" {
		var err error
		if ids, err = s.idsOfKey(ctx, q); err != nil {
			return nil, err
		}
	}
	events, err := s.eventsByID(ctx, ids, most)
	if err != nil {
		return nil, err
	}
	there := make(map[string]bool, len(events))
	for _, e := range events {
		there[e.EventID] = true
	}
	gone, err := s.remember(ctx, slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return there[id] }))
	if err != nil {
		return nil, err
	}
	caller := CallerOf(ctx)
	events = slices.DeleteFunc(append(events, gone...), func(e Event) bool { return !q.fits(e) || !caller.Sees(e.TenantID) })
	if q.Consumer == "" {
		return events, nil
	}
	log, _, err := s.deliveries(ctx, ids, listText)
	return slices.DeleteFunc(events, func(e Event) bool {
		return !slices.ContainsFunc(log[e.EventID], func(r logRow) bool { return q.fitsDelivery(r) })
	}), err
}

// fits reports whether an event is one that the query selects, by what its row says.
func (q Query) fits(e Event) bool {
	return (q.EventID == "" || q.EventID == e.EventID) && (q.AggregateType == "" || q.AggregateType == e.AggregateType) &&
		(q.AggregateID == "" || q.AggregateID == e.AggregateID) &&
		(q.TraceID == "" || q.TraceID == e.TraceID) && (q.TenantID == 0 || q.TenantID == e.TenantID) &&
		(q.EventType == "" || q.EventType == e.EventType) &&
		(q.Status == "" || q.Status == e.Status) && (q.Since.IsZero() || !e.CreatedAt.Before(q.Since)) &&
		(q.Until.IsZero() || e.CreatedAt.Before(q.Until))
}

func (q Query) fitsDelivery(r logRow) bool {
	return r.Consumer == q.Consumer && (q.DeliveryStatus == "" || r.Status == q.DeliveryStatus) &&
		(q.Fingerprint == "" || fingerprint(r.Consumer, r.of.EventType, text.Mask(r.Error)) == q.Fingerprint)
}

// Count counts the events that a query selects, whatever its Cursor and Limit.
func (o *Ops) Count(ctx context.Context, q Query) (Count, error) { return o.search.sharedCount(ctx, q) }

func (s *searcher) sharedCount(ctx context.Context, q Query) (Count, error) {
	q.Cursor, q.Limit = "", 0
	return share(ctx, s.access, "count", q, func(ctx context.Context) (Count, error) { return s.count(ctx, q) })
}

func (s *searcher) count(ctx context.Context, q Query) (Count, error) {
	q, err := q.withDefaults()
	if err != nil {
		return Count{}, err
	}
	if q.direct() {
		events, err := s.named(ctx, q, listText)
		return Count{Count: int64(len(events))}, err
	}
	legs, err := s.legs(ctx, q)
	if err != nil {
		return Count{}, err
	}
	var n Count
	began, looks := time.Now(), 0
	for _, l := range legs {
		for at := (view.Place{}); !at.IsEnd; looks++ {
			if looks > countLooks || time.Since(began) > s.timeout {
				n.More = true
				return n, nil
			}
			more, next, err := s.tally(ctx, q, l, at, CountCap+1-int(n.Count))
			if err != nil {
				return Count{}, fmt.Errorf("ops: count: %w", err)
			}
			if n.Count += more; n.Count > CountCap {
				return capped(n.Count), nil
			}
			if at = next; l.ReadsErrors() && !at.IsEnd { // as far as Dead looks
				n.More = true
				break
			}
		}
	}
	return n, nil
}

// Event shows one event with every delivery and attempt. It answers [ErrNotFound] if there is none.
func (o *Ops) Event(ctx context.Context, eventID string) (Event, error) {
	return o.search.one(ctx, eventID)
}

// one reads one event. It is not shared: who looks at a single event wants to see it as it is now.
func (s *searcher) one(ctx context.Context, eventID string) (Event, error) {
	if err := asInvalid(text.Key("ops: event id", eventID, longest)); err != nil {
		return Event{}, err
	}
	events, err := s.named(ctx, Query{EventID: eventID}, pageText)
	if err == nil && len(events) == 0 {
		err = noEvent(eventID)
	}
	if err != nil {
		return Event{}, err
	}
	k, err := s.access.readRegistry(ctx)
	if err == nil {
		err = s.completeWith(ctx, k, events, pageText)
	}
	if err == nil {
		err = s.histories(ctx, events)
	}
	if err != nil {
		return Event{}, err
	}
	return events[0], nil
}
