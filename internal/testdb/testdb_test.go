package testdb

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/needs"
	"github.com/bluecone-go/bluecone/migrations"
)

const (
	childEnv    = "BLUECONE_TEST_TESTDB_CHILD"
	childServer = "BLUECONE_TEST_TESTDB_SERVER"
)

func TestMain(m *testing.M) { Main(m) }

func TestEveryTestHasADatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	Each(t, func(t *testing.T, db *bun.DB) {
		other := Open(t, Server(t, db))
		_, err := db.ExecContext(t.Context(), "INSERT INTO bc_consumer (name, event_types, aliases) VALUES ('x', '[]', '[]')")
		require.NoError(t, err)
		var n int
		require.NoError(t, other.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM bc_consumer").Scan(&n))
		require.Zero(t, n)
	})
}

// A copy of the migrated database has what the migrations make.
func TestCopyIsAMigratedDatabase(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"mysql", "mysql9"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			migrated, copied := Open(t, name, Bare), Open(t, name)
			require.NoError(t, migrations.Up(t.Context(), migrated))
			var tables []string
			require.NoError(t, migrated.NewRaw("SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()").
				Scan(t.Context(), &tables))
			require.Greater(t, len(tables), 15)
			for _, table := range tables {
				require.Equal(t, definition(t, migrated, table), definition(t, copied, table))
				rows := "SELECT COUNT(*) FROM " + table
				require.Equal(t, Count(t, migrated, rows), Count(t, copied, rows), table)
			}
			all, err := migrations.Status(t.Context(), copied)
			require.NoError(t, err)
			for _, m := range all {
				require.False(t, m.AppliedAt.IsZero(), m.Name)
			}
		})
	}
}

func definition(t *testing.T, db *bun.DB, table string) (text string) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), "SHOW CREATE TABLE "+table).Scan(new(string), &text))
	return text
}

// The CI must not pass because a server was not there.
func TestRequiredDialectsAreNotSkipped(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]bool{"": false, "mysql": true, "postgres,sqlite": false, "postgres, mysql": true, "mysql8": false} {
		require.Equal(t, want, needs.Listed(list, "mysql"), list)
	}
	for _, c := range []struct{ require, says string }{{"", "--- SKIP"}, {"mysql", "--- FAIL"}} {
		out := child(t, "TestChildUsesMySQL", "BLUECONE_TEST_MYSQL_DSN=mysql:///", "BLUECONE_TEST_REQUIRE="+c.require)
		require.Contains(t, out, c.says)
		require.Contains(t, out, "must read mysql://user:password@host:port/")
	}
}

func TestDSNsOfLentServers(t *testing.T) {
	t.Parallel()
	u, err := adminURL("postgres", "postgres://me:secret@127.0.0.1:5432")
	require.NoError(t, err)
	require.Equal(t, "/postgres", u.Path)
	for _, dsn := range []string{
		"me:secret@tcp(127.0.0.1)/x", "mysql://", "postgres://me:secret@127.0.0.1/",
		"mysql://me:secret@127.0.0.1:port/",
	} {
		_, err := adminURL("mysql", dsn)
		require.ErrorContains(t, err, "BLUECONE_TEST_MYSQL_DSN must read")
		require.NotContains(t, err.Error(), "secret")
	}
}

func child(t *testing.T, test string, env ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run", "^"+test+"$")
	cmd.Env = append(append(os.Environ(), childEnv+"=1", "BLUECONE_TEST_ONLY="), env...)
	out, _ := cmd.CombinedOutput() // its exit status is what the output says
	return string(out)
}

// TestChildUsesMySQL runs in child processes only.
func TestChildUsesMySQL(t *testing.T) {
	if os.Getenv(childEnv) == "" {
		t.Skip("it is run by other tests")
	}
	t.Parallel()
	name := os.Getenv(childServer)
	if name == "" {
		name = "mysql"
	}
	db := Open(t, name)
	var pidFile string
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT @@pid_file").Scan(&pidFile))
	pid, err := os.ReadFile(pidFile)
	require.NoError(t, err)
	_, _ = fmt.Fprintln(os.Stdout, "server", strings.TrimSpace(string(pid)))
	if os.Getenv(childEnv) == "hang" {
		select {}
	}
}

// A test process that is killed takes its servers with it.
func TestServersDieWithTheirProcess(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"mysql", "mysql9"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if os.Getenv("BLUECONE_TEST_"+strings.ToUpper(name)+"_DSN") != "" {
				t.Skip("a lent server lives on")
			}
			Open(t, name) // it can be had
			diesWithItsProcess(t, name)
		})
	}
}

func diesWithItsProcess(t *testing.T, name string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run", "^TestChildUsesMySQL$")
	cmd.Env = append(os.Environ(), childEnv+"=hang", childServer+"="+name)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var pid int
	for pid == 0 {
		var word string
		_, err := fmt.Fscan(out, &word)
		require.NoError(t, err, "no server was started: %s", word)
		if word == "server" {
			_, err = fmt.Fscan(out, &pid)
			require.NoError(t, err)
		}
	}
	require.NoError(t, syscall.Kill(pid, 0), "the server lives")
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	require.Eventually(t, func() bool { return syscall.Kill(pid, 0) != nil || zombie(pid) }, 5*time.Minute, 10*time.Millisecond)
}

// zombie reports whether nobody has asked for the exit status of a process that has ended.
func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(stat), ") Z ")
}
