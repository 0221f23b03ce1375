package health

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

func dialectOf(t *testing.T, db *bun.DB) dialect.Dialect {
	t.Helper()
	d, err := dialect.Of(db)
	require.NoError(t, err)
	return d
}

// A publisher says that it runs, that it drains as soon as it does, and removes its row at the end. Rows of those that died go after
// a day.
func TestAHeartbeatTellsHowAPublisherIs(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		d := dialectOf(t, db)
		rows := store.NewInstances(d)
		for _, name := range []string{"died long ago", "died"} {
			require.NoError(t, rows.Announce(t.Context(), db, store.Instance{Name: name, Run: "r"}))
		}
		testdb.Exec(t, db, "UPDATE bc_instance SET seen_at = "+d.After+" WHERE name = 'died long ago'", -dialect.Micro(25*time.Hour))
		var log testdb.Log
		h := Heartbeat{DB: db, Rows: rows, Logger: log.Logger(), Name: "me", Owner: "me#1"}
		running, drain := context.WithCancel(t.Context())
		stop, over := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(over)
			h.Run(running, stop, func() Signs { return Signs{InFlight: 3, Broken: []string{"A", "B"}} })
		}()
		said := func(draining int) func() bool {
			return func() bool {
				return testdb.Count(t, db, "SELECT COUNT(*) FROM bc_instance WHERE name = 'me' AND run_id = 'me#1' AND in_flight = 3 "+
					"AND circuits = 'A,B' AND host <> '' AND version <> ''") == 1 &&
					testdb.Count(t, db, "SELECT COALESCE(MAX(draining), -1) FROM bc_instance WHERE name = 'me'") == draining
			}
		}
		testdb.Eventually(t, said(0), "it runs")
		drain()
		testdb.Eventually(t, said(1), "it drains")
		close(stop)
		<-over
		require.Equal(t, 1, testdb.Count(t, db, "SELECT COUNT(*) FROM bc_instance"), "that of the one that died a moment ago")
		require.Empty(t, log.String())
	})
}

// A heartbeat that cannot be written costs a line for those who look for it, and nothing else.
func TestAHeartbeatThatCannotBeWrittenHarmsNobody(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		testdb.Exec(t, db, "DROP TABLE bc_instance")
		var log testdb.Log
		h := Heartbeat{DB: db, Rows: store.NewInstances(dialectOf(t, db)), Logger: log.Logger(), Name: "me", Owner: "me#1"}
		stop := make(chan struct{})
		close(stop)
		h.Run(t.Context(), stop, func() Signs { return Signs{} })
		require.Contains(t, log.String(), "level=DEBUG")
		require.NotContains(t, log.String(), "level=WARN")
	})
}
