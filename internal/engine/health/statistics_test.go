package health

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// After events have been claimed PostgreSQL looks at tables that have outgrown what it knows of them. Where it cannot be asked, the log
// says what that means.
func TestStatisticsOfYoungTablesAreRenewed(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		testdb.Exec(t, db, "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload) "+
			"VALUES ('A', '1', 'a.b', 'a', '{}')")
		var log testdb.Log
		var claimed atomic.Int64
		claimed.Store(1)
		stop, over := make(chan struct{}), make(chan struct{})
		st := Statistics{DB: db, Logger: log.Logger(), Outage: NewOutage(log.Logger()), Limit: time.Minute}
		go func() {
			defer close(over)
			st.Run(stop, &claimed)
		}()
		isKnown := func() bool {
			if dialectOf(t, db).Name != "postgres" {
				return log.String() != ""
			}
			tables, err := store.Growth(t.Context(), db)
			require.NoError(t, err)
			for _, g := range tables {
				if g.Table == "bc_outbox_event" {
					return g.Known > 0
				}
			}
			return false
		}
		testdb.Eventually(t, isKnown, "it looks once a second")
		close(stop)
		<-over
		if dialectOf(t, db).Name == "postgres" {
			require.Empty(t, log.String())
			tried := make(map[string]int64)
			require.NoError(t, st.renew(t.Context(), tried))
			require.Empty(t, tried, "none has grown since")
			return
		}
		require.Contains(t, log.String(), "statistics could not be renewed; plans may be slow")
	})
}
