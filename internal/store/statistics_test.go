package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
)

// PostgreSQL says how the tables have grown since it last looked, and looks when it is told to. The other databases have no
// such statement.
func TestPostgresLooksAtYoungTables(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		if d.Name != "postgres" {
			_, err := store.Growth(t.Context(), db)
			require.Error(t, err)
			require.Error(t, store.Analyze(t.Context(), db, []string{"bc_outbox_event"}))
			return
		}
		grown := func() map[string]store.TableGrowth {
			found, err := store.Growth(t.Context(), db)
			require.NoError(t, err)
			tables := make(map[string]store.TableGrowth)
			for _, g := range found {
				tables[g.Table] = g
			}
			require.Len(t, tables, 2)
			return tables
		}
		addEvent(t, db, d, "a", "NEW", 0)
		is := grown()["bc_outbox_event"]
		require.Positive(t, is.Pages)
		require.Less(t, is.Known, is.Pages)
		require.NoError(t, store.Analyze(t.Context(), db, []string{"bc_outbox_event", "bc_event_consume_log"}))
		is = grown()["bc_outbox_event"]
		require.Equal(t, is.Pages, is.Known)
	})
}
