package store

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// A column that a migration adds, and that nobody has put on the list, would not be missed.
func TestEveryColumnIsOnTheList(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		d, err := dialect.Of(db)
		require.NoError(t, err)
		require.NoError(t, CheckTables(t.Context(), db, d))
		for _, c := range columns {
			names := c.names
			if d.Name == "mysql" {
				names += c.mysql
			}
			require.Equal(t, slices.Sorted(slices.Values(columnsOf(t, db, c.table))), slices.Sorted(slices.Values(strings.Split(names, ", "))),
				c.table)
		}
	})
}

func columnsOf(t *testing.T, db *bun.DB, table string) []string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "SELECT * FROM "+table+" WHERE 1 = 0")
	require.NoError(t, err)
	defer rows.Close()
	names, err := rows.Columns()
	require.NoError(t, err)
	require.NoError(t, rows.Err())
	return names
}
