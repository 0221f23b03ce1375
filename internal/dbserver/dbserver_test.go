package dbserver_test

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/bluecone-go/bluecone/internal/dbserver"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A server outlives all that is done to it, with what it has committed.
func TestServerIsMistreated(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it starts servers")
	}
	for _, dialect := range testdb.Servers() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			opts := []dbserver.Option{dbserver.Connections(20)}
			if dbserver.CanMount() {
				opts = append(opts, dbserver.OwnDisk(400<<20))
			}
			clock := dbserver.CanFakeTime() && dialect != "mysql9" // MySQL 9 with libfaketime takes half a minute to start
			if clock {
				opts = append(opts, dbserver.OwnClock())
			}
			s, err := dbserver.Start(dialect, dbserver.Durable, opts...)
			if err != nil {
				testdb.Unavailable(t, dialect, err)
			}
			t.Cleanup(s.Stop)
			db := open(t, dialect, s)
			within := func(limit time.Duration, query string) error {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				_, err := db.ExecContext(ctx, query)
				return err
			}
			exec := func(query string) error { return within(5*time.Minute, query) }
			if dialect != "postgres" {
				require.NoError(t, exec("CREATE DATABASE x"))
			} else {
				require.NoError(t, exec("CREATE SCHEMA x"))
			}
			require.NoError(t, exec("CREATE TABLE x.t (id INT PRIMARY KEY)"))
			back := func() {
				require.Eventually(t, func() bool { return within(3*time.Second, "SELECT 1") == nil }, 5*time.Minute, 20*time.Millisecond)
			}

			require.NoError(t, exec("INSERT INTO x.t VALUES (1)"))
			s.Kill()
			require.False(t, s.Running())
			require.Error(t, within(3*time.Second, "SELECT 1"))
			require.NoError(t, s.Restart())
			back()
			if dialect == "postgres" {
				killBusy(t, s, db)
				back()
			}

			require.NoError(t, exec("INSERT INTO x.t VALUES (2)"))
			s.Freeze()
			require.Error(t, within(time.Second, "INSERT INTO x.t VALUES (3)"))
			s.Thaw()
			back()

			if clock {
				require.NoError(t, s.SetClock(-2*time.Hour))
				require.Eventually(t, func() bool { return behind(t, db) > time.Hour }, 5*time.Minute, 50*time.Millisecond)
			}
			if dbserver.CanMount() {
				require.NoError(t, s.FillDisk())
				big := "CREATE TABLE x.big AS SELECT a.table_name FROM information_schema.columns a, information_schema.columns b"
				require.Error(t, within(3*time.Second, big))
				require.NoError(t, s.FreeDisk())
				if !s.Running() {
					require.NoError(t, s.Restart())
				}
				back()
			}
			var n int
			require.NoError(t, db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM x.t WHERE id < 3").Scan(&n))
			require.Equal(t, 2, n)
		})
	}
}

// killBusy kills a PostgreSQL while one of its processes is busy, which does not notice for some seconds, and starts it again.
func killBusy(t *testing.T, s *dbserver.Server, db *sql.DB) {
	t.Helper()
	var dir string
	require.NoError(t, db.QueryRowContext(t.Context(), "SHOW data_directory").Scan(&dir))
	text, err := os.ReadFile(filepath.Join(dir, "postmaster.pid"))
	require.NoError(t, err)
	line, _, _ := strings.Cut(string(text), "\n")
	postmaster, err := strconv.Atoi(line)
	require.NoError(t, err)
	busy := make(chan error, 1)
	go func() {
		_, err := db.ExecContext(context.Background(), "SELECT repeat('a', 12000000) ~ '(a?)*b'") // it looks at nothing else
		busy <- err
	}()
	require.Eventually(t, func() bool {
		var n int
		err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM pg_stat_activity "+
			"WHERE state = 'active' AND query LIKE 'SELECT repeat%'").Scan(&n)
		return err == nil && n == 1
	}, testdb.Patience(), time.Millisecond)
	require.NoError(t, syscall.Kill(postmaster, syscall.SIGKILL))
	require.Eventually(t, func() bool { return !s.Running() }, testdb.Patience(), time.Millisecond)
	require.NoError(t, s.Restart())
	<-busy
}

// behind is how far the server's clock is behind ours.
func behind(t *testing.T, db *sql.DB) time.Duration {
	t.Helper()
	query := map[bool]string{true: "SELECT UNIX_TIMESTAMP()", false: "SELECT extract(epoch FROM clock_timestamp())::bigint"}
	var now int64
	if db.QueryRowContext(t.Context(), query[true]).Scan(&now) != nil {
		require.NoError(t, db.QueryRowContext(t.Context(), query[false]).Scan(&now))
	}
	return time.Since(time.Unix(now, 0))
}

func open(t *testing.T, dialect string, s *dbserver.Server) *sql.DB {
	t.Helper()
	driver, dsn := "pgx", s.URL.String()
	if dialect != "postgres" {
		driver, dsn = "mysql", dbserver.MySQLConfig(s.URL).FormatDSN()
	}
	db, err := sql.Open(driver, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}
