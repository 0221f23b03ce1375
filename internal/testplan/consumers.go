package testplan

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/testdb"
)

// Consumers registers the consumers 1 to n, each of which takes order.paid and has had the event done.
func Consumers(t testing.TB, db *bun.DB, n int) {
	t.Helper()
	name := map[string]string{
		"mysql": "CONCAT('C', 10000 + i)", "pg": "'C' || (10000 + i)",
		"sqlite": "'C' || (10000 + i)",
	}[db.Dialect().Name().String()]
	from := " FROM (" + Series(db, n) + ") AS n"
	for _, q := range []string{
		"INSERT INTO bc_consumer (name, event_types, aliases) SELECT " + name + ", '[]', '[]'" + from,
		"INSERT INTO bc_consumer_type (consumer_name, event_type) SELECT " + name + ", 'order.paid'" + from,
		"INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type) SELECT " + name + ", 'done', 'order.paid'" + from,
	} {
		_, err := db.ExecContext(t.Context(), q)
		require.NoError(t, err, q)
	}
}

// Consumer is the name of one of [Consumers], in the order of their numbers.
func Consumer(i int) string { return fmt.Sprint("C", 10000+i) }

// Statements counts what a pool is asked.
type Statements struct{ n atomic.Int64 }

// Count makes the pool count what it is asked from now on.
func Count(db *bun.DB) *Statements {
	s := new(Statements)
	db.AddQueryHook(s) //nolint:staticcheck // WithQueryHook makes a copy, and this very pool must be seen
	return s
}

// N is how many statements there have been.
func (s *Statements) N() int { return int(s.n.Load()) }

// BeforeQuery implements [bun.QueryHook].
func (s *Statements) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context {
	s.n.Add(1)
	return ctx
}

// AfterQuery implements [bun.QueryHook].
func (*Statements) AfterQuery(context.Context, *bun.QueryEvent) {}

// AsManyStatements runs fn on every database with twenty consumers and with two thousand. It answers how many statements
// it has asked, which has to be the same number.
func AsManyStatements(t *testing.T, fn func(t *testing.T, dialect string, consumers int) (asked int)) {
	t.Helper()
	for _, dialect := range testdb.Dialects() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			few := fn(t, dialect, 20)
			require.Positive(t, few)
			require.Equal(t, few, fn(t, dialect, 2000), "statements")
		})
	}
}
