package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// A pool that the program has closed never opens again: Run returns an error that says so, instead of waiting for a database that is
// away, whether it is closed before Run is called, or while it runs.
func TestRunEndsWhenItsPoolIsClosed(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Dialects() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.DSN(t, dialect)
			direct := newFixture(t, migrated(t, dsn))
			direct.effects()
			for _, isRunning := range []bool{false, true} {
				f, log := unconnected(t, testdb.OpenDSN(t, dsn))
				f.counting("Counter", bus.ConsumerConfig{})
				p := f.publisher(outbox.PublisherConfig{Poll: 10 * time.Millisecond})
				if !isRunning {
					require.NoError(t, f.db.Close())
				}
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- p.Run(ctx) }()
				if isRunning {
					direct.eventually(func() bool { return log.count("publisher runs") == 1 }, "it runs")
					f.save(orderPaid{OrderID: "1"})
					direct.eventually(func() bool { return direct.statuses()[outbox.StatusSent] == 1 }, "it delivers")
					require.NoError(t, f.db.Close())
				}
				select {
				case err := <-done:
					require.ErrorContains(t, err, "outbox: the program has closed the publisher's *bun.DB, which nothing opens again: "+
						"close it after Run has returned: sql: database is closed")
				case <-time.After(testdb.Patience()):
					require.Fail(t, "Run goes on", log.text())
				}
				stop()
				require.Zero(t, log.count("the database does not answer as it should"))
			}
		})
	}
}
