package guides_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	_ "modernc.org/sqlite" // the driver of bustest.NewDB

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// The code of the guides is here: internal/arch compares each guide with the test file of its name.
func TestMain(m *testing.M) { testdb.Main(m) }

// OrderPaid says that an order has been paid.
type OrderPaid struct {
	OrderID string
	Cents   int
}

func (OrderPaid) EventType() string              { return "order.paid" }
func (e OrderPaid) Aggregate() (kind, id string) { return "ORDER", e.OrderID }
func (e OrderPaid) IdempotencyKey() string       { return "order:" + e.OrderID + ":paid" }

// exec runs statements of a test.
func exec(t *testing.T, db *bun.DB, statements ...string) {
	t.Helper()
	for _, s := range statements {
		_, err := db.ExecContext(t.Context(), s)
		require.NoError(t, err)
	}
}

// number is what a statement that counts answers.
func number(t *testing.T, db *bun.DB, query string) int {
	t.Helper()
	var n int
	require.NoError(t, db.QueryRowContext(t.Context(), query).Scan(&n))
	return n
}

// save saves events in a transaction of their own.
func save(t *testing.T, db *bun.DB, ob *outbox.Outbox, events ...bus.Event) {
	t.Helper()
	require.NoError(t, db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error { return ob.Save(ctx, tx, events...) }))
}
