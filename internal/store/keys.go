package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

const keyTable = "bc_event_key"

// Keys are the ids of keyed events, in a table of their own. Producers insert them, retention marks those whose events
// have gone and deletes them later; nobody else writes there. So a producer can only ever wait for another one that is
// saving the same event.
type Keys struct{ d dialect.Dialect }

// NewKeys returns the keys of a database.
func NewKeys(d dialect.Dialect) Keys { return Keys{d} }

// enter enters the ids of events that tx is about to save, and reports whether none of them was there. It takes them in order,
// whatever the order in ids, so that transactions that save several do not deadlock.
func (s Saving) enter(ctx context.Context, tx Tx, ids []string) (areFresh bool, err error) {
	entered := 0
	for chunk := range slices.Chunk(sortedIDs(ids), dialect.MostIDs) {
		res, err := s.insertKeys(ctx, tx, chunk, s.d.Ignore("event_id"))
		if err != nil {
			return false, fmt.Errorf("enter keys: %w", err)
		}
		n, err := res.RowsAffected()
		if err != nil {
			return false, fmt.Errorf("enter keys: number of those that are new: %w", err)
		}
		entered += int(n)
	}
	return entered == len(ids), nil
}

// insertKeys enters ids by one statement.
func (s Saving) insertKeys(ctx context.Context, tx Tx, ids []string, ignore string) (sql.Result, error) {
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = id
	}
	isSame := len(ids) == 1 // the text of more is a different one for each number
	return tx.exec(ctx, isSame, meetsNewer+"INSERT INTO "+keyTable+" (event_id) VALUES (?)"+
		strings.Repeat(", (?)", len(ids)-1)+ignore, args...)
}

// unsaved is a condition on an event_id, which stands for each ? of it: that the event is not known to have been saved. A key
// alone says so only when retention has marked it; one without any trace of its event is that of an event that was lost.
const unsaved = "NOT EXISTS (SELECT 1 FROM " + keyTable + " k WHERE k.event_id = ? AND k.removed_at IS NOT NULL)" +
	" AND NOT EXISTS (SELECT 1 FROM " + eventTable + " e WHERE e.event_id = ?)" +
	" AND COALESCE((SELECT MIN(CASE WHEN l.status IN ('SUCCESS', 'SKIPPED') THEN 1 ELSE 0 END) FROM " + deliveryTable +
	" l WHERE l.event_id = ?), 0) = 0"

// meetsNewer begins a statement that may meet a row which its transaction's snapshot does not show. MariaDB from 11.6.2 on ends the
// transaction then, by error 1020, unless innodb_snapshot_isolation is off; other servers take this for a comment.
const meetsNewer = "/*M!110602 SET STATEMENT innodb_snapshot_isolation = OFF FOR */ "

// lookAndEnter is for MySQL. It looks without any lock which of the events are known to have been saved, enters in order the ids
// of the others, and tells which of them to save.
func (s Saving) lookAndEnter(ctx context.Context, tx Tx, ids []string) (absent map[string]bool, err error) {
	absent = make(map[string]bool, len(ids))
	for chunk := range slices.Chunk(sortedIDs(ids), dialect.MostIDs) {
		saved, err := s.look(ctx, tx, chunk)
		if err != nil {
			return nil, fmt.Errorf("look at keys: %w", err)
		}
		taken, err := s.enterUnknown(ctx, tx, slices.DeleteFunc(slices.Clone(chunk), func(id string) bool {
			_, isEntered := saved[id]
			return isEntered
		}))
		if err != nil {
			return nil, fmt.Errorf("enter keys: %w", err)
		}
		for _, id := range chunk {
			absent[id] = !saved[id] && !taken[id] // a key without any trace of its event: that was lost
		}
	}
	return absent, nil
}

// enterUnknown enters ids that a look has not found, in their order, and tells which of them somebody has saved since this
// transaction's snapshot. An INSERT that meets its key locks it there, and one of several rows that fails gives back those before the
// failure, for which others may wait already: so they are entered one by one, but for [Saving.Together].
func (s Saving) enterUnknown(ctx context.Context, tx Tx, ids []string) (taken map[string]bool, err error) {
	if s.together && len(ids) > 0 {
		if _, err := s.insertKeys(ctx, tx, ids, ""); dialect.Classify(err) != dialect.Duplicate {
			return nil, err
		}
	}
	taken = make(map[string]bool)
	for i, id := range ids {
		_, err := s.insertKeys(ctx, tx, ids[i:i+1], "")
		if taken[id] = dialect.Classify(err) == dialect.Duplicate; err != nil && !taken[id] {
			return nil, err
		}
	}
	return taken, nil
}

// look tells of each id that has a key, or an event, or finished deliveries, whether the event is known to have been saved, as
// [unsaved] has it. In a SERIALIZABLE transaction it locks what it reads.
func (s Saving) look(ctx context.Context, tx Tx, ids []string) (map[string]bool, error) {
	each := func(table, index string) string {
		return table + " AS l FORCE INDEX (" + index + ") WHERE l.event_id IN (?)"
	}
	return readKeys(tx.query(ctx,
		meetsNewer+"SELECT l.event_id, CASE WHEN l.removed_at IS NULL THEN 0 ELSE 1 END FROM "+each(keyTable, "PRIMARY")+
			" UNION ALL SELECT l.event_id, 1 FROM "+each(eventTable, "uk_event_id")+
			" UNION ALL SELECT l.event_id, 1 FROM "+each(deliveryTable, "uk_event_consumer")+
			" GROUP BY l.event_id HAVING MIN(CASE WHEN l.status IN ('SUCCESS', 'SKIPPED') THEN 1 ELSE 0 END) = 1", ids, ids, ids))
}

func sortedIDs(ids []string) []string { return slices.Sorted(slices.Values(ids)) }

// Mark notes that the events of these ids, of which only keyed ones count, are going. It runs before they go, in a
// statement that commits by itself: no producer ever waits for a transaction that removes events. If one of them stays
// after all, its own row says so.
func (k Keys) Mark(ctx context.Context, db *bun.DB, ids []string) error {
	for chunk := range slices.Chunk(slices.Compact(sortedIDs(ids)), dialect.MostIDs) {
		keyed, err := k.keyed(ctx, db, chunk)
		if err == nil && len(keyed) > 0 {
			err = k.mark(ctx, db, keyed)
		}
		if err != nil {
			return fmt.Errorf("keep the keys of removed events: %w", err)
		}
	}
	return nil
}

// keyed are those of the ids that are of keyed events, in their order. An id that was made of a key tells by itself: its event may have
// been saved by a release that did not enter it. Any other, which an inbox or a caller of the ledger has brought, is keyed if it has
// been entered. It looks without any lock, by the primary key: events without a key, which are most, cost no more.
func (k Keys) keyed(ctx context.Context, db *bun.DB, ids []string) ([]string, error) {
	others := slices.DeleteFunc(slices.Clone(ids), isOfKey)
	if len(others) == 0 {
		return ids, nil
	}
	entered, err := readKeys(db.QueryContext(ctx, "SELECT l.event_id, 1 FROM "+k.d.Each(keyTable, "event_id", ""), bun.List(others)))
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !isOfKey(id) && !entered[id] }), err
}

// mark marks the keys of these ids by one statement, and enters those that are missing.
func (k Keys) mark(ctx context.Context, db *bun.DB, ids []string) error {
	values, args := strings.Repeat("(?, "+k.d.Now+"), ", len(ids)-1)+"(?, "+k.d.Now+")", make([]any, len(ids))
	for i, id := range ids {
		args[i] = id
	}
	_, err := db.ExecContext(ctx, "INSERT INTO "+keyTable+" (event_id, removed_at) VALUES "+values+k.d.Upsert("event_id", "removed_at"),
		args...)
	return err
}

// isOfKey reports whether an event_id was made of a key: it is a UUID of version 5.
func isOfKey(id string) bool { return len(id) == 36 && id[14] == '5' }

// Forget deletes up to limit keys, those whose events went first, if they went longer than age microseconds ago. It tells
// how many. It leaves the key of an event that has stayed after all: of most ids nothing but their keys tells retention that they are
// to be marked when their events go.
func (k Keys) Forget(ctx context.Context, db *bun.DB, age int64, limit int) (int, error) {
	// idx_removed_at, and for each key uk_event_id
	gone, err := readKeys(db.QueryContext(ctx,
		"SELECT k.event_id, 1 FROM "+keyTable+" k WHERE k.removed_at IS NOT NULL AND k.removed_at < "+k.d.After+
			" AND COALESCE((SELECT 1 FROM "+eventTable+" e WHERE e.event_id = k.event_id), 0) = 0 ORDER BY k.removed_at LIMIT ?", -age, limit))
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
