package store

import (
	"context"
	"fmt"
	"slices"
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

// TypeOf is the type of an event.
func TypeOf(e *NewEvent) string { return e.Type }

// Unstored are the events of a [Saving.Save] that it did not insert, in their order: stored is what it returned.
func Unstored(events, stored []NewEvent) (out []NewEvent) {
	if len(events) == len(stored) {
		return nil
	}
	for _, e := range events {
		if len(stored) > 0 && stored[0].ID == e.ID {
			stored = stored[1:]
			continue
		}
		out = append(out, e)
	}
	return out
}

const (
	plainColumns = "aggregate_type, aggregate_id, event_type, event_id, event_payload, event_metadata, next_retry_at"
	otherColumns = ", tenant_id, store_id, schema_version, status, max_retry_count"
)

// Saving inserts events, each keyed one once.
type Saving struct {
	d        dialect.Dialect
	stmts    *prepared.Statements
	together bool
}

// NewSaving returns what saves events in a database.
func NewSaving(d dialect.Dialect, stmts *prepared.Statements) Saving {
	return Saving{d: d, stmts: stmts}
}

// Together enters the keys of a call by one statement on MySQL, too. If somebody saves one of them at the same moment, a transaction that
// waits for another of these may end by a deadlock: so it is for those that bring events which hardly anybody else saves.
func (s Saving) Together() Saving {
	s.together = true
	return s
}

// Save inserts the events in their order, but not those keyed ones that have been saved, and returns what it inserted. It costs
// one statement, and with keys one more for their ids. On MySQL there is a look before, and one statement for each key, unless they are
// entered [Saving.Together]; elsewhere, if one of the keys is there, one for each event.
func (s Saving) Save(ctx context.Context, tx Tx, events []NewEvent) ([]NewEvent, error) {
	events, ids := withoutTwins(events)
	switch {
	case len(ids) == 0:
		return events, s.insert(ctx, tx, events, "")
	case s.d.Name == "mysql":
		return s.saveAbsent(ctx, tx, events, ids)
	}
	fresh, err := s.enter(ctx, tx, ids)
	switch {
	case err != nil:
		return nil, err
	case fresh:
		return events, s.insert(ctx, tx, events, s.d.Ignore("event_id"))
	}
	return s.insertUnsaved(ctx, tx, events)
}

// withoutTwins leaves out an event whose key an earlier one of the call has, and returns the ids of the keyed ones.
func withoutTwins(events []NewEvent) (distinct []NewEvent, ids []string) {
	seen := make(map[string]bool)
	for _, e := range events {
		if e.IsKeyed {
			if seen[e.ID] {
				continue
			}
			seen[e.ID] = true
			ids = append(ids, e.ID)
		}
		distinct = append(distinct, e)
	}
	return distinct, ids
}

// saveAbsent is [Saving.Save] on MySQL. There an INSERT that leaves alone what exists would lock it.
func (s Saving) saveAbsent(ctx context.Context, tx Tx, events []NewEvent, ids []string) ([]NewEvent, error) {
	absent, err := s.lookAndEnter(ctx, tx, ids)
	if err != nil {
		return nil, err
	}
	events = slices.DeleteFunc(events, func(e NewEvent) bool { return e.IsKeyed && !absent[e.ID] })
	if len(events) == 0 {
		return nil, nil
	}
	if err := s.insert(ctx, tx, events, ""); dialect.Classify(err) != dialect.Duplicate {
		return events, err
	}
	// An instance of a release that did not know bc_event_key has saved one of them meanwhile.
	var stored []NewEvent
	for _, e := range events {
		switch err := s.insert(ctx, tx, []NewEvent{e}, ""); {
		case err == nil:
			stored = append(stored, e)
		case !e.IsKeyed || dialect.Classify(err) != dialect.Duplicate:
			return nil, err
		}
	}
	return stored, nil
}

// insertUnsaved inserts the events one by one, keyed ones only if they are not known to have been saved.
func (s Saving) insertUnsaved(ctx context.Context, tx Tx, events []NewEvent) (stored []NewEvent, err error) {
	for _, e := range events {
		if !e.IsKeyed {
			if err := s.insert(ctx, tx, []NewEvent{e}, ""); err != nil {
				return nil, err
			}
			stored = append(stored, e)
			continue
		}
		c := insertColumnsOf([]NewEvent{e})
		row, args := c.row(s.d, &e)
		query, args := tx.notify("INSERT INTO "+eventTable+" ("+c.names+") SELECT "+row+" WHERE "+unsaved+s.d.Ignore("event_id"),
			append(args, e.ID, e.ID, e.ID))
		res, err := tx.exec(ctx, false, query, args...)
		if err != nil {
			return nil, err
		}
		n, err := res.RowsAffected()
		if err != nil {
			return nil, fmt.Errorf("number of inserted events: %w", err)
		}
		if n > 0 {
			stored = append(stored, e)
		}
	}
	return stored, nil
}

// Committed tells which of the events, by their event_ids, other transactions can see.
func (s Saving) Committed(ctx context.Context, db *bun.DB, ids []string) (map[string]bool, error) {
	from := s.d.Each(eventTable, "event_id", "")
	if s.d.Name == "mysql" {
		from = eventTable + " AS l FORCE INDEX (uk_event_id) WHERE l.event_id IN (?)"
	}
	return readKeys(db.QueryContext(ctx, "SELECT l.event_id, 1 FROM "+from, bun.List(ids)))
}

// orNull is NULL for the zero value.
func orNull[T comparable](v T) any {
	if v == *new(T) {
		return nil
	}
	return v
}
