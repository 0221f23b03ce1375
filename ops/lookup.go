package ops

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/bluecone-go/bluecone/internal/store/view"
	"github.com/bluecone-go/bluecone/outbox"
)

// recentTypes is among how many of the newest events a search looks for types that nobody consumes.
const recentTypes = 1000

// eventTypes lists the event types that are known: consumed, publishable, or saved lately.
func (s *searcher) eventTypes(ctx context.Context) ([]string, error) {
	return share(ctx, s.access, "types", nil, func(ctx context.Context) ([]string, error) {
		types, err := view.RegisteredTypes(ctx, s.access.sql, maxNames)
		if err != nil {
			return nil, fmt.Errorf("ops: read event types: %w", err)
		}
		recent, err := view.RecentTypes(ctx, s.access.sql, CallerOf(ctx).Tenants, recentTypes)
		if err != nil {
			return nil, fmt.Errorf("ops: read event types: %w", err)
		}
		types = append(append(types, recent...), s.publishable.types()...)
		slices.Sort(types)
		return slices.Compact(types), nil
	})
}

// aggregateTypes lists the aggregate types there are.
func (s *searcher) aggregateTypes(ctx context.Context) ([]string, error) {
	return share(ctx, s.access, "aggregates", nil, func(ctx context.Context) ([]string, error) {
		const most = 200
		var types []string
		for _, table := range []view.Table{view.Events, view.EventsArchive} {
			found, err := view.AggregateTypes(ctx, s.access.sql, table, most-len(types))
			if err != nil {
				return nil, fmt.Errorf("ops: read aggregate types: %w", err)
			}
			types = append(types, found...)
		}
		slices.Sort(types)
		return slices.Compact(types), nil
	})
}

// idsOfKey finds the events of an idempotency key: those that were saved under it, and those for which a consumer has
// recorded it. The ids of events that are deleted, or older than the column, follow from tenant, type and key: the
// tenants of late, or the one asked for, are tried.
func (s *searcher) idsOfKey(ctx context.Context, q Query) ([]string, error) {
	types, err := s.eventTypes(ctx)
	if err != nil {
		return nil, err
	}
	tenants, err := s.tenants(ctx, q.TenantID)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, tenant := range tenants {
		for _, t := range types[:min(len(types), maxCandidates/len(tenants))] {
			ids = append(ids, outbox.EventID(tenant, t, q.IdempotencyKey))
		}
	}
	for _, table := range []view.Table{view.Events, view.EventsArchive, view.Deliveries} {
		found, err := view.EventIDsOfKey(ctx, s.access.sql, table, q.IdempotencyKey, q.TenantID, CallerOf(ctx).Tenants, mostOfKey)
		if err != nil {
			return nil, fmt.Errorf("ops: look for a key: %w", err)
		}
		ids = append(ids, found...)
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// tenants are those under which an event may have been saved: the one asked for, or none and the
// tenants of late.
func (s *searcher) tenants(ctx context.Context, asked int64) ([]int64, error) {
	if asked != 0 {
		return []int64{asked}, nil
	}
	if caller := CallerOf(ctx); caller.limited() {
		return caller.Tenants, nil
	}
	return share(ctx, s.access, "tenants", nil, func(ctx context.Context) ([]int64, error) {
		const most = 20
		recent, err := view.RecentTenants(ctx, s.access.sql, recentTypes, most)
		if err != nil {
			return nil, fmt.Errorf("ops: read tenants: %w", err)
		}
		return append([]int64{0}, recent...), nil
	})
}

// outOfOrder is how far the times of rows may be behind those of earlier rows: a transaction takes
// its ids when it inserts, and its clock's time too, but rows become visible when it commits.
const outOfOrder = 10 * time.Minute

// idBounds turns bounds of time into bounds of ids, a little wider: 0 means none.
func (s *searcher) idBounds(ctx context.Context, table view.Table, since, until time.Time) (from, to int64, err error) {
	if since.IsZero() && until.IsZero() {
		return 0, 0, nil
	}
	first, last, err := view.IDRange(ctx, s.access.sql, table)
	if err == nil && !since.IsZero() {
		from, err = view.FirstSince(ctx, s.access.sql, table, first, last, since.Add(-outOfOrder))
	}
	if err == nil && !until.IsZero() {
		to, err = view.FirstSince(ctx, s.access.sql, table, first, last, until.Add(outOfOrder))
		to++ // that row itself may be younger than its successors
	}
	if err != nil {
		return 0, 0, fmt.Errorf("ops: look for ids: %w", err)
	}
	return from, to, nil
}
