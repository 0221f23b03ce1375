package store

import (
	"context"
	"database/sql"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/eventrow"
)

// querier runs queries: a database, a transaction, or prepared statements on one of them.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// EventsSaved reads the events of a type with larger ids than one, in their order, by the primary key.
func EventsSaved(ctx context.Context, idb bun.IDB, d dialect.Dialect, after int64, eventType string) ([]eventrow.Row, error) {
	return readEvents(idb.QueryContext(ctx, "SELECT "+eventrow.Columns(d)+" FROM "+eventTable+" e WHERE e.id > ? AND e.event_type = ? "+
		"ORDER BY e.id", after, eventType))
}

// EventsByID reads events by uk_event_id, in the order of their ids, up to the first whose payload and metadata do not fit. It
// reports whether there are more.
func EventsByID(ctx context.Context, idb bun.IDB, d dialect.Dialect, eventIDs []string, fits func(bytes int) bool,
) (rows []eventrow.Row, more bool, err error) {
	return readWithin(ctx, idb, d, fits, eventTable+" AS e WHERE e.event_id IN (?) ORDER BY e.id", bun.List(eventIDs))
}

// readEvents reads rows of [eventrow.Columns].
func readEvents(rows *sql.Rows, err error) ([]eventrow.Row, error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	return eventrow.Read(rows)
}

// within lets the first rows pass whose payloads and metadata have no more bytes than most together, but at least one.
func within(most int) (fits func(bytes int) bool) {
	total, isFirst := 0, true
	return func(bytes int) bool {
		total += bytes
		ok := isFirst || total <= most
		isFirst = false
		return ok
	}
}

// readWithin reads events from (the table, as e, with its conditions), up to the first whose payload and metadata do not fit. It
// reports whether there are more. Long texts are read by a second statement, and only those of events that fit.
func readWithin(ctx context.Context, db querier, d dialect.Dialect, fits func(bytes int) bool, from string, args ...any,
) (rows []eventrow.Row, more bool, err error) {
	rows, err = readSized(db.QueryContext(ctx, "SELECT "+eventrow.SizedColumns(d)+" FROM "+from, args...))
	if err != nil {
		return nil, false, err
	}
	var late []dialect.Pair
	for i := range rows {
		if !fits(rows[i].Size) {
			rows, more = rows[:i], true
			break
		}
		rows[i].Extra = 0
		if eventrow.IsLate(&rows[i]) {
			late = append(late, dialect.Pair{ID: rows[i].OutboxID})
		}
	}
	if len(late) == 0 {
		return rows, more, nil
	}
	return rows, more, readLate(ctx, db, d, rows, late)
}

func readSized(rows *sql.Rows, err error) ([]eventrow.Row, error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	return eventrow.ReadSized(rows)
}

// readLate reads the texts that were left out, by the primary key.
func readLate(ctx context.Context, db querier, d dialect.Dialect, rows []eventrow.Row, late []dialect.Pair) error {
	at := make(map[int64]*eventrow.Row, len(rows))
	for i := range rows {
		at[rows[i].OutboxID] = &rows[i]
	}
	found, err := db.QueryContext(ctx, "SELECT e.id, "+d.Text("e.event_payload")+", "+d.Text("e.event_metadata")+
		" FROM "+d.Keyed(eventTable)+" WHERE "+dialect.IDs(late))
	if err != nil {
		return err
	}
	defer found.Close()
	for found.Next() {
		var id int64
		var payload, metadata sql.RawBytes
		if err := found.Scan(&id, &payload, &metadata); err != nil {
			return err
		}
		if r := at[id]; r != nil {
			eventrow.SetTexts(r, payload, metadata)
		}
	}
	return found.Err()
}
