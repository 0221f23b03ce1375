package store

import (
	"context"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/prepared"
)

// DefaultMaxAttempts is the default of the column max_retry_count.
const DefaultMaxAttempts = 10

// NewEvent is an event to be inserted.
type NewEvent struct {
	AggregateType, AggregateID string
	Type, ID                   string
	Payload, Metadata          string // JSON
	TenantID, StoreID          int64  // 0 for none
	SchemaVersion              int
	MaxAttempts                int
	DeliverAt                  time.Time // zero for at once
	TraceID                    string    // "" for none
	Key                        string    // "" for none
	IsKeyed                    bool
}

// isPlain reports whether an event needs none of the [otherColumns].
func (e *NewEvent) isPlain() bool {
	return e.TenantID == 0 && e.StoreID == 0 && e.SchemaVersion == 1 && e.DeliverAt.IsZero() && e.MaxAttempts == DefaultMaxAttempts
}

const (
	plainColumns = "aggregate_type, aggregate_id, event_type, event_id, event_payload, event_metadata, next_retry_at"
	otherColumns = ", tenant_id, store_id, schema_version, status, max_retry_count"
)

// InsertEvents inserts events by one statement. Where an INSERT can leave what exists alone, a keyed event that exists already is
// left out; MySQL answers with an error, because there the clause would lock the row that exists.
func InsertEvents(ctx context.Context, tx bun.Tx, d dialect.Dialect, stmts *prepared.Statements, events []NewEvent) error {
	query, args := insertEvents(d, events)
	exec := tx.ExecContext
	if len(events) == 1 { // the text of more is a different one for each number
		exec = stmts.On(tx).ExecContext
	}
	_, err := exec(ctx, query, args...)
	return err
}

// insertEvents builds one INSERT of all events. What is as the columns' defaults say is left to them:
// half the statement, which is what saving costs.
func insertEvents(d dialect.Dialect, events []NewEvent) (string, []any) {
	plain, traced, keyed := true, false, false
	for i := range events {
		plain = plain && events[i].isPlain()
		traced = traced || events[i].TraceID != ""
		keyed = keyed || events[i].IsKeyed
	}
	columns, more := plainColumns, ""
	if !plain {
		columns, more = columns+otherColumns, ", ?, ?, ?, ?, ?"
	}
	if traced {
		columns, more = columns+", trace_id", more+", ?"
	}
	if keyed {
		columns, more = columns+", event_key", more+", ?"
	}
	var b strings.Builder
	b.WriteString("INSERT INTO " + eventTable + " (" + columns + ") VALUES ")
	args := make([]any, 0, len(events)*14)
	for i := range events {
		e := &events[i]
		if i > 0 {
			b.WriteString(", ")
		}
		status, due := "NEW", d.Now
		args = append(args, e.AggregateType, e.AggregateID, e.Type, e.ID, e.Payload, e.Metadata)
		if !e.DeliverAt.IsZero() {
			status, due = "SCHEDULED", d.At
			args = append(args, e.DeliverAt.UnixMicro())
		}
		b.WriteString("(?, ?, ?, ?, ?, ?, " + due + more + ")")
		if !plain {
			args = append(args, orNull(e.TenantID), orNull(e.StoreID), e.SchemaVersion, status, e.MaxAttempts)
		}
		if traced {
			args = append(args, orNull(e.TraceID))
		}
		if keyed {
			args = append(args, orNull(e.Key))
		}
	}
	if keyed && d.Name != "mysql" { // there a duplicate is an error: the clause would lock the row that exists
		b.WriteString(d.Ignore("event_id"))
	}
	return b.String(), args
}

// orNull is NULL for the zero value.
func orNull[T comparable](v T) any {
	if v == *new(T) {
		return nil
	}
	return v
}
