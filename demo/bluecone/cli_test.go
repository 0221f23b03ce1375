package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/testdb"
)

// Whatever is wrong with a call is said in one line on standard error, without the password; the
// exit status is 2 for a mistake in the call and 1 for everything else.
func TestWrongCallsSayWhatIsWrongInOneLine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	db := "sqlite://" + filepath.Join(dir, "x.db")
	for name, c := range map[string]struct {
		args []string
		env  string
		code int
		says string
	}{
		"command":  {args: []string{"sevre"}, code: 2, says: `the command "sevre" is unknown: use serve`},
		"flag":     {args: []string{"--dns", "x"}, code: 2, says: "flag provided but not defined: -dns (see --help)"},
		"argument": {args: []string{"--dsn", db, "extra"}, code: 2, says: `the argument "extra" is not expected`},
		"scenario": {
			args: []string{"--scenario", "checkout"}, code: 2,
			says: `the scenario "checkout" is unknown; the scenarios are checkout-pay, cancel`,
		},
		"trace":               {args: []string{"--trace", "jaeger"}, code: 2, says: `--trace "jaeger" is unknown: use stdout or otlp`},
		"no dsn":              {args: []string{"serve"}, code: 2, says: "--dsn is missing"},
		"dsn without scheme":  {args: []string{"--dsn", "localhost"}, code: 2, says: "it names no database; use sqlite:///abs"},
		"dsn of another kind": {args: []string{"--dsn", "oracle://scott:tiger@localhost/x"}, code: 2, says: `"oracle" is not supported`},
		"dsn not a url":       {args: []string{"--dsn", "mysql://root:tiger@127.0.0.1:port/x"}, code: 2, says: "it is not a URL"},
		"dsn without name": {
			args: []string{"--dsn", "mysql://root:tiger@127.0.0.1:3306/"}, code: 2,
			says: "mysql wants user, host and database name",
		},
		"relative sqlite": {args: []string{"--dsn", "sqlite://demo.db"}, code: 2, says: "sqlite wants an absolute path"},
		"nobody listens": {
			args: []string{"--dsn", "mysql://root:tiger@127.0.0.1:1/x"}, code: 1,
			says: "cannot reach mysql://root:xxxxx@127.0.0.1:1/x",
		},
		"nobody listens, pg": {
			args: []string{"serve", "--dsn", "postgres://root:tiger@127.0.0.1:1/x"}, code: 1,
			says: "cannot reach postgres://root:xxxxx@127.0.0.1:1/x",
		},
		"no such folder": {
			args: []string{"--dsn", "sqlite://" + filepath.Join(dir, "no", "such", "x.db")}, code: 1,
			says: "cannot reach sqlite://",
		},
		"node":    {args: []string{"serve", "--dsn", db, "--node", "a b"}, code: 2, says: `--node "a b" must be a plain word`},
		"address": {args: []string{"serve", "--dsn", db, "--addr", "127.0.0.1:99999"}, code: 1, says: "listen: "},
		"config missing": {
			args: []string{"serve", "--dsn", db, "--config", filepath.Join(dir, "none.yaml")}, code: 2,
			says: "none.yaml: no such file",
		},
		"config key": {
			args: []string{"serve", "--dsn", db, "--config", write("key.yaml", "bluecone:\n  outbox:\n    batchsize: 1\n")}, code: 2,
			says: `the key "bluecone.outbox.batchsize" is unknown; the keys are bluecone.alert.console`,
		},
		"config value": {
			args: []string{"serve", "--dsn", db, "--config", write("value.yaml", "bluecone:\n  outbox:\n    batch-size: many\n")}, code: 2,
			says: `bluecone.outbox.batch-size: "many" is not a whole number between 1 and 999`,
		},
		"config yaml": {args: []string{"serve", "--dsn", db, "--config", write("yaml.yaml", "bluecone: [")}, code: 2, says: "yaml.yaml: "},
		"environment key": {
			args: []string{"serve", "--dsn", db}, env: "BLUECONE_OUTBOX_BATCHSIZE=1", code: 2,
			says: "the environment variable BLUECONE_OUTBOX_BATCHSIZE is unknown",
		},
		"environment value": {
			args: []string{"serve", "--dsn", db}, env: "BLUECONE_ASSET_LOCK_TIMEOUT_MINUTES=-5", code: 2,
			says: `"-5" is not a positive number`,
		},
		"doctor without dsn": {args: []string{"doctor"}, code: 2, says: "--dsn is missing"},
		"check without dsn":  {args: []string{"check"}, code: 2, says: "--dsn is missing"},
		"check, no tables":   {args: []string{"check", "--dsn", "sqlite://" + filepath.Join(dir, "empty.db")}, code: 1, says: "invariant: "},
		"doctor, nobody": {
			args: []string{"doctor", "--dsn", "mysql://root:tiger@127.0.0.1:1/x"}, code: 1,
			says: "cannot reach mysql://root:xxxxx@127.0.0.1:1/x",
		},
		"relay, no broker": {
			args: []string{"serve", "--dsn", db, "--relay", "mq://u:tiger@h:1/x"}, code: 2,
			says: "--relay: wrong URL of a broker: nobody knows its scheme; write nats://host:port/STREAM",
		},
		"relay, option": {
			args: []string{"serve", "--dsn", db, "--relay", "nats://u:tiger@h:1/S?x=1"}, code: 2, says: `it has the option "x", which is unknown`,
		},
		"relay, types": {
			args: []string{"serve", "--dsn", db, "--relay", "nats://h:1/S", "--relay-types", "order.paid,shop.*"}, code: 2,
			says: `"shop.*" is no event of the monolith: there are order.checkout_locked`,
		},
		"types, no relay": {args: []string{"serve", "--dsn", db, "--relay-types", "order.*"}, code: 2, says: "--relay-types needs --relay"},
		"points":          {args: []string{"points", "--dsn", db}, code: 2, says: "--dsn, --from, --ledger and --token are required"},
		"points nowhere":  {args: []string{"serve", "--dsn", db, "--points", "here"}, code: 2, says: `--points "here": the points need`},
		"ledger":          {args: []string{"ledger", "--dsn", db}, code: 2, says: "--dsn and --tokens are required"},
		"ledger tokens":   {args: []string{"ledger", "--dsn", db, "--tokens", write("t.json", "{")}, code: 2, says: "--tokens: "},
		"loyalty":         {args: []string{"loyalty", "--dsn", db}, code: 2, says: "--dsn and --inbox are required"},
		"inbox, stream": {
			args: []string{"loyalty", "--dsn", db, "--inbox", "nats://u:tiger@h:1/x.y"}, code: 2,
			says: `--inbox: wrong URL of a broker: the stream is "x.y"`,
		},
		"cron": {args: []string{"serve", "--dsn", db}, env: "BLUECONE_OUTBOX_PUBLISHER_CRON=TZ=0", code: 2, says: "names a time zone"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := program(t, []string{c.env}, c.args...)
			require.Equal(t, c.code, code, stderr)
			require.Contains(t, stderr, c.says)
			require.Equal(t, 1, strings.Count(stderr, "\n"), "one line: %s", stderr)
			require.Empty(t, stdout)
			require.NotContains(t, stderr, "tiger", "the password")
		})
	}
}

func TestHelpIsNoMistake(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"", "serve", "doctor", "loyalty", "points", "ledger"} {
		code, stdout, stderr := program(t, nil, append(strings.Fields(command), "--help")...)
		require.Equal(t, 0, code)
		require.Contains(t, stdout, "-dsn")
		require.Empty(t, stderr)
	}
}

// The doctor reads, says what is wrong and how to fix it, and answers 1 if something is a FAIL.
func TestDoctorCommand(t *testing.T) {
	t.Parallel()
	dsn := "sqlite://" + filepath.Join(t.TempDir(), "x.db")
	code, stdout, stderr := program(t, nil, "doctor", "--dsn", dsn)
	require.Equal(t, 1, code)
	require.Contains(t, stdout, "not applied: 0001_bluecone")
	require.Contains(t, stderr, "not fit")
	code, _, stderr = program(t, nil, "--dsn", dsn, "--scenario", "cancel")
	require.Equal(t, 0, code, stderr)
	code, stdout, stderr = program(t, nil, "doctor", "--dsn", dsn, "--json")
	require.Equal(t, 0, code, stderr)
	var report []struct{ Check, Level, Says string }
	require.NoError(t, json.Unmarshal([]byte(stdout), &report))
	require.Greater(t, len(report), 10)
	for _, f := range report {
		require.Equal(t, "OK", f.Level, f)
	}
}

// The check finds what the scenarios leave in order, and what somebody has broken.
func TestCheckCommand(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, dsn string) {
		code, _, stderr := program(t, nil, "--dsn", dsn, "--scenario", "checkout-pay")
		require.Equal(t, 0, code, stderr)
		code, stdout, stderr := program(t, nil, "check", "--dsn", dsn, "--quiet")
		require.Equal(t, 0, code, "%s%s", stdout, stderr)
		require.Contains(t, stdout, "every invariant holds")
		db := testdb.OpenDSN(t, dsn)
		_, err := db.ExecContext(t.Context(), "DELETE FROM bc_event_consume_log")
		require.NoError(t, err)
		_, err = db.ExecContext(t.Context(), "UPDATE demo_wallet SET available = available + 1")
		require.NoError(t, err)
		code, stdout, stderr = program(t, nil, "check", "--dsn", dsn, "--quiet")
		require.Equal(t, 1, code)
		require.Contains(t, stdout, ": has never got it")
		require.Contains(t, stdout, "I15 money: ")
		require.Contains(t, stderr, "breaks a promise")
	})
}

// Tables of the demo's names that somebody else made are not touched.
func TestForeignTablesAreRefused(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, dsn string) {
		db := testdb.OpenDSN(t, dsn)
		_, err := db.ExecContext(t.Context(), "CREATE TABLE demo_order (id INT PRIMARY KEY)")
		require.NoError(t, err)
		refused := func(why string) {
			t.Helper()
			code, stdout, stderr := program(t, nil, "--dsn", dsn)
			require.Equal(t, 1, code)
			require.Empty(t, stdout, "before anything is played")
			require.Contains(t, stderr, why)
			require.Equal(t, 1, strings.Count(stderr, "\n"))
		}
		refused("index on demo_order")
		_, err = db.ExecContext(t.Context(), "INSERT INTO demo_order (id) VALUES (1)")
		require.NoError(t, err)
		refused("demo_order holds 1 rows")
		var n int
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM demo_order").Scan(&n))
		require.Equal(t, 1, n)
	})
}

// Several instances that start at once on an empty database agree on who makes the tables, and
// SIGTERM ends each with 0 after its drain.
func TestInstancesMayStartAtOnce(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, dsn string) {
		nodes := make(chan *server, 4)
		t.Run("start", func(t *testing.T) {
			for range cap(nodes) {
				cmd, stdout, stderr := command(t.Context(), t, nil, "serve", "--addr", "127.0.0.1:0", "--dsn", dsn)
				require.NoError(t, cmd.Start())
				nodes <- &server{t: t, cmd: cmd, stdout: stdout, stderr: stderr}
			}
			for range cap(nodes) {
				s := <-nodes
				testdb.Eventually(t, func() bool { return strings.Contains(s.stdout.String(), "listens on") }, "it listens")
				require.Equal(t, 0, s.end(syscall.SIGTERM), s.stderr)
			}
		})
	})
}

// YAML is read, and the environment overrides it.
func TestConfigurationReachesTheProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "bluecone.yaml")
	require.NoError(t, os.WriteFile(path, []byte(`
bluecone:
  asset: {lock-timeout-minutes: 30}
  outbox: {batch-size: 7, max-retry-count: 1, publisher-cron: "0/10 * * * * ?"}
  consistency: {scan-window-hours: 24}
  scheduler: {lock-timeout-reaper-cron: "0 */5 * * * ?", consistency-check-cron: "0 0 */2 * * ?"}
`), 0o600))
	s := serveOn(t, "sqlite://"+filepath.Join(dir, "x.db"), []string{"BLUECONE_OUTBOX_MAX_RETRY_COUNT=2"}, "--config", path, "--faults")
	require.Equal(t, 200, s.post("/faults", `{"consumer":"PointsConsumer","mode":"error"}`).status)
	u := s.place()
	s.eventually(func() bool { return s.get("/stats").at("deliveries", "DEAD") == 1.0 }, "two attempts, then DEAD")
	for _, e := range s.get("/orders/" + u.order + "/timeline").at("events").([]any) {
		for _, d := range e.(map[string]any)["deliveries"].([]any) {
			if d := d.(map[string]any); d["consumer"] == "PointsConsumer" {
				require.InDelta(t, 2, d["attempts"], 0)
			}
		}
	}
}
