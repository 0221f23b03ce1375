package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// lastNeeded is the last migration that adds a column or a table which publishers use.
const lastNeeded = "0011"

// A publisher whose tables are missing, or older than its code, says so at once and ends.
func TestPublisherNeedsItsTables(t *testing.T) {
	t.Parallel()
	for _, name := range testdb.Dialects() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, log := unconnected(t, testdb.Open(t, name, testdb.Bare))
			f.counting("Counter", bus.ConsumerConfig{})
			before := "no migration"
			testdb.EachMigration(t, f.db, func(file string, apply func()) {
				if file[:4] <= lastNeeded {
					ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
					defer cancel()
					err := bus.Run(ctx, f.publisher(outbox.PublisherConfig{}))
					require.ErrorContains(t, err, "is not as this release needs it: run migrations.Up", before)
					_, err = f.publisher(outbox.PublisherConfig{}).RunOnce(ctx)
					require.ErrorContains(t, err, "is not as this release needs it: run migrations.Up", before)
				}
				apply()
				before = file
			})
			require.Zero(t, log.count("the database does not answer as it should"), "it is no outage")
			_, err := f.publisher(outbox.PublisherConfig{}).RunOnce(t.Context())
			require.NoError(t, err, "it does not matter who applied the files")
		})
	}
}

// A table that is lost while a publisher runs is an outage: it says so once and goes on when the table is back.
func TestTableThatIsLostLaterIsAnOutage(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f, log := unconnected(t, db)
		f.effects()
		f.counting("Counter", bus.ConsumerConfig{})
		f.run(outbox.PublisherConfig{Poll: 10 * time.Millisecond})
		f.save(orderPaid{OrderID: "1"})
		f.eventually(func() bool { return f.statuses()[outbox.StatusSent] == 1 }, "it is delivered")
		f.exec("ALTER TABLE bc_outbox_event RENAME TO bc_lost")
		f.eventually(func() bool { return log.count("the database does not answer as it should") == 1 }, "it says so")
		f.exec("ALTER TABLE bc_lost RENAME TO bc_outbox_event")
		f.eventually(func() bool { return log.count("the database answers again") == 1 }, "and that it is back")
		f.save(orderPaid{OrderID: "2"})
		f.eventually(func() bool { return f.statuses()[outbox.StatusSent] == 2 }, "it goes on")
		require.Equal(t, 1, log.count("the database does not answer as it should"))
	})
}
