package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/testdb"
)

// Whatever is wrong with a command is said in one line on standard error that names it, without
// the password; the exit status tells scripts what kind of mistake it is.
func TestWrongCommandsSayWhatIsWrongInOneLine(t *testing.T) {
	t.Parallel()
	d := newDeployment(t, "sqlite")
	d.save(paid{OrderID: "1"})
	d.work(nil)
	missing := "sqlite://" + filepath.Join(t.TempDir(), "none.db")
	for name, c := range map[string]struct {
		line string // words of the command
		code int
		says string
	}{
		"command":              {"evnts list --limit 3", 2, `bluecone: the command "evnts" is unknown: did you mean events?`},
		"subcommand":           {"events shw", 2, `bluecone events: the command "shw" is unknown: did you mean show?`},
		"no subcommand":        {"events", 2, "bluecone events: say what to do: discard, list, retry, show, skip"},
		"flag":                 {"events list --lmit 3", 2, "the flag --lmit is unknown: did you mean --limit?"},
		"short flag":           {"events list -x", 2, "the flag -x is unknown"},
		"flag without value":   {"status --output", 2, "--output needs a value"},
		"output":               {"status --output xml", 2, `--output "xml": use table, json or csv`},
		"argument missing":     {"events retry", 2, "bluecone events retry: the event id is missing"},
		"argument too many":    {"trace 1 2", 2, `bluecone trace: the argument "2" is not expected`},
		"argument for none":    {"status now", 2, `bluecone status: the argument "now" is not expected`},
		"reason":               {"events retry 1", 2, "bluecone events retry: --reason is missing: say why"},
		"reason of spaces":     {"consumers resume Points --reason=\u00a0", 2, "--reason is missing"},
		"reason for a payload": {"events show 1 --payload", 2, "bluecone events show --payload: --reason is missing"},
		"actor": {
			"consumers resume Points --reason x --actor " + strings.Repeat("a", 129), 2,
			"say who you are, in at most 128 bytes",
		},
		"number":             {"events list --limit x", 2, `--limit "x": it is no number`},
		"number too small":   {"audit list --limit 0", 2, "--limit 0: it must be at least 1"},
		"negative tenant":    {"publish --type t --payload {} --tenant -1", 2, "--tenant -1: it must be at least 0"},
		"rate":               {"dead retry --all --rate 0 --reason x", 2, "--rate 0: it must be between 0.1 and 10000"},
		"duration":           {"consumers pause Points --for 5x --reason x", 2, `--for "5x": it is no duration: write 90s, 5m or 2h30m`},
		"duration negative":  {"dead retry --all --spread -5m --reason x", 2, "--spread -5m0s: it must be at least 0s"},
		"interval":           {"status --watch --interval 1ms", 2, "--interval 1ms: it must be at least 1s"},
		"time":               {"events list --since yesterday", 2, `--since "yesterday": it is no time: write 2006-01-02T15:04 (UTC)`},
		"times turned round": {"events list --since 1h --until 2h", 2, "is not before --until"},
		"pause without end": {
			"consumers pause Points --reason x", 2, "say for how long, in one way: --for 30m, --until TIME or --indefinitely",
		},
		"pause with two ends":     {"consumers pause Points --for 1h --indefinitely --reason x", 2, "in one way"},
		"pause for nothing":       {"consumers pause Points --for 0s --reason x", 2, "--for 0s: it must be longer than nothing"},
		"pause until the past":    {"consumers pause Points --until 2020-01-01 --reason x", 2, "--until 2020-01-01T00:00:00Z: that is over"},
		"status":                  {"events list --status FALED", 2, `--status "FALED": use NEW, SCHEDULED, DISPATCHING, SENT, FAILED or DEAD`},
		"delivery of nobody":      {"events list --delivery DEAD", 2, "--delivery DEAD: say at which consumer"},
		"skip for nobody":         {"events skip 1 --reason x", 2, "name one consumer with --consumer"},
		"retry of nothing":        {"dead retry --reason x", 2, "say which: --group FINGERPRINT (see 'dead list'), --consumer CONSUMER or --all"},
		"retry of all and one":    {"dead retry --all --consumer Points --reason x", 2, "--all does not go with --consumer"},
		"replay of nothing":       {"consumers replay Points --reason x", 2, "say which events: --event ID or --since TIME"},
		"backfill of nothing":     {"consumers backfill Points --reason x", 2, "say which events: --since TIME"},
		"watch as csv":            {"status --watch -o csv", 2, "--watch does not go with --output csv"},
		"dialect":                 {"migrate print --dialect mssql", 2, `--dialect "mssql": use mysql, postgres or sqlite`},
		"publish without type":    {"publish --payload {} --reason x", 2, "--type is missing"},
		"publish without payload": {"publish --type t --reason x", 2, "--payload is missing"},
		"publish no JSON":         {"publish --type t --payload {x --reason x", 2, "--payload: it is no JSON"},
		"publish no file":         {"publish --type t --payload @/no/such --reason x", 2, "--payload @/no/such: no such file or directory"},
		"publish unknown type":    {"publish --type t --payload {} --reason x", 1, "this program declares no event type publishable"},
		"export to a place":       {"dead export --file /no/such/file", 2, `--file "/no/such/file": no such file or directory`},
		"dsn without scheme":      {"status --dsn localhost", 2, "--dsn: wrong DSN: it names no database; use sqlite:///abs"},
		"dsn of another kind":     {"status --dsn oracle://scott:tiger@localhost/x", 2, `"oracle" is not supported`},
		"dsn no url":              {"status --dsn mysql://root:tiger@127.0.0.1:port/x", 2, "it is not a URL"},
		"dsn empty":               {"status --dsn=", 2, "--dsn is missing: give it or set BLUECONE_DSN"},
		"print for none":          {"migrate print --dsn=", 2, "or say --dialect mysql, postgres or sqlite, without a database"},
		"nobody listens": {
			"status --dsn mysql://root:tiger@127.0.0.1:1/x", 4,
			"the database cannot be reached: mysql://root:xxxxx@127.0.0.1:1/x",
		},
		"nobody listens, pg":     {"doctor --dsn postgres://root:tiger@127.0.0.1:1/x", 4, "postgres://root:xxxxx@127.0.0.1:1/x"},
		"no such file":           {"status --dsn " + missing, 4, "no such file"},
		"event unknown":          {"events show nope", 3, `there is no event "nope" (to search by another key: trace nope)`},
		"event to retry unknown": {"events retry nope --reason x", 3, `there is no event "nope"`},
		"key unknown":            {"trace nope", 3, `nobody knows the key "nope"`},
		"consumer unknown":       {"consumers pause Point --for 1h --reason x", 3, `the consumer "Point" is unknown: did you mean Points?`},
		"job unknown":            {"jobs run outbox_publsher --reason x", 3, `the job "outbox_publsher" is unknown`},
		"events of nobody":       {"events list --consumer Point", 3, `the consumer "Point" is unknown: did you mean Points?`},
		"cursor":                 {"events list --cursor x", 2, `--cursor "x" is not a cursor: take it from the page before`},
		"cursor of a log":        {"audit list --cursor -1", 2, `--cursor "-1" is not a cursor`},
		"bulk unknown":           {"bulk show nope", 3, "nope"},
		"group unknown":          {"dead retry --group nope --reason x", 3, `--group "nope": there is no such group`},
		"nothing is dead":        {"dead retry --all --reason x", 3, "no delivery is DEAD"},
		"nothing dead there":     {"dead retry --consumer Points --reason x", 3, "no delivery to Points is DEAD"},
		"replay forbidden": {
			"consumers replay Points --since 1h --reason x", 1,
			"Points cannot be replayed: it is not declared Replayable",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := []string{"BLUECONE_DSN=" + d.dsn}
			if name == "dsn empty" || name == "print for none" {
				env = nil
			}
			r := program(t, "bluecone", env, strings.Split(c.line, " ")...)
			require.Equal(t, c.code, r.code, r.errors)
			require.Contains(t, r.errors, c.says)
			require.Equal(t, 1, strings.Count(r.errors, "\n"), "one line: %s", r.errors)
			require.Empty(t, r.out)
			require.NotContains(t, r.errors, "tiger", "the password")
		})
	}
}

// Tables that are not there are a failure that says how to make them.
func TestTablesThatAreMissing(t *testing.T) {
	t.Parallel()
	d := &deployment{t: t, dsn: "sqlite://" + filepath.Join(t.TempDir(), "empty.db")}
	r := d.bluecone("migrate", "up", "--dry-run")
	require.Equal(t, 4, r.code, "a dry run makes no file")
	require.Contains(t, d.ok("migrate", "up"), "applied: 0001_bluecone")
	require.NotContains(t, d.ok("migrate", "status"), "not applied")
	require.Contains(t, d.ok("migrate", "up"), "every migration is applied already")
	db := testdb.OpenDSN(t, d.dsn)
	_, err := db.ExecContext(t.Context(), "DROP TABLE bc_consumer")
	require.NoError(t, err)
	r = d.bluecone("consumers", "list")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.errors, "see 'bluecone migrate status'")
}

// Before the first migration the commands say that it is missing, and how to apply it.
func TestDatabaseWithoutTables(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Dialects() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			d := &deployment{t: t, dsn: testdb.DSN(t, dialect)}
			if dialect == "sqlite" {
				require.NoError(t, testdb.OpenDSN(t, d.dsn).PingContext(t.Context())) // makes the file
			}
			require.Regexp(t, "^dry run, nothing is changed: would apply: 0001_bluecone, ", d.ok("migrate", "up", "--dry-run"))
			r := d.bluecone("migrate", "status")
			require.Zero(t, r.code)
			require.Contains(t, r.out, "APPLIED (UTC)")
			require.Contains(t, r.out, "not applied")
			require.Regexp(t, "^[0-9]+ migrations are not applied: bluecone migrate up\n$", r.errors)
			require.NotContains(t, d.ok("migrate", "status", "-o", "csv"), "not applied")
			r = d.bluecone("doctor")
			require.Equal(t, 1, r.code)
			require.Contains(t, r.out, "not examined: there are none yet")
			require.NotContains(t, r.out, "the log of the service")
			require.NotContains(t, r.out, "is missing")
		})
	}
}

// Who has the database sees what it answered to a check that could not look.
func TestTheDoctorPrintsTheErrorOfACheck(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d *deployment) {
		_, err := d.db.ExecContext(t.Context(), "DROP TABLE bc_consumer_type")
		require.NoError(t, err)
		r := d.bluecone("doctor")
		require.Regexp(t, "could not be examined: .*(no such table|doesn't exist|does not exist)", r.out)
		require.NotContains(t, r.out, "the log of the service")
	})
}

// A search by consumer looks for DEAD deliveries unless it says another state: an empty answer says so.
func TestEventsOfAConsumer(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d *deployment) {
		d.save(paid{OrderID: "1"})
		d.work(nil)
		r := d.bluecone("events", "list", "--consumer", "Points")
		require.Equal(t, "No event whose delivery to Points is DEAD (--delivery says another state).\n", r.errors)
		r = d.bluecone("events", "list", "--consumer", "Points", "--delivery", "FAILED")
		require.Contains(t, r.errors, "No event whose delivery to Points is FAILED")
		require.Contains(t, d.ok("events", "list", "--consumer", "Points", "--delivery", "SUCCESS"), "order.paid")
	})
}
