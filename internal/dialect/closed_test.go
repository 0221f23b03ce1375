package dialect_test

import (
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// A closed pool is told by the error of database/sql itself, whichever driver it is of, and not by words.
func TestAClosedPoolIsKnown(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		ctx := t.Context()
		stmt, err := db.DB.PrepareContext(ctx, "SELECT 1")
		require.NoError(t, err)
		defer stmt.Close()
		require.NoError(t, db.PingContext(ctx))
		require.NoError(t, db.Close())
		_, query := db.ExecContext(ctx, "SELECT 1")
		_, begin := db.BeginTx(ctx, nil)
		_, prepared := stmt.ExecContext(ctx)
		for _, err := range []error{db.PingContext(ctx), query, begin, prepared, fmt.Errorf("look: %w", query)} {
			require.True(t, dialect.IsClosed(err), "%v", err)
			require.True(t, dialect.IsAway(err), "%v", err)
		}
		for _, err := range []error{nil, sql.ErrConnDone, sql.ErrTxDone, errors.New("sql: database is closed")} {
			require.False(t, dialect.IsClosed(err), "%v", err)
		}
	})
}
