package prepared_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// seen is what bun's query hooks are told.
type seen struct {
	mu  sync.Mutex
	all []string
}

func (s *seen) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

func (s *seen) AfterQuery(_ context.Context, ev *bun.QueryEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, fmt.Sprint(ev.Query, " ", ev.Err))
}

const byIDs = "SELECT id FROM thing WHERE id IN (?) AND name = ? ORDER BY id"

// things is a database with a table, its statements, and what its hooks see. It has one connection: who
// needs a second one waits for ever.
func things(t *testing.T, dialect string) (*bun.DB, *prepared.Statements, *seen) {
	t.Helper()
	dsn := testdb.DSN(t, dialect)
	if dialect == "postgres" {
		dsn += "&default_query_exec_mode=simple_protocol" // as bun advises
	}
	db := testdb.OpenDSN(t, dsn)
	db.DB.SetMaxOpenConns(1)
	_, err := db.ExecContext(t.Context(), "CREATE TABLE thing (id BIGINT PRIMARY KEY, name VARCHAR(40))")
	require.NoError(t, err)
	_, err = db.ExecContext(t.Context(), "INSERT INTO thing VALUES (1, 'a0'), (2, 'b?'), (3, 'b?')")
	require.NoError(t, err)
	hook := &seen{}
	db.AddQueryHook(hook) //nolint:staticcheck // the statements of this test are to be seen
	return db, prepared.New(db), hook
}

func numbers(t *testing.T, rows *sql.Rows, err error) (out []int64) {
	t.Helper()
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var n int64
		require.NoError(t, rows.Scan(&n))
		out = append(out, n)
	}
	require.NoError(t, rows.Err())
	return out
}

// kept is what the server has prepared for the only connection.
func kept(t *testing.T, db *bun.DB) (n int) {
	t.Helper()
	require.NoError(t, db.DB.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM pg_prepared_statements "+
		"WHERE statement LIKE '%thing%$1%'").Scan(&n))
	return n
}

// Statements answer alike however often they are sent, in a transaction and outside, and the hooks of
// bun see their values. PostgreSQL has prepared them from the second time on.
func TestStatementsAnswerAlikePreparedOrNot(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Dialects() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			db, s, hook := things(t, dialect)
			for i := range 3 {
				rows, err := s.On(db).QueryContext(t.Context(), byIDs, []int64{1, 2, 3}, "b?")
				require.Equal(t, []int64{2, 3}, numbers(t, rows, err))
				require.NoError(t, db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
					res, err := s.On(tx).ExecContext(ctx, "UPDATE thing SET name = ? WHERE name IN (?)", fmt.Sprint("a", i+1),
						[]string{fmt.Sprint("a", i), "z"})
					require.NoError(t, err)
					n, err := res.RowsAffected()
					require.NoError(t, err)
					require.EqualValues(t, 1, n)
					return nil
				}))
			}
			require.Contains(t, hook.all[0], "WHERE id IN (1, 2, 3) AND name = 'b?'")
			require.Equal(t, hook.all[0], hook.all[8])
			require.Contains(t, hook.all[10], "SET name = 'a3' WHERE name IN ('a2', 'z')")
			if dialect == "postgres" {
				require.Equal(t, 2, kept(t, db))
			}
		})
	}
}

// PostgreSQL does not plan anew each time for short lists.
func TestShortListsArePlannedOnce(t *testing.T) {
	t.Parallel()
	for _, ids := range [][]int64{{10}, {10, 11}, {10, 11, 12, 13, 14, 15, 16, 17, 18}} {
		t.Run(fmt.Sprint(len(ids)), func(t *testing.T) {
			t.Parallel()
			db, s, hook := things(t, "postgres")
			for _, query := range []string{"INSERT INTO thing SELECT i, 'n' FROM generate_series(10, 20000) AS g(i)", "ANALYZE thing"} {
				_, err := db.ExecContext(t.Context(), query)
				require.NoError(t, err)
			}
			for range 20 {
				rows, err := s.On(db).QueryContext(t.Context(), byIDs, ids, "n")
				require.Equal(t, ids, numbers(t, rows, err))
				res, err := s.On(db).ExecContext(t.Context(), "UPDATE thing SET name = 'n' WHERE id IN (?)", ids)
				require.NoError(t, err)
				n, err := res.RowsAffected()
				require.NoError(t, err)
				require.EqualValues(t, len(ids), n)
			}
			require.Contains(t, hook.all[len(hook.all)-1], "WHERE id IN ("+strings.Trim(strings.ReplaceAll(fmt.Sprint(ids), " ", ", "), "[]")+")")
			var anew int
			require.NoError(t, db.DB.QueryRowContext(t.Context(), "SELECT MAX(custom_plans) FROM pg_prepared_statements "+
				"WHERE statement LIKE '%thing%$1%'").Scan(&anew))
			require.Equal(t, 5, anew, "of twenty times")
		})
	}
}

// An error is the caller's, and the hooks see it.
func TestAnErrorIsTheCallers(t *testing.T) {
	t.Parallel()
	db, s, hook := things(t, "postgres")
	for range 2 {
		_, err := s.On(db).ExecContext(t.Context(), "INSERT INTO thing VALUES (?, ?)", 1, "again")
		require.ErrorContains(t, err, "duplicate key")
	}
	require.Contains(t, hook.all[1], "duplicate key")
	require.Equal(t, 1, kept(t, db))
}

// A server that has discarded what was prepared is met once.
func TestWhatAServerHasDiscardedIsMetOnce(t *testing.T) {
	t.Parallel()
	db, s, _ := things(t, "postgres")
	ask := func() error {
		_, err := s.On(db).ExecContext(t.Context(), "DELETE FROM thing WHERE id IN (?)", []int64{7})
		return err
	}
	require.NoError(t, ask())
	require.NoError(t, ask())
	_, err := db.ExecContext(t.Context(), "DISCARD ALL")
	require.NoError(t, err)
	require.ErrorContains(t, ask(), "26000")
	require.NoError(t, ask())
}

// SQLite meets a change of the tables without an error, and forgets nothing.
func TestAChangeOfTheTablesForgetsNothing(t *testing.T) {
	t.Parallel()
	db, s, _ := things(t, "sqlite")
	for _, change := range []string{"", "", "CREATE INDEX thing_name ON thing (name)", "ALTER TABLE thing ADD COLUMN more TEXT", "VACUUM"} {
		if change != "" {
			_, err := db.ExecContext(t.Context(), change)
			require.NoError(t, err)
		}
		rows, err := s.On(db).QueryContext(t.Context(), byIDs, []int64{1, 2}, "b?")
		require.Equal(t, []int64{2}, numbers(t, rows, err), change)
		rows, err = s.On(db).QueryContext(t.Context(), "SELECT id FROM thing WHERE name IN (?)", []string{`a0`, `"quoted"`, `b?`})
		require.Len(t, numbers(t, rows, err), 3, change)
	}
}

// A text that is another one each time is not prepared without end.
func TestNotWithoutEnd(t *testing.T) {
	t.Parallel()
	db, s, _ := things(t, "postgres")
	for i := range 200 {
		rows, err := s.On(db).QueryContext(t.Context(), fmt.Sprintf("SELECT id FROM thing WHERE id = ? + %d", i), 0)
		numbers(t, rows, err)
	}
	require.Less(t, kept(t, db), 100)
}

// A database that does not answer is not asked again and again, and nobody waits for it.
func TestADatabaseThatIsAwayIsNotAskedAgainAndAgain(t *testing.T) {
	t.Parallel()
	db, s, _ := things(t, "postgres")
	conn, err := db.DB.Conn(t.Context()) // the only one
	require.NoError(t, err)
	defer conn.Close()
	for range 20 {
		s.Learn(t.Context())
	}
	require.EqualValues(t, 1, db.DB.Stats().WaitCount)
}
