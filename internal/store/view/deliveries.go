package view

import (
	"context"
	"database/sql"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// Delivery is a row of the consume log, with what it says of its event.
type Delivery struct {
	Consumer                   string
	EventID, EventType         string
	Status                     string
	Attempts                   int
	Error, Key, Result         string
	LockedBy                   string
	CreatedAt, ConsumedAt      time.Time
	UpdatedAt, NextRetryAt     time.Time
	IsLeft                     bool // nobody who has seen it knows the schema version of its event
	OutboxID, TenantID         int64
	AggregateType, AggregateID string
}

// DeliveriesOf reads the deliveries of events, with so many characters of their texts.
func DeliveriesOf(ctx context.Context, r Reader, from Table, eventIDs []string, texts int, each func(Delivery) error) error {
	return r.Rows(ctx, func(rows *sql.Rows) error {
		var d Delivery
		var created, consumed, updated, next int64
		err := rows.Scan(&d.Consumer, &d.EventID, &d.EventType, &d.Status, &d.Attempts, &d.Error, &d.Key, &d.Result, &d.LockedBy,
			&created, &consumed, &updated, &next, &d.OutboxID, &d.TenantID, &d.AggregateType, &d.AggregateID)
		if err != nil {
			return err
		}
		d.CreatedAt, d.ConsumedAt, d.UpdatedAt = Instant(created), Instant(consumed), Instant(updated)
		if d.IsLeft = next == dialect.NeverMicro; !d.IsLeft {
			d.NextRetryAt = Instant(next)
		}
		return each(d)
	}, "SELECT "+r.name("l.consumer_name")+", "+r.name("l.event_id")+", "+r.name("l.event_type")+", "+r.name("l.status")+", "+
		r.number("l.attempts")+", "+
		orEmpty(cut("l.error_message", texts))+", "+orEmpty(r.name("l.idempotency_key"))+", "+
		orEmpty(cut(r.D.Text("l.consume_result"), texts))+", "+orEmpty(r.name("l.locked_by"))+", "+
		r.D.Micros("l.created_at")+", "+r.D.Micros("l.consumed_at")+", "+r.D.Micros("l.updated_at")+", "+
		orZero(r.D.Micros("l.next_retry_at"))+", "+orZero(r.number("l.outbox_id"))+", "+orZero(r.number("l.tenant_id"))+", "+
		orEmpty(r.name("l.aggregate_type"))+", "+orEmpty(r.name("l.aggregate_id"))+
		" FROM "+string(from)+" l WHERE l.event_id IN (?)", bun.List(eventIDs))
}

// Attempt is one run of a delivery that did not succeed.
type Attempt struct {
	EventID, Consumer        string
	Attempt                  int
	Outcome, Error, Instance string
	Duration                 time.Duration
	At                       time.Time
}

// AttemptsOf reads the attempts of events that did not succeed, with so many characters of their errors, those of an event from
// the first on.
func AttemptsOf(ctx context.Context, r Reader, eventIDs []string, texts int, each func(Attempt) error) error {
	return r.Rows(ctx, func(rows *sql.Rows) error {
		var a Attempt
		var us, at int64
		if err := rows.Scan(&a.EventID, &a.Consumer, &a.Attempt, &a.Outcome, &a.Error, &a.Instance, &us, &at); err != nil {
			return err
		}
		a.Duration, a.At = time.Duration(us)*time.Microsecond, Instant(at)
		return each(a)
	}, "SELECT "+r.name("event_id")+", "+r.name("consumer_name")+", "+r.number("attempt")+", "+r.name("outcome")+", "+
		orEmpty(cut("error_message", texts))+", "+r.name("instance")+", "+r.number("duration_us")+", "+r.D.Micros("created_at")+
		" FROM bc_delivery_attempt WHERE event_id IN (?) ORDER BY event_id, id LIMIT 5000", bun.List(eventIDs))
}
