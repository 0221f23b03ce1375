package migrations_test

import (
	"context"
	"crypto/md5"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"golang.org/x/sync/errgroup"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/migrations"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// eachEmpty runs fn on an empty database of every dialect.
func eachEmpty(t *testing.T, fn func(t *testing.T, dialect, dsn string, db *bun.DB)) {
	t.Helper()
	for _, d := range testdb.Dialects() {
		t.Run(d, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.DSN(t, d)
			fn(t, testdb.Dialect(d), dsn, testdb.OpenDSN(t, dsn))
		})
	}
}

func applied(t *testing.T, db *bun.DB) []migrations.Migration {
	t.Helper()
	list, err := migrations.Status(t.Context(), db)
	require.NoError(t, err)
	require.NotEmpty(t, list)
	return list
}

func TestUpAppliesOnceAndStatusTells(t *testing.T) {
	t.Parallel()
	eachEmpty(t, func(t *testing.T, _, _ string, db *bun.DB) {
		for _, m := range applied(t, db) {
			require.True(t, m.AppliedAt.IsZero(), "nothing is applied yet, and Status writes nothing")
		}
		require.NoError(t, migrations.Up(t.Context(), db))
		first := applied(t, db)
		for _, m := range first {
			require.WithinDuration(t, time.Now(), m.AppliedAt, time.Minute, "UTC, by the database's clock")
		}
		require.NoError(t, migrations.Up(t.Context(), db))
		require.Equal(t, first, applied(t, db), "a second Up changes nothing")
	})
}

func TestManyProcessesMayMigrateAtOnce(t *testing.T) {
	t.Parallel()
	eachEmpty(t, func(t *testing.T, _, dsn string, _ *bun.DB) {
		var g errgroup.Group
		for range 5 {
			db := testdb.OpenDSN(t, dsn)
			g.Go(func() error { return migrations.Up(context.Background(), db) })
		}
		require.NoError(t, g.Wait())
	})
}

// statements are those of the first migration file.
func statements(t *testing.T, dialect string) []string {
	t.Helper()
	files, err := migrations.FS(dialect)
	require.NoError(t, err)
	text, err := fs.ReadFile(files, "0001_bluecone.sql")
	require.NoError(t, err)
	var out []string
	for s := range strings.SplitSeq(string(text), ";\n") {
		if strings.Contains(s, "CREATE") {
			out = append(out, s)
		}
	}
	return out
}

// A process that was killed while it migrated has left some tables and no version: MySQL
// commits every statement by itself.
func TestUpFinishesWhatAKilledProcessBegan(t *testing.T) {
	t.Parallel()
	eachEmpty(t, func(t *testing.T, dialect, _ string, db *bun.DB) {
		all := statements(t, dialect)
		for _, s := range all[:len(all)/2] {
			_, err := db.ExecContext(t.Context(), s)
			require.NoError(t, err)
		}
		require.NoError(t, migrations.Up(t.Context(), db))
		_, err := db.ExecContext(t.Context(), "SELECT COUNT(*) FROM bc_job_run") // the last table
		require.NoError(t, err)
	})
}

// The lock of a process that dies goes with its connection.
func TestUpWaitsForTheHolderOfTheLockAndOutlivesIt(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"mysql", "mysql9"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			upWaits(t, testdb.Open(t, name, testdb.Bare))
		})
	}
}

func upWaits(t *testing.T, db *bun.DB) {
	t.Helper()
	holder, err := db.Conn(t.Context())
	require.NoError(t, err)
	var database string
	require.NoError(t, holder.QueryRowContext(t.Context(), "SELECT DATABASE()").Scan(&database))
	name := fmt.Sprintf("bluecone.migrate.%x", md5.Sum([]byte(database))) // older releases hold a lock of this name
	_, err = holder.ExecContext(t.Context(), "SELECT GET_LOCK(?, 1)", name)
	require.NoError(t, err)
	var id int
	require.NoError(t, holder.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&id))
	done := make(chan error, 1)
	go func() { done <- migrations.Up(context.Background(), db) }()
	require.Eventually(t, func() bool {
		var waiting int
		err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock'").Scan(&waiting)
		return err == nil && waiting > 0
	}, time.Minute, 5*time.Millisecond, "Up waits")
	select {
	case err := <-done:
		t.Fatalf("Up did not wait: %v", err)
	default:
	}
	_, err = db.ExecContext(t.Context(), "KILL ?", id)
	require.NoError(t, err)
	require.NoError(t, <-done)
	_ = holder.Close()
}

func TestUpRefusesWhatItDidNotWrite(t *testing.T) {
	t.Parallel()
	eachEmpty(t, func(t *testing.T, _, _ string, db *bun.DB) {
		require.NoError(t, migrations.Up(t.Context(), db))
		_, err := db.ExecContext(t.Context(), "UPDATE bc_schema_version SET checksum = 'other' WHERE version = 1")
		require.NoError(t, err)
		require.ErrorContains(t, migrations.Up(t.Context(), db), "0001_bluecone.sql has changed since it was applied")

		_, err = db.ExecContext(t.Context(), "UPDATE bc_schema_version SET version = 99 WHERE version = 1")
		require.NoError(t, err)
		require.ErrorContains(t, migrations.Up(t.Context(), db), "the database is ahead: it has version 99")
	})
}

// A row of bc_schema_version that nobody has written keeps nobody from knowing what is applied, nor from applying the rest.
func TestMalformedVersionsKeepBackNoMigration(t *testing.T) {
	t.Parallel()
	eachEmpty(t, func(t *testing.T, dialect, _ string, db *bun.DB) {
		require.NoError(t, migrations.Up(t.Context(), db))
		exec := func(query string) {
			_, err := db.ExecContext(t.Context(), query)
			require.NoError(t, err, query)
		}
		exec("INSERT INTO bc_schema_version (version, name, checksum, applied_at) VALUES (-1, '', '', '2020-01-01 00:00:00')")
		exec("INSERT INTO bc_schema_version (version, name, checksum, applied_at) VALUES (0, '?', '?', '2020-01-01 00:00:00')")
		if dialect == "sqlite" { // the others store no such time
			exec("UPDATE bc_schema_version SET applied_at = '?' WHERE version < 1")
		}
		exec("DELETE FROM bc_schema_version WHERE version = 2") // of which every statement can be repeated
		all := applied(t, db)
		require.NotEmpty(t, all)
		for _, m := range all {
			require.Equal(t, m.Version == 2, m.AppliedAt.IsZero(), m.Version)
		}
		require.NoError(t, migrations.Up(t.Context(), db))
		require.NotZero(t, applied(t, db)[1].AppliedAt)
	})
}

func TestFSRefusesAnUnknownDialect(t *testing.T) {
	t.Parallel()
	_, err := migrations.FS("oracle")
	require.ErrorContains(t, err, `"oracle" is unknown: it must be mysql, postgres or sqlite`)
}

func TestADatabaseThatIsNilIsAnError(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, migrations.Up(t.Context(), nil), "db is nil: give it the *bun.DB")
	_, err := migrations.Status(t.Context(), nil)
	require.ErrorContains(t, err, "db is nil")
}
