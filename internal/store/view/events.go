package view

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// Event is a row of an event without its payload.
type Event struct {
	OutboxID                   int64
	EventID, EventType         string
	SchemaVersion              int
	AggregateType, AggregateID string
	TenantID, StoreID          int64
	Status                     string
	TraceID, Key               string
	Metadata                   string // JSON, or the beginning of it
	LastError, LockedBy        string
	Expired                    int // leases that ran out
	CreatedAt, UpdatedAt       time.Time
	SentAt, NextRetryAt        time.Time
}

// EventsByID reads events by their event ids, with so many characters of their texts, in no order.
func EventsByID(ctx context.Context, r Reader, from Table, eventIDs []string, texts int) ([]Event, error) {
	return readEvents(ctx, r, texts, string(from)+" e WHERE e.event_id IN (?)", bun.List(eventIDs))
}

// EventsByRow reads events by their primary keys, in no order.
func EventsByRow(ctx context.Context, r Reader, from Table, ids []int64, texts int) ([]Event, error) {
	return readEvents(ctx, r, texts, r.D.Keyed(string(from))+" WHERE "+dialect.IDs(dialect.Pairs(ids)))
}

func readEvents(ctx context.Context, r Reader, texts int, from string, args ...any) (out []Event, err error) {
	err = r.Rows(ctx, func(rows *sql.Rows) error {
		var e Event
		var created, updated, sent, next int64
		err := rows.Scan(&e.OutboxID, &e.EventID, &e.EventType, &e.SchemaVersion, &e.AggregateType, &e.AggregateID, &e.TenantID, &e.StoreID,
			&e.Status, &e.TraceID, &e.Key, &e.Metadata, &e.LastError, &e.LockedBy, &e.Expired, &created, &updated, &sent, &next)
		e.CreatedAt, e.UpdatedAt, e.SentAt, e.NextRetryAt = Instant(created), Instant(updated), Instant(sent), Instant(next)
		out = append(out, e)
		return err
	}, "SELECT e.id, "+r.name("e.event_id")+", "+r.name("e.event_type")+", "+r.number("e.schema_version")+", "+
		r.name("e.aggregate_type")+", "+r.name("e.aggregate_id")+", "+orZero(r.number("e.tenant_id"))+", "+
		orZero(r.number("e.store_id"))+", "+
		r.name("e.status")+", "+orEmpty(r.name("e.trace_id"))+", "+orEmpty(r.name("e.event_key"))+", "+
		orEmpty(cut(r.D.Text("e.event_metadata"), r.Documents))+", "+orEmpty(cut("e.last_error", texts))+", "+
		orEmpty(r.name("e.locked_by"))+", "+r.number("e.retry_count")+", "+r.D.Micros("e.created_at")+", "+r.D.Micros("e.updated_at")+", "+
		orZero(r.D.Micros("e.sent_at"))+", "+orZero(r.D.Micros("e.next_retry_at"))+" FROM "+from, args...)
	return out, err
}

// TenantOf tells the tenant of an event, 0 for none, by any row of it in a table.
func TenantOf(ctx context.Context, r Reader, in Table, eventID string) (tenant int64, found bool, err error) {
	tenants, err := column[int64](ctx, r, "SELECT "+orZero(r.number("tenant_id"))+" FROM "+string(in)+" WHERE event_id = ? LIMIT 1", eventID)
	if err != nil || len(tenants) == 0 {
		return 0, false, err
	}
	return tenants[0], true, nil
}

// Payload is what an event carries.
type Payload struct {
	EventType         string
	Payload, Metadata string // JSON, or the beginning of it
	TenantID          int64
}

// PayloadOf reads what an event carries, up to so many characters of each part and one more. found is false if the table has
// no such event.
func PayloadOf(ctx context.Context, tx bun.Tx, r Reader, from Table, eventID string, most int) (p Payload, found bool, err error) {
	err = tx.QueryRowContext(ctx, "SELECT "+r.name("e.event_type")+", "+cut(r.D.Text("e.event_payload"), most)+", "+
		orEmpty(cut(r.D.Text("e.event_metadata"), most))+", "+orZero(r.number("e.tenant_id"))+
		" FROM "+string(from)+" e WHERE e.event_id = ?", eventID).
		Scan(&p.EventType, &p.Payload, &p.Metadata, &p.TenantID)
	if errors.Is(err, sql.ErrNoRows) {
		return Payload{}, false, nil
	}
	return p, err == nil, err
}
