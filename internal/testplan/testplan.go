// Package testplan shows what databases make of the statements that a test's program sends, with a long
// history in the tables.
package testplan

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
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
	texts   = regexp.MustCompile(`'(?:[^'\\]|\\.|'')*'`)
	numbers = regexp.MustCompile(`\b\d+\b`)
	lists   = regexp.MustCompile(`\?(?:,\s*\?)+`)
)

// AfterQuery implements [bun.QueryHook].
func (r *Recorder) AfterQuery(_ context.Context, ev *bun.QueryEvent) {
	q := ev.Query
	if strings.HasPrefix(q, "INSERT") || !slices.ContainsFunc(r.tables, func(t string) bool { return strings.Contains(q, t) }) {
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
	for _, query := range r.shapes {
		if plan := explain(t, db, query); bad.MatchString(plan) {
			t.Errorf("this statement reads the history:\n%s\n%s", query[:min(len(query), 1500)], plan)
		}
	}
	require.Greater(t, len(r.shapes), least, "shapes of statements")
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
	series := fmt.Sprintf(map[string]string{
		"mysql":  "SELECT seq AS i FROM seq_1_to_%d",
		"pg":     "SELECT i FROM generate_series(1, %d) AS g(i)",
		"sqlite": "WITH RECURSIVE g(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM g WHERE i < %d) SELECT i FROM g",
	}[name], n)
	event := map[string]string{"mysql": "CONCAT('h-', i)", "pg": "'h-' || i", "sqlite": "'h-' || i"}[name]
	now := map[string]string{"mysql": "UTC_TIMESTAMP(6)", "pg": "statement_timestamp()", "sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'"}[name]
	for _, q := range []string{
		"INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, status, lock_version, sent_at) " +
			"SELECT 'ORDER', '" + id + "', 'order.paid', " + event + ", '{}', 'SENT', 2, " + now + " FROM (" + series + ") AS n",
		"INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, attempts) SELECT '" + consumer + "', " + event + ", 'order.paid', 1 FROM (" + series + ") AS n",
		map[string]string{"mysql": "ANALYZE TABLE bc_outbox_event, bc_event_consume_log", "pg": "ANALYZE", "sqlite": "ANALYZE"}[name],
	} {
		_, err := db.ExecContext(t.Context(), q)
		require.NoError(t, err, q)
	}
}

// explain is the database's plan for a statement, a line for each of its rows.
func explain(t testing.TB, db *bun.DB, query string) string {
	t.Helper()
	verb := map[string]string{"mysql": "EXPLAIN ", "pg": "EXPLAIN ", "sqlite": "EXPLAIN QUERY PLAN "}[db.Dialect().Name().String()]
	rows, err := db.DB.QueryContext(t.Context(), verb+query)
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
	return b.String()
}
