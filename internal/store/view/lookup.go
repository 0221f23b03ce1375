package view

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// RegisteredTypes lists event types that consumers are registered for.
func RegisteredTypes(ctx context.Context, r Reader, most int) ([]string, error) {
	return r.texts(ctx, fmt.Sprintf("SELECT DISTINCT %s FROM bc_consumer_type LIMIT %d", r.name("event_type"), most))
}

// RecentTypes lists the types of so many of the newest events. An empty list of tenants means all.
func RecentTypes(ctx context.Context, r Reader, tenants []int64, among int) ([]string, error) {
	where, args := "", []any(nil)
	if len(tenants) > 0 {
		owns, arg := owned("x", tenants)
		where, args = " WHERE "+owns, []any{arg}
	}
	return r.texts(ctx, fmt.Sprintf("SELECT DISTINCT %s FROM (SELECT event_type, tenant_id FROM %s ORDER BY id DESC LIMIT %d) x%s",
		r.name("x.event_type"), Events, among, where), args...)
}

// AggregateTypes lists the aggregate types of a table, by jumping from one to the next in the index.
func AggregateTypes(ctx context.Context, r Reader, in Table, most int) (types []string, err error) {
	for last := ""; len(types) < most; {
		found, err := r.texts(ctx, "SELECT "+r.name("aggregate_type")+" FROM "+string(in)+
			" WHERE aggregate_type > ? ORDER BY aggregate_type LIMIT 1", last)
		if err != nil {
			return nil, err
		}
		if len(found) == 0 || found[0] == last { // one whose name was cut
			break
		}
		last = found[0]
		types = append(types, last)
	}
	return types, nil
}

// EventIDsOfKey lists the newest events that were saved under an idempotency key, or for which a consumer has recorded it.
// Tenant 0 means any, an empty list of tenants all.
func EventIDsOfKey(ctx context.Context, r Reader, in Table, key string, tenant int64, tenants []int64, most int) ([]string, error) {
	keyed := "event_key"
	if in == Deliveries {
		keyed = "idempotency_key"
	}
	where, args := keyed+" = ?", []any{key}
	if tenant != 0 {
		where, args = where+" AND tenant_id = ?", append(args, tenant)
	}
	if len(tenants) > 0 {
		owns, arg := owned(string(in), tenants)
		where, args = where+" AND "+owns, append(args, arg)
	}
	return r.texts(ctx, fmt.Sprintf("SELECT %s FROM %s WHERE %s ORDER BY id DESC LIMIT %d", r.name("event_id"), in, where, most), args...)
}

// RecentTenants lists some of the tenants of so many of the newest events.
func RecentTenants(ctx context.Context, r Reader, among, most int) ([]int64, error) {
	return column[int64](ctx, r, fmt.Sprintf("SELECT DISTINCT %s FROM (SELECT tenant_id FROM %s ORDER BY id DESC LIMIT %d) x "+
		"WHERE x.tenant_id IS NOT NULL LIMIT %d", r.number("x.tenant_id"), Events, among, most))
}

// IDRange tells the first and the last id of a table, 0 if it is empty.
func IDRange(ctx context.Context, r Reader, of Table) (first, last int64, err error) {
	err = r.row(ctx, []any{&first, &last},
		"SELECT COALESCE((SELECT MIN(id) FROM "+string(of)+"), 0), COALESCE((SELECT MAX(id) FROM "+string(of)+"), 0)")
	return first, last, err
}

// FirstSince is the id, between two, of the first row that was made at t or later, by bisection over the primary key: one past
// the last if there is none.
func FirstSince(ctx context.Context, r Reader, in Table, first, last int64, t time.Time) (int64, error) {
	low, high := first, last+1 // the answer is in between
	for low < high {
		mid := low + (high-low)/2
		var id, micros int64
		err := r.row(ctx, []any{&id, &micros},
			"SELECT id, "+r.D.Micros("created_at")+" FROM "+string(in)+" WHERE id >= ? ORDER BY id LIMIT 1", mid)
		if errors.Is(err, sql.ErrNoRows) {
			high = mid
			continue
		}
		if err != nil {
			return 0, err
		}
		if micros >= t.UnixMicro() {
			high = mid
		} else {
			low = id + 1
		}
	}
	return low, nil
}

// SavedAt tells when a row was made, zero if there is none.
func SavedAt(ctx context.Context, r Reader, in Table, id int64) (time.Time, error) {
	var micros int64
	err := r.row(ctx, []any{&micros}, "SELECT "+r.D.Micros("created_at")+" FROM "+string(in)+" WHERE id = ?", id)
	if errors.Is(err, sql.ErrNoRows) {
		return time.Time{}, nil
	}
	return Instant(micros), err
}
