// Package dialect holds the few differences between MySQL (and MariaDB),
// PostgreSQL and SQLite as data: expressions, suffixes and statement shapes.
// Everything else in bluecone is one SQL text for all three.
//
// Time is always the database's: no value of this package is computed from the
// clock of the process, and no time.Time is ever bound as an argument.
// Durations and instants travel as whole microseconds.
package dialect

import (
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
)

// Dialect describes how one database spells what the others spell differently.
type Dialect struct {
	// Name is "mysql" (MariaDB too), "postgres" or "sqlite".
	Name string
	// Now is the current UTC time of the database, with microseconds where it has them.
	Now string
	// After is the instant that lies `?` microseconds after Now.
	After string
	// At is the instant `?` microseconds after the Unix epoch.
	At string
	// Never is an instant that does not come: a delivery that waits until then is not due before somebody makes it so.
	Never string
	// SkipLocked ends a SELECT that locks its rows and passes over those locked by others.
	SkipLocked string
	// ForUpdate ends a SELECT that waits for the locks of its rows.
	ForUpdate string

	// ByIndex, unless empty, is a statement that makes the rest of a transaction walk along
	// indexes. PostgreSQL plans by statistics that may be minutes old: after a burst it
	// believes that few events are due, and sorts all of them for every claim.
	ByIndex string

	// PlainPlans, unless empty, is a condition, always true, that keeps the rest of a transaction's statements from being
	// compiled. PostgreSQL does that for what it takes to be expensive; for a statement of many small looks at indexes it
	// takes far longer than running it. A statement of its own would be one more round trip for each batch.
	PlainPlans string

	// SelectsFreely says that INSERT ... SELECT locks nothing but the rows it inserts, and is the
	// cheaper way to copy columns. In MySQL it may hold a lock on the whole table, for its
	// AUTO_INCREMENT (innodb_autoinc_lock_mode = 1), while it waits for a key of somebody else's.
	SelectsFreely bool

	// KeepsPlans says that a prepared statement is planned for the tables as they are then, until the
	// database has looked at them again.
	KeepsPlans bool

	// NullsLast says that an ORDER BY puts NULL behind everything else.
	NullsLast bool

	alongIndexes

	micros string // format of the expression that reads a time column as microseconds
	number string // format of that of Number
}

var known = map[dialect.Name]Dialect{ //nolint:gochecknoglobals // a constant table
	dialect.MySQL: {
		Name:       "mysql",
		Now:        "UTC_TIMESTAMP(6)",
		After:      "UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND",
		At:         "TIMESTAMP('1970-01-01') + INTERVAL ? MICROSECOND",
		Never:      "TIMESTAMP('9999-12-31')",
		SkipLocked: " FOR UPDATE SKIP LOCKED",
		ForUpdate:  " FOR UPDATE",
		micros:     "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', %s)",
		number:     "(%s + 0)",
	},
	dialect.PG: {
		Name:       "postgres",
		Now:        "statement_timestamp()",
		After:      "statement_timestamp() + ? * INTERVAL '1 microsecond'",
		At:         "'epoch'::timestamptz + ? * INTERVAL '1 microsecond'",
		Never:      "'9999-12-31 00:00:00+00'::timestamptz",
		SkipLocked: " FOR UPDATE SKIP LOCKED",
		ForUpdate:  " FOR UPDATE",
		ByIndex: "SELECT set_config('enable_bitmapscan', 'off', true), set_config('enable_hashjoin', 'off', true), " +
			"set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true)",
		PlainPlans:    " AND (SELECT set_config('jit', 'off', true)) = 'off'",
		SelectsFreely: true,
		KeepsPlans:    true,
		NullsLast:     true,
		micros:        "(EXTRACT(EPOCH FROM %s) * 1000000)::bigint",
		number:        "(EXTRACT(EPOCH FROM %s) * 1000000)::bigint",
	},
	dialect.SQLite: {
		Name:  "sqlite",
		Now:   "(strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')",
		After: "(strftime('%Y-%m-%d %H:%M:%f', 'now', (? / 1000000.0) || ' seconds') || '000')",
		At:    "(strftime('%Y-%m-%d %H:%M:%f', ? / 1000000.0, 'unixepoch') || '000')",
		Never: "'9999-12-31 00:00:00.000000'",
		// SkipLocked and ForUpdate are empty: a transaction that writes has the whole database to itself.
		SelectsFreely: true,
		micros:        "(CAST(strftime('%%s', %[1]s) AS INTEGER) * 1000000 + CAST(substr(%[1]s || '000000', 21, 6) AS INTEGER))",
		number: "CAST(substr(%[1]s, 9, 2) || substr(%[1]s, 12, 2) || substr(%[1]s, 15, 2) || substr(%[1]s, 18, 2) || " +
			"substr(%[1]s, 21, 6) AS INTEGER)",
	},
}

// NeverMicro is [Dialect.Never] in microseconds since the epoch.
const NeverMicro = 253402214400_000_000

// ErrNil is the mistake of whoever gives no database.
var ErrNil = errors.New("db is nil: give it the *bun.DB of your program, or what outbox.Open returned")

// Of tells the dialect of db.
func Of(db *bun.DB) (Dialect, error) {
	if db == nil {
		return Dialect{}, fmt.Errorf("bluecone: %w", ErrNil)
	}
	return Named(db.Dialect().Name())
}

// Named is the dialect of a database that bun knows by this name.
func Named(name dialect.Name) (Dialect, error) {
	d, ok := known[name]
	if !ok {
		return Dialect{}, fmt.Errorf("bluecone: database dialect %v is not supported: use MySQL, MariaDB, PostgreSQL or SQLite", name)
	}
	d.alongIndexes = alongIndexes{d.Name}
	return d, nil
}

// Micros is an expression for the column's time as microseconds since the epoch, NULL for NULL.
func (d Dialect) Micros(column string) string { return fmt.Sprintf(d.micros, column) }

// Number is an expression for a number that another time within the same month does not have, for less than what
// [Dialect.Micros] costs.
func (d Dialect) Number(column string) string { return fmt.Sprintf(d.number, column) }

// Ignore ends an INSERT that leaves an existing row with the same key alone.
// It never is INSERT IGNORE, which also swallows truncation.
func (d Dialect) Ignore(keyColumns string) string {
	if d.Name == "mysql" {
		return " ON DUPLICATE KEY UPDATE " + strings.Split(keyColumns, ",")[0] + " = " + strings.Split(keyColumns, ",")[0]
	}
	return " ON CONFLICT (" + keyColumns + ") DO NOTHING"
}

// Upsert ends an INSERT that sets the given columns to the values of the refused row.
func (d Dialect) Upsert(keyColumns string, columns ...string) string {
	sets := make([]string, len(columns))
	for i, c := range columns {
		if d.Name == "mysql" {
			sets[i] = c + " = VALUES(" + c + ")"
		} else {
			sets[i] = c + " = excluded." + c
		}
	}
	if d.Name == "mysql" {
		return " ON DUPLICATE KEY UPDATE " + strings.Join(sets, ", ")
	}
	return " ON CONFLICT (" + keyColumns + ") DO UPDATE SET " + strings.Join(sets, ", ")
}

// Pair is a row id with the lock version that a writer believes it holds, 0 for any.
type Pair struct{ ID, Version int64 }

// Pairs are the ids, whatever the versions of their rows.
func Pairs(ids []int64) []Pair {
	pairs := make([]Pair, len(ids))
	for i, id := range ids {
		pairs[i].ID = id
	}
	return pairs
}

// MostIDs is how many ids stand in one list: with one more MariaDB makes a table of it.
const MostIDs = 999

// IDs is a condition on rows e that the pairs name. Use it with [Dialect.Keyed]. The ids stand in one list, if there are no more than
// [MostIDs], and the versions are asked of the rows that it finds: of two lists PostgreSQL makes a scan of all rows while bitmaps are
// off, as [Dialect.ByIndex] has them.
func IDs(pairs []Pair) string {
	var lists []string
	for chunk := range slices.Chunk(pairs, MostIDs) {
		lists = append(lists, inList(chunk)+atVersions(chunk))
	}
	return "(" + strings.Join(lists, " OR ") + ")"
}

func inList(pairs []Pair) string {
	ids := make([]string, len(pairs))
	for i, p := range pairs {
		ids[i] = num(p.ID)
	}
	return "e.id IN (" + strings.Join(ids, ",") + ")"
}

// atVersions goes on with a condition that rows e have the versions of the pairs.
func atVersions(pairs []Pair) string {
	of := make(map[int64][]Pair)
	for _, p := range pairs {
		of[p.Version] = append(of[p.Version], p)
	}
	var each []string
	for _, version := range slices.Sorted(maps.Keys(of)) {
		var conditions []string
		if len(of) > 1 {
			conditions = append(conditions, inList(of[version]))
		}
		if version != 0 {
			conditions = append(conditions, "e.lock_version = "+num(version))
		}
		each = append(each, strings.Join(conditions, " AND "))
	}
	if all := strings.Join(each, " OR "); all != "" {
		return " AND (" + all + ")"
	}
	return ""
}

// Under is a condition on rows e, always the same text: their ids, and the lock version that a writer
// believes it holds on all of them.
const Under = "e.id IN (?) AND e.lock_version = ?"

// Keyed is the table, as e, in a statement that names rows by id. MySQL is told to look them up
// by primary key: left alone it scans a small table, and scans that lock wait for each other.
func (d Dialect) Keyed(table string) string {
	if d.Name == "mysql" {
		return table + " AS e FORCE INDEX (PRIMARY)"
	}
	return table + " AS e"
}

// UpdateIDs is an UPDATE of the table's rows, e, that the pairs name, of those that fulfil where.
// Columns in set stand unqualified.
func (d Dialect) UpdateIDs(table string, pairs []Pair, set, where string) string {
	return "UPDATE " + d.Keyed(table) + " SET " + set + " WHERE " + IDs(pairs) + " AND " + where
}

// DeleteIDs is a DELETE of the table's rows, e, that the pairs name, of those that fulfil where.
func (d Dialect) DeleteIDs(table string, pairs []Pair, where string) string {
	verb := "DELETE FROM "
	if d.Name == "mysql" { // only this form takes the hint
		verb = "DELETE e FROM "
	}
	return verb + d.Keyed(table) + " WHERE " + IDs(pairs) + " AND " + where
}

// ByEventID is the table of events, as e, in a statement that names rows by event id.
func (d Dialect) ByEventID(table string) string {
	if d.Name == "mysql" {
		return table + " AS e FORCE INDEX (uk_event_id)"
	}
	return table + " AS e"
}

// Each is a FROM of the table's rows l that have one of the texts `?` in an indexed column, and of which a further
// condition holds, from its AND on. PostgreSQL is made to look each of them up: without statistics it takes a hundred
// for half of the table, and reads it all.
func (d Dialect) Each(table, column, and string) string {
	if d.Name == "postgres" {
		return "unnest(ARRAY[?]) AS wanted(value) CROSS JOIN LATERAL (SELECT * FROM " + table + " WHERE " + column + " = wanted.value" +
			and + " OFFSET 0) AS l"
	}
	return table + " AS l WHERE l." + column + " IN (?)" + and
}

// Due is the table, as e, in a statement that walks along the rows of one status in the order in
// which they are due.
func (d Dialect) Due(table string) string {
	if d.Name == "mysql" { // it would rather sort them all, and lock what it sorts
		return table + " AS e FORCE INDEX (idx_status_next_retry)"
	}
	return table + " AS e"
}

// DueDeliveries is the same for the waiting deliveries of one consumer.
func (d Dialect) DueDeliveries(table string) string {
	if d.Name == "mysql" {
		return table + " FORCE INDEX (idx_consumer_due)"
	}
	return table
}

// Delivered is the table in a statement about deliveries of one consumer that it names by their events.
func (d Dialect) Delivered(table string) string {
	if d.Name == "mysql" { // it could take another index, and lock what it finds there
		return table + " FORCE INDEX (uk_event_consumer)"
	}
	return table
}

// JSON is a text as the value of a JSON column.
func (d Dialect) JSON(text string) string {
	if d.Name == "postgres" {
		return "CAST(" + text + " AS json)"
	}
	return text
}

// Micro is a duration in whole microseconds, as After wants it.
func Micro(d time.Duration) int64 { return d.Microseconds() }

func num(n int64) string { return strconv.FormatInt(n, 10) }

// ReadCommitted are the options of every transaction of bluecone: under a stricter
// level MySQL's gap locks would make producers wait for the engine.
func (d Dialect) ReadCommitted() *sql.TxOptions {
	if d.Name == "sqlite" {
		return nil
	}
	return &sql.TxOptions{Isolation: sql.LevelReadCommitted}
}

// Bytes is an expression for the length of a JSON column's text, in bytes; 0 without one.
func (d Dialect) Bytes(column string) string {
	switch d.Name {
	case "postgres":
		return "COALESCE(octet_length(" + column + "::text), 0)"
	case "sqlite":
		return "COALESCE(LENGTH(CAST(" + column + " AS BLOB)), 0)"
	}
	return "COALESCE(LENGTH(" + column + "), 0)"
}

// Text is an expression that reads a JSON column as its text.
func (d Dialect) Text(column string) string {
	if d.Name == "postgres" {
		return column + "::text"
	}
	return column
}
