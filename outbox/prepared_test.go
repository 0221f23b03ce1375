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
	dsn := testdb.DSN(t, "postgres")
	other := newFixture(t, migrated(t, dsn)) // what it saves is found by a claim: nobody hands it over
	f := other.another(dsn)
	f.registered("Paused")
	require.NoError(t, f.ob.Pause(t.Context(), outbox.Operation{Actor: "ann", Reason: "a test"}, "Paused", 0))
	f.run(outbox.PublisherConfig{BatchSize: 10, Poll: 20 * time.Millisecond})
	f.eventually(func() bool { // a look that a slow machine has cut short is repeated 10 s later
		other.save(slices.Repeat([]bus.Event{orderPaid{OrderID: "1"}}, 20)...)
		return f.prepared("UPDATE bc_outbox_event%DISPATCHING%= ANY($%") > 0
	}, "the lease is prepared")
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
