// Package testplan shows what databases make of the statements that a test's program sends, with a long
// history in the tables.
package testplan

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
)

// Recorder keeps one example of every shape of statement that touches one of its tables, the longest.
type Recorder struct {
	tables []string
	mu     sync.Mutex
	shapes map[string]string
}

// Record makes the pool tell what it is asked about the tables.
func Record(db *bun.DB, tables ...string) *Recorder {
	r := &Recorder{tables: tables, shapes: make(map[string]string)}
	db.AddQueryHook(r) //nolint:staticcheck // WithQueryHook makes a copy, and this very pool must be seen
	return r
}

// BeforeQuery implements [bun.QueryHook].
func (r *Recorder) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

var (
	newer   = regexp.MustCompile(`^/\*M!.*?\*/ `) // what newer releases of MariaDB alone read
	texts   = regexp.MustCompile(`'(?:[^'\\]|\\.|'')*'`)
	numbers = regexp.MustCompile(`\b\d+\b`)
	lists   = regexp.MustCompile(`\?(?:,\s*\?)+`)
)

// AfterQuery implements [bun.QueryHook].
func (r *Recorder) AfterQuery(_ context.Context, ev *bun.QueryEvent) {
	q := newer.ReplaceAllString(ev.Query, "")
	asks := !strings.HasPrefix(q, "INSERT") || strings.Contains(q, " WHERE NOT EXISTS ") // a keyed event asks as it is inserted
	if !asks || !slices.ContainsFunc(r.tables, func(t string) bool { return strings.Contains(q, t) }) {
		return
	}
	shape := lists.ReplaceAllString(numbers.ReplaceAllString(texts.ReplaceAllString(q, "?"), "?"), "?")
	r.mu.Lock()
	defer r.mu.Unlock()
	if old, ok := r.shapes[shape]; !ok || len(q) > len(old) {
		r.shapes[shape] = q
	}
}

// Require fails the test for every statement whose plan, as db makes it, matches bad, and if there are
// fewer shapes than least.
func (r *Recorder) Require(t testing.TB, db *bun.DB, bad *regexp.Regexp, least int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	full := explain(t, db.DB, prefix(db)+"SELECT * FROM bc_outbox_event AS e WHERE lock_version = -1")
	require.Regexp(t, bad, full, "a plan that does read the history must be seen as such")
	for _, recorded := range r.shapes {
		for _, query := range forms(db, recorded) {
			if plan := explain(t, db.DB, prefix(db)+query); bad.MatchString(plan) {
				t.Errorf("this statement reads the history:\n%s\n%s", query[:min(len(query), 1500)], plan)
			}
		}
	}
	require.Greater(t, len(r.shapes), least, "shapes of statements")
}

var keys = regexp.MustCompile(`(\bid|event_id) IN \((?:\d+|'[^']*')(?:, ?(?:\d+|'[^']*'))*\)`)

// forms are a statement as it was recorded and, for SQLite, with the lists of keys as a prepared one has them.
func forms(db *bun.DB, query string) []string {
	if db.Dialect().Name() != dialect.SQLite {
		return []string{query}
	}
	return []string{query, keys.ReplaceAllString(query, "$1 IN (SELECT value FROM json_each('[]'))")}
}

// Enough is how many events show what a database makes of n: few in SQLite, which runs inside the test,
// twenty times as slow under the race detector, and whose plans are judged by their words alone.
func Enough(db *bun.DB, n int) int {
	if db.Dialect().Name().String() == "sqlite" {
		return min(n, 5_000)
	}
	return n
}

// Fill makes n SENT events of the aggregate ORDER/id, and as many deliveries of one consumer, and lets the database
// look at what it has got.
func Fill(t testing.TB, db *bun.DB, n int, id, consumer string) {
	t.Helper()
	name := db.Dialect().Name().String()
	series := Series(db, n)
	event := map[string]string{"mysql": "CONCAT('h-', i)", "pg": "'h-' || i", "sqlite": "'h-' || i"}[name]
	now := map[string]string{
		"mysql": "UTC_TIMESTAMP(6)", "pg": "statement_timestamp()",
		"sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'",
	}[name]
	for _, q := range []string{
		"INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, status, lock_version, sent_at) " +
			"SELECT 'ORDER', '" + id + "', 'order.paid', " + event + ", '{}', 'SENT', 2, " + now + " FROM (" + series + ") AS n",
		"INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, attempts) SELECT '" + consumer + "', " + event +
			", 'order.paid', 1 FROM (" + series + ") AS n",
		map[string]string{"mysql": "ANALYZE TABLE bc_outbox_event, bc_event_consume_log", "pg": "ANALYZE", "sqlite": "ANALYZE"}[name],
	} {
		_, err := db.ExecContext(t.Context(), q)
		require.NoError(t, err, q)
	}
}

// Series is a query for the numbers 1 to n, at most a million, as the column i.
func Series(db *bun.DB, n int) string {
	switch db.Dialect().Name() {
	case dialect.PG:
		return fmt.Sprintf("SELECT i FROM generate_series(1, %d) AS g(i)", n)
	case dialect.SQLite:
		return fmt.Sprintf("WITH RECURSIVE g(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM g WHERE i < %d) SELECT i FROM g", n)
	}
	// MariaDB has tables of numbers, MySQL has not. Both limit how deep a recursive query goes.
	const digits = "(SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4" +
		" UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)"
	sum, from, power := "1", "", 1
	for i := 0; power < n; i++ {
		sum += fmt.Sprintf(" + d%d.n * %d", i, power)
		from += fmt.Sprintf("%s%s AS d%d", map[bool]string{true: " FROM ", false: " CROSS JOIN "}[i == 0], digits, i)
		power *= 10
	}
	return fmt.Sprintf("SELECT i FROM (SELECT %s AS i%s) AS s WHERE i <= %d", sum, from, n)
}

// RequirePrepared does the same with what PostgreSQL has prepared for the connections of an idle pool,
// planned for any values.
func RequirePrepared(t testing.TB, db *bun.DB, bad *regexp.Regexp, least int) {
	t.Helper()
	checked := make(map[string]bool)
	for range db.Stats().OpenConnections {
		conn, err := db.DB.Conn(t.Context())
		require.NoError(t, err)
		defer conn.Close() // at the end: each time another one
		_, err = conn.ExecContext(t.Context(), "SET plan_cache_mode = force_generic_plan")
		require.NoError(t, err)
		rows, err := conn.QueryContext(t.Context(), "SELECT name, statement, array_length(parameter_types, 1) FROM pg_prepared_statements "+
			"WHERE statement LIKE '%bc\\_%$1%'")
		require.NoError(t, err)
		defer rows.Close()
		run := make(map[string]string)
		for rows.Next() {
			var name, text string
			var values int
			require.NoError(t, rows.Scan(&name, &text, &values))
			run[text] = `EXPLAIN EXECUTE "` + name + `" (` + strings.TrimSuffix(strings.Repeat("NULL,", values), ",") + ")"
		}
		require.NoError(t, rows.Err())
		for text, explains := range run {
			if plan := explain(t, conn, explains); bad.MatchString(plan) || walks(plan) {
				t.Errorf("this prepared statement reads the history, or all that is open:\n%s\n%s", text, plan)
			}
			checked[text] = true
		}
	}
	require.Greater(t, len(checked), least, "prepared statements")
}

// walks reports whether a plan of PostgreSQL goes along a whole index: few entries when it is made,
// and many when it is still used.
func walks(plan string) bool {
	lines := strings.Split(plan, "\n")
	return slices.ContainsFunc(lines, func(l string) bool {
		return strings.Contains(l, "Index ") && strings.Contains(l, "Scan ") && !strings.Contains(lines[slices.Index(lines, l)+1], "Index Cond")
	})
}

func prefix(db *bun.DB) string {
	switch db.Dialect().Name() {
	case dialect.SQLite:
		return "EXPLAIN QUERY PLAN "
	case dialect.MySQL:
		return "EXPLAIN FORMAT=TRADITIONAL " // MySQL 9 answers with a tree by default
	}
	return "EXPLAIN "
}

// readable is what every plan has in the form that the tests know: MySQL's table of steps, PostgreSQL's costs, SQLite's details.
var readable = regexp.MustCompile(`select_type=.* possible_keys=|QUERY PLAN=.*cost=|detail=`)

// explain is the database's plan for a statement, a line for each of its rows.
func explain(t testing.TB, db interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}, query string,
) string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	require.NoError(t, err, query)
	defer rows.Close()
	columns, err := rows.Columns()
	require.NoError(t, err)
	var b strings.Builder
	for rows.Next() {
		values, dest := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			dest[i] = &values[i]
		}
		require.NoError(t, rows.Scan(dest...))
		for i, v := range values {
			if text, ok := v.([]byte); ok {
				v = string(text)
			}
			fmt.Fprintf(&b, "%s=%v ", columns[i], v)
		}
		b.WriteByte('\n')
	}
	require.NoError(t, rows.Err())
	require.Regexp(t, readable, b.String(), "the plan must be one that the tests can judge")
	return b.String()
}
