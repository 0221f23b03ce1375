package eventrow

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// inline is how many bytes of payload and metadata are read together with a row. Longer ones are read afterwards, as far as
// there is room for them.
const inline = 16 << 10

// isLate reports whether the texts of a row are still to be read.
func isLate(r *Row) bool { return r.Size > inline }

// Within lets the first rows pass whose payloads and metadata have no more bytes than most together, but at least one.
func Within(most int) (fits func(bytes int) bool) {
	total, isFirst := 0, true
	return func(bytes int) bool {
		total += bytes
		ok := isFirst || total <= most
		isFirst = false
		return ok
	}
}

// ReadWithin reads rows from (a table, as e, with its conditions), up to the first of which the payload and metadata have
// too many bytes. It tells whether there were more.
func ReadWithin(ctx context.Context, db Querier, d dialect.Dialect, fits func(bytes int) bool, from string, args ...any,
) (rows []Row, more bool, err error) {
	size := d.Bytes("e.event_payload") + " + " + d.Bytes("e.event_metadata")
	short := func(column string) string {
		return fmt.Sprintf("CASE WHEN %s <= %d THEN %s END", size, inline, d.Text(column))
	}
	query := "SELECT " + columnsWith(d, short("e.event_payload"), short("e.event_metadata")) + ", " + size + " FROM " + from
	rows, err = read(ctx, db, parser{words: make(map[string]string), sized: true}, query, args...)
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
		if isLate(&rows[i]) {
			late = append(late, dialect.Pair{ID: rows[i].OutboxID})
		}
	}
	if len(late) == 0 {
		return rows, more, nil
	}
	return rows, more, fill(ctx, db, d, rows, late)
}

// fill reads the texts that were left out.
func fill(ctx context.Context, db Querier, d dialect.Dialect, rows []Row, late []dialect.Pair) error {
	at := make(map[int64]*Row, len(rows))
	for i := range rows {
		at[rows[i].OutboxID] = &rows[i]
	}
	found, err := db.QueryContext(ctx, "SELECT e.id, "+d.Text("e.event_payload")+", "+d.Text("e.event_metadata")+
		" FROM "+d.Keyed("bc_outbox_event")+" WHERE "+dialect.IDs(late))
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
		r := at[id]
		if r == nil {
			continue
		}
		r.Payload = append([]byte{}, payload...)
		if err := readTexts(r, metadata); err != nil {
			r.Malformed = errors.Join(malformed(r.Malformed), err).Error()
		}
	}
	return found.Err()
}

// malformed is what was wrong with a row already.
func malformed(why string) error {
	if why == "" {
		return nil
	}
	return errors.New(why)
}
