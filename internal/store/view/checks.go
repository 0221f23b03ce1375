package view

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// EventStatuses lists the statuses of events other than SENT, by jumping from one to the next in idx_status_next_retry.
func EventStatuses(ctx context.Context, r Reader, most int) (found []string, err error) {
	for last := ""; len(found) < most; {
		next, err := r.texts(ctx, "SELECT "+r.name("status")+" FROM "+string(Events)+" WHERE status <> 'SENT' AND status > ? "+
			"ORDER BY status LIMIT 1", last)
		if err != nil {
			return nil, err
		}
		if len(next) == 0 || next[0] == last { // one whose name was cut comes again
			break
		}
		last = next[0]
		found = append(found, last)
	}
	return found, nil
}

// CountDead counts the events that are DEAD, up to a limit, along idx_status_next_retry.
func CountDead(ctx context.Context, r Reader, most int) (int, error) {
	return r.upTo(ctx, most, string(Events)+" WHERE status <> 'SENT' AND status = 'DEAD'")
}

// CountLeasedBeyond counts the events whose lease ends later than so long from now, up to a limit, along idx_status_next_retry.
func CountLeasedBeyond(ctx context.Context, r Reader, beyond time.Duration, most int) (int, error) {
	return r.upTo(ctx, most, string(Events)+" WHERE status <> 'SENT' AND status = 'DISPATCHING' AND next_retry_at > "+r.D.After,
		dialect.Micro(beyond))
}

// CountWaitingBeyond counts the deliveries to consumers that wait longer than so long from now, up to a limit, along
// idx_consumer_due. Deliveries that wait for another release are not among them.
func CountWaitingBeyond(ctx context.Context, r Reader, consumers []string, beyond time.Duration, most int) (int, error) {
	return r.upTo(ctx, most, string(Deliveries)+" WHERE consumer_name IN (?) AND status <> 'SUCCESS' "+
		"AND status IN ('PENDING', 'FAILED', 'PROCESSING') AND next_retry_at > "+r.D.After+" AND next_retry_at < "+r.D.Never,
		bun.List(consumers), dialect.Micro(beyond))
}

// CountSavedLater counts, among so many of the newest events, those that say that they were saved later than so long from now,
// by the primary key.
func CountSavedLater(ctx context.Context, r Reader, than time.Duration, among, most int) (int, error) {
	return r.upTo(ctx, most, fmt.Sprintf("(SELECT created_at FROM %s ORDER BY id DESC LIMIT %d) AS e WHERE created_at > %s", Events, among,
		r.D.After), dialect.Micro(than))
}

// OldestSent is how long ago the first of so many of the oldest events was delivered, 0 if none of them is, by the primary key.
func OldestSent(ctx context.Context, r Reader, among int) (age time.Duration, err error) {
	var us int64
	err = r.row(ctx, []any{&us}, fmt.Sprintf("SELECT COALESCE(MAX(CASE WHEN status = 'SENT' THEN %s - %s END), 0) FROM "+
		"(SELECT status, COALESCE(sent_at, created_at) AS sent FROM %s ORDER BY id LIMIT %d) AS e",
		r.D.Micros(r.D.Now), r.D.Micros("sent"), Events, among))
	return time.Duration(us) * time.Microsecond, err
}

// upTo counts rows, up to a limit.
func (r Reader) upTo(ctx context.Context, most int, from string, args ...any) (n int, err error) {
	err = r.row(ctx, []any{&n}, "SELECT COUNT(*) FROM (SELECT 1 FROM "+from+" LIMIT ?) AS t", append(args, most)...)
	return n, err
}

// NewestPayloads reads so many of the newest events by the primary key, and of each payload so many characters.
func NewestPayloads(ctx context.Context, r Reader, events, characters int, each func(eventID, payload string) error) error {
	return r.Rows(ctx, func(rows *sql.Rows) error {
		var eventID, payload string
		if err := rows.Scan(&eventID, &payload); err != nil {
			return err
		}
		return each(eventID, payload)
	}, "SELECT "+r.name("event_id")+", "+cut(r.D.Text("event_payload"), characters-1)+fmt.Sprintf(" FROM %s ORDER BY id DESC LIMIT %d",
		Events, events))
}

// ConsumerNames lists the names of registered consumers in their order, by the primary key.
func ConsumerNames(ctx context.Context, r Reader, most int) ([]string, error) {
	return r.texts(ctx, "SELECT "+r.name("name")+" FROM bc_consumer ORDER BY name LIMIT ?", most)
}

// AbsentConsumers lists the registered consumers that no instance has had for so long, but for replays, by the primary key.
func AbsentConsumers(ctx context.Context, r Reader, unseen time.Duration, most int) ([]string, error) {
	return r.texts(ctx, "SELECT "+r.name("name")+" FROM bc_consumer WHERE seen_at < "+r.D.After+" AND name NOT LIKE "+
		"'%@replay' ORDER BY name LIMIT ?", -dialect.Micro(unseen), most)
}

// ConsumerType is an event type that a consumer takes.
type ConsumerType struct{ Consumer, EventType string }

// AbsentTypes lists the event types that no instance has taken for so long, of consumers that some instance has, by the primary
// keys.
func AbsentTypes(ctx context.Context, r Reader, unseen time.Duration, most int) ([]ConsumerType, error) {
	return r.consumerTypes(ctx, "JOIN bc_consumer c ON c.name = t.consumer_name "+
		"WHERE t.seen_at < "+r.D.After+" AND c.seen_at > "+r.D.After, most, -dialect.Micro(unseen), -dialect.Micro(unseen))
}

// consumerTypes reads those rows of bc_consumer_type, as t, that a join and a condition leave, in the order of the primary key.
func (r Reader) consumerTypes(ctx context.Context, where string, most int, args ...any) (found []ConsumerType, err error) {
	err = r.Rows(ctx, func(rows *sql.Rows) error {
		var t ConsumerType
		err := rows.Scan(&t.Consumer, &t.EventType)
		found = append(found, t)
		return err
	}, "SELECT "+r.name("t.consumer_name")+", "+r.name("t.event_type")+" FROM bc_consumer_type t "+where+
		" ORDER BY t.consumer_name, t.event_type LIMIT ?", append(args, most)...)
	return found, err
}

// EventTypesInRegistry reads the column event_types of registered consumers, by the primary key. One that is longer than so many
// bytes is empty.
func EventTypesInRegistry(ctx context.Context, r Reader, longest, most int, each func(consumer, eventTypes string) error) error {
	return r.Rows(ctx, func(rows *sql.Rows) error {
		var consumer string
		var types sql.NullString
		if err := rows.Scan(&consumer, &types); err != nil {
			return err
		}
		return each(consumer, types.String)
	}, "SELECT "+r.name("name")+", CASE WHEN "+r.D.Bytes("event_types")+" <= ? THEN event_types END FROM bc_consumer "+
		"ORDER BY name LIMIT ?", longest, most)
}
