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

	// PlainPlans, unless empty, is a statement that keeps the rest of a transaction's statements from being compiled.
	// PostgreSQL does that for what it takes to be expensive; for a statement of many small looks at indexes it takes far
	// longer than running it.
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

	micros string // format of the expression that reads a time column as microseconds
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
	},
	dialect.PG: {
		Name:          "postgres",
		Now:           "statement_timestamp()",
		After:         "statement_timestamp() + ? * INTERVAL '1 microsecond'",
		At:            "'epoch'::timestamptz + ? * INTERVAL '1 microsecond'",
		Never:         "'9999-12-31 00:00:00+00'::timestamptz",
		SkipLocked:    " FOR UPDATE SKIP LOCKED",
		ForUpdate:     " FOR UPDATE",
		ByIndex:       "SELECT set_config('enable_bitmapscan', 'off', true), set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true)",
		PlainPlans:    "SET LOCAL jit = off",
		SelectsFreely: true,
		KeepsPlans:    true,
		NullsLast:     true,
		micros:        "(EXTRACT(EPOCH FROM %s) * 1000000)::bigint",
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
	},
}

// NeverMicro is [Dialect.Never] in microseconds since the epoch.
const NeverMicro = 253402214400_000_000

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

// MostIDs is how many ids stand in one list: with one more MariaDB makes a table of it, and of two lists
// PostgreSQL makes a scan of all rows while bitmaps are off, as [Dialect.ByIndex] has them.
const MostIDs = 999

// IDs is a condition on rows e that the pairs name. Use it with [Dialect.Keyed].
func IDs(pairs []Pair) string {
	lists := make(map[int64][][]Pair)
	var versions []int64
	for _, p := range pairs {
		l := lists[p.Version]
		if l == nil {
			versions = append(versions, p.Version)
		}
		if n := len(l); n == 0 || len(l[n-1]) == MostIDs {
			l = append(l, nil)
		}
		l[len(l)-1] = append(l[len(l)-1], p)
		lists[p.Version] = l
	}
	var b strings.Builder
	before := "("
	for _, v := range versions {
		for _, list := range lists[v] {
			b.WriteString(before + "e.id IN (")
			for i, p := range list {
				if i > 0 {
					b.WriteByte(',')
				}
				b.WriteString(num(p.ID))
			}
			b.WriteByte(')')
			if v != 0 {
				b.WriteString(" AND e.lock_version = " + num(v))
			}
			before = " OR "
		}
	}
	return b.String() + ")"
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
		return "unnest(ARRAY[?]) AS wanted(value) CROSS JOIN LATERAL (SELECT * FROM " + table + " WHERE " + column + " = wanted.value" + and + " OFFSET 0) AS l"
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

// NextConsumer is a SELECT of the first name after `?` in the table of deliveries that any waits under. Where
// the index holds all deliveries, names are enough that none waits under: to tell would be to read them all.
func (d Dialect) NextConsumer(table string) string {
	waits := " AND status <> 'SUCCESS'"
	if d.Name == "mysql" {
		waits = ""
	}
	return "SELECT consumer_name FROM " + d.DueDeliveries(table) + " WHERE consumer_name > ?" + waits + " ORDER BY consumer_name LIMIT 1"
}

// InHand is a FROM and WHERE of the events p of the same aggregate as the event e that are NEW, leased, or parked, by an
// index that holds nothing else. An event that its producer has delayed is among them from its first claim on.
func (d Dialect) InHand(table, p, e string) string {
	cond := d.partial("(%[1]s.status IN ('NEW', 'DISPATCHING') OR (%[1]s.status = 'SCHEDULED' AND %[1]s.lock_version > 0))")
	switch d.Name {
	case "mysql":
		return table + " AS " + p + " FORCE INDEX (idx_in_hand) WHERE " + p + ".in_hand = CONCAT(" + aggregateText(e) + ")"
	case "sqlite":
		p += " INDEXED BY bc_outbox_event_idx_in_hand"
	}
	name, _, _ := strings.Cut(p, " ")
	return table + " AS " + p + " WHERE " + d.sameAggregate(name, e) + " AND " + fmt.Sprintf(cond, name)
}

// AlongHand orders the events p of [Dialect.InHand] as its index does. PostgreSQL would walk along the primary key instead,
// and MySQL 9 would sort what it has found if the order did not name all columns.
func (d Dialect) AlongHand(p string) string {
	switch d.Name {
	case "postgres":
		return p + ".id + 0"
	case "mysql":
		return p + ".in_hand, " + p + ".id"
	}
	return p + ".id"
}

// Waiting is a FROM and WHERE of the deliveries l of the same aggregate as the event e that are neither done nor DEAD, by an
// index in the order of their consumers and events.
func (d Dialect) Waiting(table, l, e string) string {
	return d.openDeliveries(table, l, e, "waiting", l+".status NOT IN ('SUCCESS', 'SKIPPED', 'DEAD')")
}

// AlongOpen orders the deliveries l of one consumer, of those of [Dialect.Waiting] or [Dialect.Dead], as their indexes do. MySQL 9
// would sort what it has found if the order did not begin with the index's first column, and MariaDB if it named the second.
func (d Dialect) AlongOpen(l string) string {
	if d.Name == "mysql" {
		return l + ".open_aggregate, " + l + ".outbox_id"
	}
	return l + ".outbox_id"
}

// Dead is the same for the deliveries that are DEAD.
func (d Dialect) Dead(table, l, e string) string {
	return d.openDeliveries(table, l, e, "dead", l+".status = 'DEAD'")
}

// Receiver is the consumer of the deliveries l of [Dialect.Waiting] and [Dialect.Dead] as their indexes have it. PostgreSQL
// would go along all that waits for the consumer instead.
func (d Dialect) Receiver(l string) string {
	if d.Name == "postgres" {
		return "(" + l + ".consumer_name || '')"
	}
	return l + ".consumer_name"
}

func (d Dialect) openDeliveries(table, l, e, kind, cond string) string {
	hint := ""
	switch d.Name {
	case "mysql":
		return table + " AS " + l + " FORCE INDEX (idx_open_aggregate) WHERE " + l + ".open_aggregate = CONCAT('" + kind + "/', " + aggregateText(e) + ")"
	case "sqlite":
		hint = " INDEXED BY " + table + "_idx_" + kind
	}
	return table + " AS " + l + hint + " WHERE " + d.sameAggregate(l, e) + " AND " + d.partial(cond)
}

// WaitingOf is a FROM and WHERE of the waiting deliveries l of the aggregate whose tenant (0 for none), type and id are the
// arguments.
func (d Dialect) WaitingOf(table, l string) string {
	from := d.Waiting(table, l, "\x00")
	for _, part := range []string{"COALESCE(\x00.tenant_id, 0)", "\x00.aggregate_type", "\x00.aggregate_id"} {
		from = strings.ReplaceAll(from, part, "?")
	}
	return from
}

// partial is the condition of a partial index. PostgreSQL must not see what it implies: while its statistics know of few open
// rows, it would take another partial index for cheaper, and read all that is open.
func (d Dialect) partial(cond string) string {
	if d.Name == "postgres" {
		return "CASE WHEN " + cond + " THEN 1 END = 1"
	}
	return cond
}

// sameAggregate is the condition that two rows belong to one aggregate, as the indexes have it.
func (d Dialect) sameAggregate(a, b string) string {
	if d.Name == "postgres" {
		const name = "(COALESCE(%[1]s.tenant_id, 0)::text || '/' || %[1]s.aggregate_type || '/' || %[1]s.aggregate_id)"
		return fmt.Sprintf(name+" = ", a) + fmt.Sprintf(name, b)
	}
	return "COALESCE(" + a + ".tenant_id, 0) = COALESCE(" + b + ".tenant_id, 0) AND " + a + ".aggregate_type = " + b + ".aggregate_type AND " + a + ".aggregate_id = " + b + ".aggregate_id"
}

// aggregateText are the parts of an aggregate's name in MySQL's computed columns.
func aggregateText(e string) string {
	return "COALESCE(" + e + ".tenant_id, 0), '/', " + e + ".aggregate_type, '/', " + e + ".aggregate_id"
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

// Text is an expression that reads a JSON column as its text.
func (d Dialect) Text(column string) string {
	if d.Name == "postgres" {
		return column + "::text"
	}
	return column
}
