package ops

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/bluecone-go/bluecone/outbox"
)

// recentTypes is among how many of the newest events a search looks for types that nobody consumes.
const recentTypes = 1000

// eventTypes lists the event types that are known: consumed, publishable, or saved lately.
func (o *Ops) eventTypes(ctx context.Context) ([]string, error) {
	return share(ctx, o.access, "types", nil, func(ctx context.Context) ([]string, error) {
		types, err := o.texts(ctx, fmt.Sprintf("SELECT DISTINCT %s FROM bc_consumer_type LIMIT %d", o.name("event_type"), maxNames))
		if err != nil {
			return nil, fmt.Errorf("ops: read event types: %w", err)
		}
		where, args := "", []any(nil)
		if caller := CallerOf(ctx); caller.limited() {
			owns, arg := caller.owns("x")
			where, args = " WHERE "+owns, []any{arg}
		}
		recent, err := o.texts(ctx, fmt.Sprintf("SELECT DISTINCT %s FROM (SELECT event_type, tenant_id FROM %s ORDER BY id DESC LIMIT %d) x%s", o.name("x.event_type"), eventTable, recentTypes, where), args...)
		if err != nil {
			return nil, fmt.Errorf("ops: read event types: %w", err)
		}
		types = append(append(types, recent...), o.PublishableTypes()...)
		slices.Sort(types)
		return slices.Compact(types), nil
	})
}

// EventTypes lists the event types that are known: consumed, publishable, or saved lately.
func (o *Ops) EventTypes(ctx context.Context) ([]string, error) { return o.eventTypes(ctx) }

// aggregateTypes lists the aggregate types there are, by jumping from one to the next in the index.
func (o *Ops) aggregateTypes(ctx context.Context) ([]string, error) {
	return share(ctx, o.access, "aggregates", nil, func(ctx context.Context) ([]string, error) {
		var types []string
		for _, table := range []string{eventTable, archiveTable} {
			const most = 200
			for last := ""; len(types) < most; {
				found, err := o.texts(ctx, "SELECT "+o.name("aggregate_type")+" FROM "+table+" WHERE aggregate_type > ? ORDER BY aggregate_type LIMIT 1", last)
				if err != nil {
					return nil, fmt.Errorf("ops: read aggregate types: %w", err)
				}
				if len(found) == 0 || found[0] == last { // one whose name was cut
					break
				}
				last = found[0]
				types = append(types, last)
			}
		}
		slices.Sort(types)
		return slices.Compact(types), nil
	})
}

// idsOfKey finds the events of an idempotency key: those that were saved under it, and those for which a consumer has
// recorded it. The ids of events that are deleted, or older than the column, follow from tenant, type and key: the
// tenants of late, or the one asked for, are tried.
func (o *Ops) idsOfKey(ctx context.Context, q Query) ([]string, error) {
	types, err := o.eventTypes(ctx)
	if err != nil {
		return nil, err
	}
	tenants, err := o.tenants(ctx, q.TenantID)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, tenant := range tenants {
		for _, t := range types[:min(len(types), maxCandidates/len(tenants))] {
			ids = append(ids, outbox.EventID(tenant, t, q.IdempotencyKey))
		}
	}
	for _, place := range []struct{ table, column string }{{eventTable, "event_key"}, {archiveTable, "event_key"}, {logTable, "idempotency_key"}} {
		where, args := place.column+" = ?", []any{q.IdempotencyKey}
		if q.TenantID != 0 {
			where, args = where+" AND tenant_id = ?", append(args, q.TenantID)
		}
		if caller := CallerOf(ctx); caller.limited() {
			owns, arg := caller.owns(place.table)
			where, args = where+" AND "+owns, append(args, arg)
		}
		found, err := o.texts(ctx, fmt.Sprintf("SELECT %s FROM %s WHERE %s ORDER BY id DESC LIMIT %d", o.name("event_id"), place.table, where, mostOfKey), args...)
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
func (o *Ops) tenants(ctx context.Context, asked int64) ([]int64, error) {
	if asked != 0 {
		return []int64{asked}, nil
	}
	if caller := CallerOf(ctx); caller.limited() {
		return caller.Tenants, nil
	}
	return share(ctx, o.access, "tenants", nil, func(ctx context.Context) ([]int64, error) {
		const most = 20
		tenants := []int64{0}
		err := o.rows(ctx, func(rows *sql.Rows) error {
			var t int64
			err := rows.Scan(&t)
			tenants = append(tenants, t)
			return err
		}, fmt.Sprintf("SELECT DISTINCT x.tenant_id FROM (SELECT tenant_id FROM %s ORDER BY id DESC LIMIT %d) x WHERE x.tenant_id IS NOT NULL LIMIT %d", eventTable, recentTypes, most))
		if err != nil {
			return nil, fmt.Errorf("ops: read tenants: %w", err)
		}
		return tenants, nil
	})
}

// outOfOrder is how far the times of rows may be behind those of earlier rows: a transaction takes
// its ids when it inserts, and its clock's time too, but rows become visible when it commits.
const outOfOrder = 10 * time.Minute

// idBounds turns bounds of time into bounds of ids, a little wider: 0 means none.
func (o *Ops) idBounds(ctx context.Context, table string, since, until time.Time) (from, to int64, err error) {
	if since.IsZero() && until.IsZero() {
		return 0, 0, nil
	}
	var first, last int64
	err = o.row(ctx, []any{&first, &last}, "SELECT COALESCE((SELECT MIN(id) FROM "+table+"), 0), COALESCE((SELECT MAX(id) FROM "+table+"), 0)")
	if err != nil {
		return 0, 0, fmt.Errorf("ops: look for ids: %w", err)
	}
	if !since.IsZero() {
		if from, err = o.firstSince(ctx, table, first, last, since.Add(-outOfOrder)); err != nil {
			return 0, 0, err
		}
	}
	if !until.IsZero() {
		if to, err = o.firstSince(ctx, table, first, last, until.Add(outOfOrder)); err != nil {
			return 0, 0, err
		}
		to++ // that row itself may be younger than its successors
	}
	return from, to, nil
}

// firstSince is the id of the first row that was made at t or later, by bisection over the primary
// key: one past the last if there is none.
func (o *Ops) firstSince(ctx context.Context, table string, first, last int64, t time.Time) (int64, error) {
	low, high := first, last+1 // the answer is in between
	for low < high {
		mid := low + (high-low)/2
		var id, micros int64
		err := o.row(ctx, []any{&id, &micros}, "SELECT id, "+o.d.Micros("created_at")+" FROM "+table+" WHERE id >= ? ORDER BY id LIMIT 1", mid)
		if errors.Is(err, sql.ErrNoRows) {
			high = mid
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("ops: look for ids: %w", err)
		}
		if micros >= t.UnixMicro() {
			high = mid
		} else {
			low = id + 1
		}
	}
	return low, nil
}
