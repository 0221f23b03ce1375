package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/prepared"
)

const keyTable = "bc_event_key"

// Keys are the ids of keyed events, in a table of their own. Producers insert them, retention marks those whose events
// have gone and deletes them later; nobody else writes there. So a producer can only ever wait for another one that is
// saving the same event.
type Keys struct {
	d     dialect.Dialect
	stmts *prepared.Statements
}

// NewKeys returns the keys of a database.
func NewKeys(d dialect.Dialect, stmts *prepared.Statements) Keys { return Keys{d, stmts} }

// Claim enters the ids of events that tx is about to save, and tells which of them to save: those that nobody has saved,
// except, where an INSERT can leave what exists alone, by a release without this table. It takes them in order, whatever the order in
// ids, so that transactions that save several do not deadlock.
func (k Keys) Claim(ctx context.Context, tx bun.Tx, ids []string) (absent map[string]bool, err error) {
	ids = slices.Sorted(slices.Values(ids))
	ids = slices.Compact(ids)
	absent = make(map[string]bool, len(ids))
	for chunk := range slices.Chunk(ids, dialect.MostIDs) {
		if k.d.Name == "mysql" {
			err = k.lookAndInsert(ctx, tx, chunk, absent)
		} else {
			err = k.insertAndLook(ctx, tx, chunk, absent)
		}
		if err != nil {
			return nil, fmt.Errorf("enter keys: %w", err)
		}
	}
	return absent, nil
}

// lookAndInsert looks without any lock and inserts one by one what is absent: in MySQL an INSERT that meets its key locks
// it, and one of several rows that fails gives back those before the failure, for which others may wait already.
func (k Keys) lookAndInsert(ctx context.Context, tx bun.Tx, ids []string, absent map[string]bool) error {
	saved, err := k.look(ctx, tx, ids)
	if err != nil {
		return err
	}
	for _, id := range ids {
		known, entered := saved[id]
		if !entered {
			_, err := tx.ExecContext(ctx, "INSERT INTO "+keyTable+" (event_id) VALUES (?)", id)
			if dialect.Classify(err) == dialect.Duplicate {
				continue // saved since this transaction's snapshot
			}
			if err != nil {
				return err
			}
		}
		absent[id] = !known // a key without any trace of its event: that was lost
	}
	return nil
}

// insertAndLook inserts, and looks at what was refused.
func (k Keys) insertAndLook(ctx context.Context, tx bun.Tx, ids []string, absent map[string]bool) error {
	values := strings.Repeat("(?), ", len(ids)-1) + "(?)"
	query, args := "INSERT INTO "+keyTable+" (event_id) VALUES "+values+k.d.Ignore("event_id")+" RETURNING event_id, 1", make([]any, len(ids))
	for i, id := range ids {
		args[i] = id
	}
	ask := tx.QueryContext
	if len(ids) == 1 { // the text of more is a different one for each number
		ask = k.stmts.On(tx).QueryContext
	}
	entered, err := readKeys(ask(ctx, query, args...))
	if err != nil {
		return err
	}
	var refused []string
	for _, id := range ids {
		if absent[id] = entered[id]; !entered[id] {
			refused = append(refused, id)
		}
	}
	if len(refused) == 0 {
		return nil
	}
	saved, err := k.look(ctx, tx, refused)
	if err != nil {
		return err
	}
	for _, id := range refused {
		absent[id] = !saved[id] // a key without any trace of its event: that was lost
	}
	return nil
}

// look tells of each id that has a key, or an event, or finished deliveries, whether the event is known to have been saved:
// a key alone says so only when retention has marked it.
func (k Keys) look(ctx context.Context, tx bun.Tx, ids []string) (map[string]bool, error) {
	list := bun.List(ids)
	return readKeys(tx.QueryContext(ctx,
		"SELECT l.event_id, CASE WHEN l.removed_at IS NULL THEN 0 ELSE 1 END FROM "+k.each(keyTable, "PRIMARY")+
			" UNION ALL SELECT l.event_id, 1 FROM "+k.each("bc_outbox_event", "uk_event_id")+
			" UNION ALL SELECT l.event_id, 1 FROM "+k.each("bc_event_consume_log", "uk_event_consumer")+
			" GROUP BY l.event_id HAVING MIN(CASE WHEN l.status IN ('SUCCESS', 'SKIPPED') THEN 1 ELSE 0 END) = 1", list, list, list))
}

// each is a FROM of the rows l that have one of the ids `?`, looked up one by one. It is no prepared statement: while the
// tables are young PostgreSQL would keep a plan that reads all of them.
func (k Keys) each(table, index string) string {
	if k.d.Name == "mysql" {
		return table + " AS l FORCE INDEX (" + index + ") WHERE l.event_id IN (?)"
	}
	return k.d.Each(table, "event_id", "")
}

// Mark notes that the events of these ids, of which only keyed ones count, are going. It runs before they go, in a
// statement that commits by itself: no producer ever waits for a transaction that removes events. If one of them stays
// after all, its own row says so.
func (k Keys) Mark(ctx context.Context, db *bun.DB, ids []string) error {
	ids = slices.DeleteFunc(slices.Sorted(slices.Values(ids)), func(id string) bool { return !isKeyed(id) })
	for chunk := range slices.Chunk(slices.Compact(ids), dialect.MostIDs) {
		values, args := strings.Repeat("(?, "+k.d.Now+"), ", len(chunk)-1)+"(?, "+k.d.Now+")", make([]any, len(chunk))
		for i, id := range chunk {
			args[i] = id
		}
		if _, err := db.ExecContext(ctx, "INSERT INTO "+keyTable+" (event_id, removed_at) VALUES "+values+k.d.Upsert("event_id", "removed_at"),
			args...); err != nil {
			return fmt.Errorf("keep the keys of removed events: %w", err)
		}
	}
	return nil
}

// isKeyed reports whether an event_id is that of a keyed event: a UUID of version 5. Others are not saved again.
func isKeyed(id string) bool { return len(id) == 36 && id[14] == '5' }

// Forget deletes up to limit keys, those whose events went first, if they went longer than age microseconds ago. It tells
// how many.
func (k Keys) Forget(ctx context.Context, db *bun.DB, age int64, limit int) (int, error) {
	// idx_removed_at
	gone, err := readKeys(db.QueryContext(ctx,
		"SELECT event_id, 1 FROM "+keyTable+" WHERE removed_at IS NOT NULL AND removed_at < "+k.d.After+" ORDER BY removed_at LIMIT ?", -age,
		limit))
	if err != nil || len(gone) == 0 {
		return 0, err
	}
	ids := make([]string, 0, len(gone))
	for id := range gone {
		ids = append(ids, id)
	}
	_, err = db.ExecContext(ctx, "DELETE FROM "+keyTable+" WHERE event_id IN (?) AND removed_at < "+k.d.After, bun.List(ids), -age)
	return len(ids), err
}
