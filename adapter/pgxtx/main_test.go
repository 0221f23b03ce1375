package pgxtx_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/bustest"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

type orderPaid struct {
	OrderID string
	Cents   int
}

func (orderPaid) EventType() string              { return "order.paid" }
func (e orderPaid) Aggregate() (kind, id string) { return "ORDER", e.OrderID }

// fixture is a database of PostgreSQL with a table for effects.
type fixture struct {
	*bustest.Harness

	t  *testing.T
	db *bun.DB
}

func newFixture(t *testing.T, opts ...bustest.Option) *fixture {
	t.Helper()
	f := &fixture{t: t, db: testdb.Open(t, "postgres")}
	f.exec("CREATE TABLE effect (id TEXT PRIMARY KEY, cents INT NOT NULL)")
	f.Harness = bustest.New(t, f.db, opts...)
	return f
}

func (f *fixture) exec(query string) {
	f.t.Helper()
	_, err := f.db.DB.ExecContext(f.t.Context(), query)
	require.NoError(f.t, err)
}

// count is what a query counts.
func (f *fixture) count(query string) (n int) {
	f.t.Helper()
	require.NoError(f.t, f.db.DB.QueryRowContext(f.t.Context(), query).Scan(&n))
	return n
}

func (f *fixture) effects() int {
	f.t.Helper()
	return f.count("SELECT COUNT(*) FROM effect")
}

// errors are those of all deliveries.
func (f *fixture) errors() (text string) {
	f.t.Helper()
	const query = "SELECT COALESCE(string_agg(error_message, '; '), '') FROM bc_event_consume_log"
	require.NoError(f.t, f.db.DB.QueryRowContext(f.t.Context(), query).Scan(&text))
	return text
}

// save saves an event by itself.
func (f *fixture) save(e bus.Event) error {
	return f.db.RunInTx(f.t.Context(), nil, func(ctx context.Context, tx bun.Tx) error { return f.Outbox.Save(ctx, tx, e) })
}
