package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// Deliveries that were left to instances that know the schema version are found by their consumers, and page by page.
func TestDeliveriesThatWereLeftAreFound(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		ctx := f.t.Context()
		anyLeft := func(consumers ...string) (found bool) {
			cond, args := f.log.Left.Any(consumers)
			require.NoError(f.t, f.db.QueryRowContext(ctx, "SELECT CASE WHEN "+cond+" THEN 1 ELSE 0 END", args...).Scan(&found))
			return found
		}
		f.waiting("due", "0")
		require.False(f.t, anyLeft("C", "D"))
		for _, id := range []string{"a", "b", "c"} {
			f.waiting(id, id)
			f.set(id, "next_retry_at = "+f.d.Never)
		}
		f.set("c", "status = 'DEAD'") // an operator has decided
		testdb.Exec(f.t, f.db, "UPDATE bc_outbox_event SET schema_version = 3 WHERE event_id = 'a'")
		testdb.Exec(f.t, f.db, "DELETE FROM bc_outbox_event WHERE event_id = 'b'")
		require.True(f.t, anyLeft("D", "C"))
		require.False(f.t, anyLeft("D"))

		first, err := f.log.Left.Page(ctx, f.db, "C", 0, 1)
		require.NoError(f.t, err)
		require.Len(f.t, first, 1)
		require.Equal(f.t, []any{"C", "a", "a.b", 3},
			[]any{first[0].Consumer, first[0].EventID, first[0].EventType, first[0].SchemaVersion})
		rest, err := f.log.Left.Page(ctx, f.db, "C", first[0].ID, 10)
		require.NoError(f.t, err)
		require.Len(f.t, rest, 1)
		require.Equal(f.t, []any{"b", 0}, []any{rest[0].EventID, rest[0].SchemaVersion}, "its event is gone")

		f.set("b", "updated_at = "+f.d.After, dialect.Micro(-2*time.Hour))
		long, err := f.log.Left.Long(ctx, f.db, time.Hour)
		require.NoError(f.t, err)
		require.Empty(f.t, long, "the consumer is not registered")
		testdb.Exec(f.t, f.db, "INSERT INTO bc_consumer (name, event_types, aliases) VALUES ('C', '[]', '[]'), ('D', '[]', '[]')")
		long, err = f.log.Left.Long(ctx, f.db, time.Hour)
		require.NoError(f.t, err)
		require.Len(f.t, long, 1)
		require.Equal(f.t, "b", long[0].EventID)
		require.InDelta(f.t, 2*time.Hour, long[0].For, float64(10*time.Minute))
		long, err = f.log.Left.Long(ctx, f.db, 3*time.Hour)
		require.NoError(f.t, err)
		require.Empty(f.t, long)
	})
}
