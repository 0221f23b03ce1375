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
	"fmt"
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
	// SkipLocked ends a SELECT that locks its rows and passes over those locked by others.
	SkipLocked string
	// ForUpdate ends a SELECT that waits for the locks of its rows.
	ForUpdate string

	micros string // format of the expression that reads a time column as microseconds
}

var known = map[dialect.Name]Dialect{ //nolint:gochecknoglobals // a constant table
	dialect.MySQL: {
		Name:       "mysql",
		Now:        "UTC_TIMESTAMP(6)",
		After:      "UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND",
		At:         "TIMESTAMP('1970-01-01') + INTERVAL ? MICROSECOND",
		SkipLocked: " FOR UPDATE SKIP LOCKED",
		ForUpdate:  " FOR UPDATE",
		micros:     "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', %s)",
	},
	dialect.PG: {
		Name:       "postgres",
		Now:        "statement_timestamp()",
		After:      "statement_timestamp() + ? * INTERVAL '1 microsecond'",
		At:         "'epoch'::timestamptz + ? * INTERVAL '1 microsecond'",
		SkipLocked: " FOR UPDATE SKIP LOCKED",
		ForUpdate:  " FOR UPDATE",
		micros:     "(EXTRACT(EPOCH FROM %s) * 1000000)::bigint",
	},
	dialect.SQLite: {
		Name:  "sqlite",
		Now:   "(strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')",
		After: "(strftime('%Y-%m-%d %H:%M:%f', 'now', (? / 1000000.0) || ' seconds') || '000')",
		At:    "(strftime('%Y-%m-%d %H:%M:%f', ? / 1000000.0, 'unixepoch') || '000')",
		// One writer at a time: a transaction that writes has the whole database to itself.
		micros: "(CAST(strftime('%%s', %[1]s) AS INTEGER) * 1000000 + CAST(substr(%[1]s || '000000', 21, 6) AS INTEGER))",
	},
}

// Of tells the dialect of db.
func Of(db *bun.DB) (Dialect, error) {
	name := db.Dialect().Name()
	d, ok := known[name]
	if !ok {
		return Dialect{}, fmt.Errorf("bluecone: database dialect %v is not supported: use MySQL, MariaDB, PostgreSQL or SQLite", name)
	}
	return d, nil
}

// Micros is an expression for the column's time as microseconds since the epoch, NULL for NULL.
func (d Dialect) Micros(column string) string { return fmt.Sprintf(d.micros, column) }

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

// Pair is a row id with the lock version that a writer believes it holds.
type Pair struct{ ID, Version int64 }

// Pairs is a derived table t(id, v) of the given pairs.
//
// Bulk writes join it by primary key: an IN list of hundreds of ids makes
// MariaDB scan, and scanning writers deadlock.
func (d Dialect) Pairs(pairs []Pair) string {
	var b strings.Builder
	switch d.Name {
	case "mysql":
		// A UNION ALL of as many SELECTs costs the parser of MariaDB ten times as much.
		b.WriteString("(SELECT j.id, j.v FROM JSON_TABLE('[")
		writeTuples(&b, pairs, "[", "]")
		b.WriteString("]', '$[*]' COLUMNS (id BIGINT PATH '$[0]', v BIGINT PATH '$[1]')) AS j) AS t")
	case "sqlite":
		b.WriteString("(SELECT column1 AS id, column2 AS v FROM (VALUES ")
		writeTuples(&b, pairs, "(", ")")
		b.WriteString(")) AS t")
	default:
		b.WriteString("(VALUES ")
		writeTuples(&b, pairs, "(", ")")
		b.WriteString(") AS t(id, v)")
	}
	return b.String()
}

// UpdatePairs is an UPDATE of the table's rows that the pairs name by id.
// set and where refer to the table as e and to the pairs as t; columns in set stand unqualified.
func (d Dialect) UpdatePairs(table string, pairs []Pair, set, where string) string {
	if d.Name == "mysql" {
		return "UPDATE " + d.FromPairs(table, pairs) + " SET " + set + " WHERE " + where
	}
	return "UPDATE " + table + " AS e SET " + set + " FROM " + d.Pairs(pairs) + " WHERE e.id = t.id AND " + where
}

// FromPairs joins the table, as e, to the pairs by primary key. MySQL must be told to: on a
// small table it would rather scan, and a scan that locks waits for everybody.
func (d Dialect) FromPairs(table string, pairs []Pair) string {
	if d.Name == "mysql" {
		return d.Pairs(pairs) + " STRAIGHT_JOIN " + table + " AS e FORCE INDEX (PRIMARY) ON e.id = t.id"
	}
	return d.Pairs(pairs) + " JOIN " + table + " AS e ON e.id = t.id"
}

// Siblings is a condition on an event p of the same aggregate as the event e that is not SENT,
// served by an index that holds only such events: however long the history of the aggregate is.
func (d Dialect) Siblings(p, e string) string {
	same := p + ".aggregate_type = " + e + ".aggregate_type AND " + p + ".aggregate_id = " + e + ".aggregate_id AND " + p + ".status <> 'SENT'"
	if d.Name == "mysql" {
		same += " AND " + p + ".open_aggregate = CONCAT(" + e + ".aggregate_type, '/', " + e + ".aggregate_id)"
	}
	return same
}

// Micro is a duration in whole microseconds, as After wants it.
func Micro(d time.Duration) int64 { return d.Microseconds() }

func writeTuples(b *strings.Builder, pairs []Pair, begin, end string) {
	for i, p := range pairs {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(begin + num(p.ID) + "," + num(p.Version) + end)
	}
}

func num(n int64) string { return strconv.FormatInt(n, 10) }

// ReadCommitted are the options of every transaction of bluecone: under a stricter
// level MySQL's gap locks would make producers wait for the engine.
func (d Dialect) ReadCommitted() *sql.TxOptions {
	if d.Name == "sqlite" {
		return nil
	}
	return &sql.TxOptions{Isolation: sql.LevelReadCommitted}
}

// Text is an expression that reads a JSON column as its text.
func (d Dialect) Text(column string) string {
	if d.Name == "postgres" {
		return column + "::text"
	}
	return column
}
