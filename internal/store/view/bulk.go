package view

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/bluecone-go/bluecone/internal/store"
)

// Bulk is a row of a bulk operation.
type Bulk struct {
	ID                               int64
	OperationID, Action              string
	Request                          string // JSON
	State                            string
	Total                            int64
	HasMore                          bool // Total stopped counting
	Seen, Done, Passed               int64
	Actor, Reason                    string
	LockedBy                         string
	CreatedAt, UpdatedAt, FinishedAt time.Time
	Error                            string
}

// Texts is how many characters are read of the texts of bulk operations.
type Texts struct{ Request, Other int }

// BulksBefore lists bulk operations with smaller ids than one (0: all), the newest first.
func BulksBefore(ctx context.Context, r Reader, id int64, most int, texts Texts) ([]Bulk, error) {
	where, args := "id > 0", []any{}
	if id != 0 {
		where, args = "id < ?", append(args, id)
	}
	return readBulks(ctx, r, texts, where+" ORDER BY id DESC LIMIT ?", append(args, most)...)
}

// BulkOf reads a bulk operation. The list is empty if there is none.
func BulkOf(ctx context.Context, r Reader, operation string, texts Texts) ([]Bulk, error) {
	return readBulks(ctx, r, texts, "operation_id = ?", operation)
}

func readBulks(ctx context.Context, r Reader, texts Texts, where string, args ...any) (out []Bulk, err error) {
	err = r.Rows(ctx, func(rows *sql.Rows) error {
		var b Bulk
		var created, updated, finished int64
		err := rows.Scan(&b.ID, &b.OperationID, &b.Action, &b.Request, &b.State, &b.Total, &b.HasMore, &b.Seen, &b.Done, &b.Passed,
			&b.Actor, &b.Reason, &b.LockedBy, &created, &updated, &finished, &b.Error)
		b.CreatedAt, b.UpdatedAt, b.FinishedAt = Instant(created), Instant(updated), Instant(finished)
		out = append(out, b)
		return err
	}, "SELECT id, "+r.name("operation_id")+", "+r.name("action")+", "+cut(r.D.Text("request"), texts.Request)+", "+r.name("state")+
		", "+r.number("total")+", "+flag("total_more")+", "+r.number("seen")+", "+r.number("done")+", "+r.number("passed")+", "+
		r.name("actor")+", "+cut("reason", texts.Other)+", "+orEmpty(r.name("locked_by"))+", "+
		r.D.Micros("created_at")+", "+r.D.Micros("updated_at")+", "+orZero(r.D.Micros("finished_at"))+", "+
		orEmpty(cut("error_message", texts.Other))+" FROM bc_bulk_operation WHERE "+where, args...)
	return out, err
}

// FreeBulk is the oldest bulk operation with a larger id than one that nobody works on, along idx_state, but for those that
// publishers do. Its id is 0 if there is none.
func FreeBulk(ctx context.Context, r Reader, after int64) (id int64, operation string, err error) {
	err = r.row(ctx, []any{&id, &operation}, "SELECT id, operation_id FROM bc_bulk_operation "+
		"WHERE state = 'RUNNING' AND action <> 'start' AND id > ? "+
		"AND (locked_until IS NULL OR locked_until < "+r.D.Now+") ORDER BY id LIMIT 1", after)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, "", nil
	}
	return id, operation, err
}

// BulkPlace is how far a bulk operation has got.
type BulkPlace struct {
	Version int64  // of its lease
	UpTo    int64  // the last event that it is about
	Cursor  string // where it goes on
}

// BulkPlaceOf tells how far a bulk operation has got.
func BulkPlaceOf(ctx context.Context, r Reader, operation string) (p BulkPlace, err error) {
	err = r.row(ctx, []any{&p.Version, &p.UpTo, &p.Cursor},
		"SELECT lock_version, up_to, next_cursor FROM bc_bulk_operation WHERE operation_id = ?", operation)
	return p, err
}

// Backfill is an operation that still has past events to give to a consumer.
type Backfill struct {
	Consumer, Action, State string
	Request                 string // JSON
	Reached, UpTo           int64  // outbox ids: where it has got to, and where it ends, 0 if nobody knows yet
	UpdatedAt               time.Time
}

// OpenBackfills lists the backfills that are not over, by idx_state, so many at most.
func OpenBackfills(ctx context.Context, r Reader, most, request int) (out []Backfill, err error) {
	err = r.Rows(ctx, func(rows *sql.Rows) error {
		var b Backfill
		var updated int64
		err := rows.Scan(&b.Consumer, &b.Action, &b.State, &b.Request, &b.Reached, &b.UpTo, &updated)
		b.UpdatedAt = Instant(updated)
		out = append(out, b)
		return err
	}, "SELECT "+r.name("consumer_name")+", "+r.name("action")+", "+r.name("state")+", "+cut(r.D.Text("request"), request)+", "+
		r.number("reached")+", "+r.number("up_to")+", "+r.D.Micros("updated_at")+
		" FROM bc_bulk_operation WHERE "+store.OpenBackfill+" ORDER BY id LIMIT ?", most)
	return out, err
}
