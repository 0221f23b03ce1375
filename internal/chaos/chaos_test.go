package chaos_test

import (
	"context"
	"database/sql"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/chaos"
	"github.com/bluecone-go/bluecone/internal/dbserver"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// through returns a proxy to the database of a DSN, and the DSN of the way through it.
func through(t *testing.T, dialect, dsn string) (*chaos.Proxy, string) {
	t.Helper()
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	p, err := chaos.Listen(testdb.Dialect(dialect), u.Host)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	u.Host = p.Addr()
	return p, u.String()
}

// pool opens the database with the timeouts that a program should have.
func pool(t *testing.T, dialect, dsn string) *sql.DB {
	t.Helper()
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	q := u.Query()
	q.Set("connect_timeout", "1") // database/sql waits for one new connection at a time
	u.RawQuery = q.Encode()
	driver, dsn := "pgx", u.String()
	if testdb.Dialect(dialect) == "mysql" {
		cfg := dbserver.MySQLConfig(u)
		cfg.Timeout, cfg.ReadTimeout, cfg.WriteTimeout = silence, silence, silence
		driver, dsn = "mysql", cfg.FormatDSN()
	}
	db, err := sql.Open(driver, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() }) // a black hole does not say goodbye
	return db
}

const silence = time.Second

// Each kind does what it says, whatever way the COMMIT comes.
func TestKinds(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Servers() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.DSN(t, dialect)
			direct := testdb.OpenDSN(t, dsn)
			_, err := direct.ExecContext(t.Context(), "CREATE TABLE t (id INT PRIMARY KEY)")
			require.NoError(t, err)
			proxy, way := through(t, dialect, dsn)
			db := pool(t, dialect, way)
			id := 0
			for _, c := range []struct {
				fault            chaos.Fault
				error, committed bool
			}{
				{chaos.Fault{}, false, true},
				{chaos.Fault{Kind: chaos.CutBeforeCommit}, true, false},
				{chaos.Fault{Kind: chaos.CutAfterCommit}, true, true},
				{chaos.Fault{Kind: chaos.CutAfterCommit, Every: 2}, false, true},
				{chaos.Fault{Kind: chaos.Delay, Delay: 10 * time.Millisecond}, false, true},
				{chaos.Fault{Kind: chaos.BlackHole}, true, false},
				{chaos.Fault{Kind: chaos.Reset}, true, false},
				{chaos.Fault{}, false, true},
			} {
				for _, prepared := range []bool{false, true} {
					if prepared && (testdb.Dialect(dialect) == "mysql" || c.fault.Every > 1) {
						continue // MySQL's driver never prepares a COMMIT
					}
					id++
					conn := begin(t, db)
					_, err := conn.ExecContext(t.Context(), "INSERT INTO t VALUES ("+text(id)+")")
					require.NoError(t, err)
					var commit *sql.Stmt
					if prepared {
						commit, err = conn.PrepareContext(t.Context(), "COMMIT")
						require.NoError(t, err)
					}
					proxy.Break(c.fault)
					ctx, cancel := context.WithTimeout(t.Context(), 2*silence)
					if prepared {
						_, err = commit.ExecContext(ctx)
					} else {
						_, err = conn.ExecContext(ctx, "COMMIT")
					}
					require.Equal(t, c.error, err != nil, "%v: %v", c.fault.Kind, err)
					_ = conn.Close()
					cancel()
					proxy.Repair()
					var n int
					require.NoError(t, direct.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM t WHERE id = "+text(id)).Scan(&n))
					require.Equal(t, c.committed, n == 1, "%v, prepared: %v", c.fault.Kind, prepared)
				}
			}
			require.Positive(t, proxy.Cut())
		})
	}
}

// begin opens a transaction by hand, on a connection that works.
func begin(t *testing.T, db *sql.DB) *sql.Conn {
	t.Helper()
	for deadline := time.Now().Add(testdb.Patience()); ; {
		ctx, cancel := context.WithTimeout(t.Context(), 2*silence)
		conn, err := db.Conn(ctx)
		if err == nil {
			if _, err = conn.ExecContext(ctx, "BEGIN"); err == nil {
				cancel()
				return conn
			}
			_ = conn.Close()
		}
		cancel()
		require.True(t, time.Now().Before(deadline), "%v", err)
	}
}

func text(id int) string { return strconv.Itoa(id) }
