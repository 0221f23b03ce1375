package outbox_test

import (
	"database/sql"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// A drain, in which all statements that the engine sends often are in transactions, prepares them too.
func TestDrainPreparesItsStatements(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testdb.Open(t, "postgres"))
	f.registered("Paused")
	require.NoError(t, f.ob.Pause(t.Context(), outbox.Operation{Actor: "ann", Reason: "a test"}, "Paused", 0))
	for range 10 {
		f.save(slices.Repeat([]bus.Event{orderPaid{OrderID: "1"}}, 10)...)
	}
	f.run(outbox.PublisherConfig{BatchSize: 10, Poll: time.Minute})
	f.eventually(func() bool { return f.statuses()[outbox.StatusFailed] == 100 }, "all wait")
	require.Positive(t, f.prepared("UPDATE bc_outbox_event%DISPATCHING%= ANY($%"))
}

// prepared counts the statements like this that the idle connections of PostgreSQL have prepared.
func (f *fixture) prepared(like string) (n int) {
	f.t.Helper()
	idle := make([]*sql.Conn, f.db.DB.Stats().Idle)
	for i := range idle {
		c, err := f.db.DB.Conn(f.t.Context())
		require.NoError(f.t, err)
		defer c.Close()
		idle[i] = c
	}
	for _, c := range idle {
		var some int
		require.NoError(f.t, c.QueryRowContext(f.t.Context(), "SELECT COUNT(*) FROM pg_prepared_statements WHERE statement LIKE $1",
			like).Scan(&some))
		n += some
	}
	return n
}
