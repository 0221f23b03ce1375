package faultdb_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"modernc.org/sqlite"

	"github.com/bluecone-go/bluecone/internal/faultdb"
)

// file is a database whose statements go through the hook.
func file(t *testing.T, h faultdb.Hook) *sql.DB {
	t.Helper()
	db := sql.OpenDB(faultdb.Wrap(dsn{filepath.Join(t.TempDir(), "test.db"), &sqlite.Driver{}}, h))
	t.Cleanup(func() { _ = db.Close() })
	return db
}

type dsn struct {
	path string
	d    driver.Driver
}

func (c dsn) Connect(context.Context) (driver.Conn, error) { return c.d.Open(c.path) }
func (c dsn) Driver() driver.Driver                        { return c.d }

func TestHookSeesEveryStepInOrder(t *testing.T) {
	t.Parallel()
	var seen []string
	note := func(when string) func(context.Context, faultdb.Step) error {
		return func(_ context.Context, s faultdb.Step) error {
			seen = append(seen, when+" "+string(s.Op)+" "+s.Query)
			return nil
		}
	}
	db := file(t, faultdb.Hook{Before: note("before"), After: note("after")})
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), "CREATE TABLE x (id INT)")
	require.NoError(t, err)
	var n int
	require.NoError(t, tx.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM x").Scan(&n))
	require.NoError(t, tx.Commit())
	require.Equal(t, []string{
		"before BEGIN ", "after BEGIN ", "before EXEC CREATE TABLE x (id INT)", "after EXEC CREATE TABLE x (id INT)",
		"before QUERY SELECT COUNT(*) FROM x", "after QUERY SELECT COUNT(*) FROM x", "before COMMIT ", "after COMMIT ",
	}, seen)
}

// A cut before COMMIT loses the transaction, one after it only the answer.
func TestCutAtCommit(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		cut := func(_ context.Context, s faultdb.Step) error {
			if s.Op == faultdb.Commit {
				return faultdb.ErrCut
			}
			return nil
		}
		h := faultdb.Hook{Before: cut}
		if after {
			h = faultdb.Hook{After: cut}
		}
		db := file(t, h)
		_, err := db.ExecContext(t.Context(), "CREATE TABLE x (id INT)")
		require.NoError(t, err)
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), "INSERT INTO x VALUES (1)")
		require.NoError(t, err)
		want, rows := driver.ErrBadConn, 0
		if after {
			want, rows = io.ErrUnexpectedEOF, 1
		}
		require.ErrorIs(t, tx.Commit(), want)
		var n int
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM x").Scan(&n), "on a new connection")
		require.Equal(t, rows, n)
	}
}

func TestHooksErrorIsTheAnswer(t *testing.T) {
	t.Parallel()
	mine := errors.New("mine")
	db := file(t, faultdb.Hook{Before: func(_ context.Context, s faultdb.Step) error {
		if s.Op == faultdb.Exec {
			return mine
		}
		return nil
	}})
	_, err := db.ExecContext(t.Context(), "CREATE TABLE x (id INT)")
	require.ErrorIs(t, err, mine)
}
