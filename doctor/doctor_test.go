package doctor_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/doctor"
	"github.com/bluecone-go/bluecone/internal/dbserver"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

func examine(t *testing.T, db *bun.DB, cfg doctor.Config) map[string]doctor.Finding {
	t.Helper()
	r, err := doctor.Examine(t.Context(), db, cfg)
	require.NoError(t, err)
	found := make(map[string]doctor.Finding)
	for _, f := range r {
		if f.Level != doctor.OK {
			require.NotEmpty(t, f.Rule, f)
			require.NotEmpty(t, f.Remedy, f)
		}
		require.NotRegexp(t, `\{\w+\}`, f.Says+f.Remedy, "every value is filled in")
		if known, ok := found[f.Check]; !ok || known.Level == doctor.OK {
			found[f.Check] = f
		}
	}
	return found
}

// A fresh database has nothing wrong with it but what the test servers are started with.
func TestFreshDatabaseIsFit(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		for name, f := range examine(t, db, doctor.Config{Workers: 4}) {
			switch name {
			case "idle transactions": // PostgreSQL and MariaDB wait for ever unless they are told not to
			case "durability":
				require.Equal(t, testdb.Server(t, db) == "sqlite", f.Level != doctor.OK, "only SQLite is not durable in tests: %s", f.Says)
			default:
				require.Equal(t, doctor.OK, f.Level, "%s: %s", name, f.Says)
			}
		}
	})
}

const event = "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, status) " +
	"VALUES ('ORDER', '1', 'order.paid', '1', '{}', 'NEW')"

// Every fault is found, by its check and at its level.
func TestFaultsAreFound(t *testing.T) {
	t.Parallel()
	const consumer = "INSERT INTO bc_consumer (name, event_types, aliases) VALUES "
	const delivery = "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, next_retry_at) VALUES "
	const reservation = "INSERT INTO bc_reservation (token, event_id, caller, event_type, state, event, created_at, updated_at, expires_at, " +
		"next_check_at) VALUES ('1', '1', 'shop', 'order.paid', 'PREPARED', '{}', '2026-11-21 10:00:00', '2026-11-21 10:00:00', "
	const bulk = "INSERT INTO bc_bulk_operation (operation_id, action, request, actor, reason, state, consumer_name, updated_at) VALUES " +
		"('1', 'backfill', '{}', 'ann', 'a test', "
	wallet := []string{
		consumer + "('Wallet', '[]', '[]')",
		"INSERT INTO bc_consumer_type (consumer_name, event_type) VALUES ('Wallet', 'order.noted')",
	}
	const job = "INSERT INTO bc_job_lease (job_code, last_finished_at, cron) VALUES ('coupons.expire', "
	type fault struct {
		check string
		level doctor.Level
		says  string
		on    string // empty means all
		sql   []string
	}
	tomorrow := map[string]string{
		"mysql": "UTC_TIMESTAMP(6) + INTERVAL 2 DAY", "pg": "now() + interval '2 days'",
		"sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now', '+2 days') || '000')",
	}
	never := map[string]string{"mysql": "'9999-12-31'", "pg": "'9999-12-31 00:00:00+00'", "sqlite": "'9999-12-31 00:00:00.000000'"}
	yesterday := map[string]string{
		"mysql": "UTC_TIMESTAMP(6) - INTERVAL 2 DAY", "pg": "now() - interval '2 days'",
		"sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now', '-2 days') || '000')",
	}
	testdb.Each(t, func(t *testing.T, template *bun.DB) {
		name := template.Dialect().Name().String()
		for _, f := range []fault{
			{"migrations", doctor.Fail, "0001_bluecone", "", []string{"DELETE FROM bc_schema_version"}},
			{"indexes", doctor.Fail, "idx_status_next_retry", "mysql", []string{"DROP INDEX idx_status_next_retry ON bc_outbox_event"}},
			{"indexes", doctor.Fail, "idx_consumer_due", "pg sqlite", []string{"DROP INDEX bc_event_consume_log_idx_consumer_due"}},
			{"engine", doctor.Fail, "bc_job_run is in MyISAM", "mysql", []string{"ALTER TABLE bc_job_run ENGINE = MyISAM"}},
			{
				"collation", doctor.Fail, "consumer_name has the collation utf8mb4_general_ci", "mysql", []string{
					"ALTER TABLE bc_event_consume_log MODIFY consumer_name VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL",
				},
			},
			{
				"key length", doctor.Fail, "event_id holds 40 characters", "mysql", []string{
					"ALTER TABLE bc_outbox_event MODIFY event_id VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL",
				},
			},
			{
				"key length", doctor.Fail, "event_id holds 40 characters", "pg", []string{
					"ALTER TABLE bc_outbox_event ALTER COLUMN event_id TYPE VARCHAR(40)",
				},
			},
			{"strict mode", doctor.Fail, "not strict", "mysql", []string{"SET SESSION sql_mode = ''"}},
			{
				"strict mode", doctor.Fail, "NO_BACKSLASH_ESCAPES", "mysql", []string{
					"SET SESSION sql_mode = 'STRICT_TRANS_TABLES,NO_BACKSLASH_ESCAPES'",
				},
			},
			{"time zone", doctor.Warn, "480 min off UTC", "mysql", []string{"SET time_zone = '+08:00'"}},
			{"clock", doctor.Warn, "apart", "mysql", []string{"SET timestamp = 1700000000"}},
			{"idle transactions", doctor.OK, "", "mysql", []string{"SET wait_timeout = 60"}},
			{"idle transactions", doctor.Warn, "for ever", "pg", []string{"SET idle_in_transaction_session_timeout = 0"}},
			{"read only", doctor.Fail, "read-only", "pg", []string{"SET default_transaction_read_only = on"}},
			{"read only", doctor.Fail, "read-only", "sqlite", []string{"PRAGMA query_only = 1"}},
			{"durability", doctor.Warn, "synchronous_commit is off", "pg", []string{"SET synchronous_commit = off"}},
			{"durability", doctor.Warn, "synchronous is 1", "sqlite", []string{"PRAGMA synchronous = 1"}},
			{"busy timeout", doctor.Warn, "busy_timeout is 0", "sqlite", []string{"PRAGMA busy_timeout = 0"}},
			{"pool", doctor.Warn, "wait for each other", "", nil},
			{
				"event states", doctor.Warn, `["BROKEN" "new"]`, "", []string{
					event, strings.ReplaceAll(strings.Replace(event, "'NEW'", "'BROKEN'", 1), "'1'", "'2'"),
					strings.ReplaceAll(strings.Replace(event, "'NEW'", "'new'", 1), "'1'", "'3'"),
				},
			},
			{
				"delivery states", doctor.Warn, `deliveries of Wallet have the status ["DONE"]`, "", []string{
					consumer + "('Wallet', '[]', '[]')",
					delivery + "('Wallet', '1', 'order.paid', 'DONE', NULL)", delivery + "('Wallet', '2', 'order.paid', 'SUCCESS', NULL)",
				},
			},
			{
				"reservations", doctor.Warn, "what became of 1 reserved events of the type order.paid", "", []string{
					reservation + yesterday[name] + ", " + yesterday[name] + ")", strings.ReplaceAll(reservation, "'1'", "'2'") + tomorrow[name] +
						", " + tomorrow[name] + ")",
				},
			},
			{"reservations", doctor.OK, "", "", []string{reservation + tomorrow[name] + ", " + tomorrow[name] + ")"}},
			{"dead letters", doctor.Warn, "events that are DEAD: 1", "", []string{event, "UPDATE bc_outbox_event SET status = 'DEAD'"}},
			{
				"consumer names", doctor.Fail, "differ only by case", "", []string{
					consumer + "('Wallet', '[]', '[]')",
					consumer + "('wallet', '[]', '[]')",
				},
			},
			{"consumer names", doctor.Warn, "malformed", "", []string{consumer + "('Wallet', '[\"order', '[]')"}},
			{"consumer names", doctor.Warn, "longer than 64 KiB", "pg sqlite", []string{
				consumer + "('Wallet', '[\"order.paid\"" + strings.Repeat(" ", 64<<10) + "]', '[]')",
			}},
			{"absent consumers", doctor.Warn, "no instance has taken order.renamed for the consumer Wallet", "", []string{
				consumer + "('Wallet', '[]', '[]')", "INSERT INTO bc_consumer_type (consumer_name, event_type) VALUES ('Wallet', 'order.renamed')",
				"UPDATE bc_consumer_type SET seen_at = " + yesterday[name],
			}},
			{
				"absent consumers", doctor.Warn, "Wallet", "", []string{
					consumer + "('Wallet', '[]', '[]')",
					"UPDATE bc_consumer SET seen_at = " + yesterday[name],
				},
			},
			{"schema versions", doctor.Warn, "no running instance knows schema version 7 of order.paid: deliveries wait for the consumer " +
				"Wallet, such as that of 1", "", []string{
				consumer + "('Wallet', '[]', '[]')", event, "UPDATE bc_outbox_event SET schema_version = 7",
				delivery + "('Wallet', '1', 'order.paid', 'PENDING', " + never[name] + ")",
				"UPDATE bc_event_consume_log SET outbox_id = (SELECT MAX(id) FROM bc_outbox_event), updated_at = " + yesterday[name],
			}},
			{
				"unattended", doctor.Warn, "deliveries of order.paid wait for the consumer Wallet, and no running release of it takes the type: 1", "",
				append([]string{delivery + "('Wallet', '1', 'order.paid', 'FAILED', " + yesterday[name] + ")"}, wallet...),
			},
			{
				"unattended", doctor.OK, "", "",
				append([]string{delivery + "('Wallet', '1', 'order.noted', 'FAILED', " + yesterday[name] + ")"}, wallet...),
			},
			{
				"unattended", doctor.Warn, "replays wait for the consumer Wallet, of which no instance runs replays: 1", "",
				append([]string{delivery + "('Wallet@replay', '1', 'order.noted', 'PENDING', " + yesterday[name] + ")"}, wallet...),
			},
			{
				"unattended", doctor.Warn, "a backfill of the consumer Wallet failed 48h", "",
				append([]string{bulk + "'FAILED', 'Wallet', " + yesterday[name] + ")"}, wallet...),
			},
			{
				"unattended", doctor.Warn, "a backfill of the consumer Wallet has not moved for 48h", "",
				append([]string{bulk + "'RUNNING', 'Wallet', " + yesterday[name] + ")"}, wallet...),
			},
			{"jobs", doctor.Warn, "the job coupons.expire (0 0 * * * ?) has not finished a run for 48h", "", []string{
				job + yesterday[name] + ", '0 0 * * * ?')",
			}},
			{"jobs", doctor.OK, "", "", []string{job + yesterday[name] + ", '0 0 0 1 1 ?')"}},
			{"jobs", doctor.OK, "", "", []string{job + yesterday[name] + ", NULL)"}},
			{"jobs", doctor.Warn, `says "every day", which is no schedule`, "", []string{job + yesterday[name] + ", 'every day')"}},
			{"retention", doctor.Warn, "no instance has ever removed delivered events", "", []string{
				event, "UPDATE bc_outbox_event SET status = 'SENT', sent_at = " + yesterday[name],
			}},
			{"retention", doctor.OK, "", "", []string{
				event, "UPDATE bc_outbox_event SET status = 'DEAD', created_at = " + yesterday[name],
			}},
			{"retention", doctor.OK, "", "", []string{
				event, "UPDATE bc_outbox_event SET status = 'SENT', sent_at = " + yesterday[name],
				"INSERT INTO bc_job_lease (job_code) VALUES ('outbox_retention')",
			}},
			{"malformed rows", doctor.Warn, `type "order.paid" of the consumer "Nobody"`, "", []string{
				"INSERT INTO bc_consumer_type (consumer_name, event_type) VALUES ('Nobody', 'order.paid')",
			}},
			{
				"far future", doctor.Warn, "leased for more than a day", "", []string{
					event,
					"UPDATE bc_outbox_event SET status = 'DISPATCHING', next_retry_at = " + tomorrow[name],
				},
			},
			{
				"far future", doctor.Warn, "deliveries wait", "", []string{
					consumer + "('Wallet', '[]', '[]')",
					delivery + "('Wallet', '1', 'order.paid', 'FAILED', " + tomorrow[name] + ")",
				},
			},
			{"times", doctor.Warn, "made in the future", "", []string{event, "UPDATE bc_outbox_event SET created_at = " + tomorrow[name]}},
			{"JSON", doctor.Warn, "such as 1", "mysql sqlite", []string{event, "UPDATE bc_outbox_event SET event_payload = 'secret'"}},
			{"JSON", doctor.Warn, "such as 1", "mysql sqlite", []string{
				event, "UPDATE bc_outbox_event SET event_payload = '{\"a\":secret, \"b\":\"" + strings.Repeat("x", 1<<17) + "\"}'",
			}},
			{"JSON", doctor.OK, "can be read", "", []string{
				event, "UPDATE bc_outbox_event SET event_payload = '{\"a\":[1,true,{}], \"b\":\"" + strings.Repeat("x", 1<<17) + "\"}'",
			}},
		} {
			if f.on != "" && !strings.Contains(f.on, name) {
				continue
			}
			db := testdb.Open(t, testdb.Server(t, template))
			db.SetMaxOpenConns(1) // settings of a session stay
			for _, s := range f.sql {
				_, err := db.ExecContext(t.Context(), s)
				require.NoError(t, err, s)
			}
			found := examine(t, db, doctor.Config{})[f.check]
			require.Equal(t, f.level, found.Level, "%s: %s", f.check, found.Says)
			require.Contains(t, found.Says, f.says)
			require.NotContains(t, found.Says, "secret", "payloads are nobody's business")
		}
	})
}

// Events that stay for twice as long as they should are found, unless the doctor knows that they should stay.
func TestRetentionThatIsBehindIsFound(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		ago := map[string]string{
			"mysql": "UTC_TIMESTAMP(6) - INTERVAL 20 DAY", "pg": "now() - interval '20 days'",
			"sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now', '-20 days') || '000')",
		}[db.Dialect().Name().String()]
		for _, s := range []string{
			event, "UPDATE bc_outbox_event SET status = 'SENT', sent_at = " + ago,
			"INSERT INTO bc_job_lease (job_code) VALUES ('outbox_retention')",
		} {
			_, err := db.ExecContext(t.Context(), s)
			require.NoError(t, err, s)
		}
		found := examine(t, db, doctor.Config{})["retention"]
		require.Equal(t, "retention_behind", found.Rule)
		require.Regexp(t, "delivered 480h[0-9]+m[0-9]+s ago, and should be kept for 168h0m0s", found.Says) // as long as the test took
		require.Equal(t, doctor.OK, examine(t, db, doctor.Config{Keep: 11 * 24 * time.Hour})["retention"].Level)
		require.Equal(t, doctor.OK, examine(t, db, doctor.Config{Keep: -1})["retention"].Level)
	})
}

// A server that may lose what it has committed is no place for events.
func TestServersThatLoseCommitsAreFound(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it starts servers")
	}
	says := map[string]string{
		"mysql": "innodb_flush_log_at_trx_commit is 0", "mysql9": "innodb_flush_log_at_trx_commit is 0",
		"postgres": "fsync is off",
	}
	for _, name := range testdb.Servers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv, err := dbserver.Start(name, dbserver.Careless, dbserver.Connections(20))
			if err != nil {
				testdb.Unavailable(t, name, err)
			}
			t.Cleanup(srv.Stop)
			found := examine(t, testdb.OpenDSN(t, srv.URL.String()), doctor.Config{})["durability"]
			require.Equal(t, doctor.Fail, found.Level, found.Says)
			require.Contains(t, found.Says, says[name])
		})
	}
}

// An empty database fails for its missing tables. One line says that they were not examined, and nothing calls them fine.
func TestDoctorOnAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Dialects() {
		found := examine(t, testdb.Open(t, dialect, testdb.Bare), doctor.Config{})
		require.Equal(t, doctor.Fail, found["migrations"].Level)
		require.Equal(t, doctor.Finding{
			Check: "tables", Level: doctor.Warn, Rule: "unmigrated", Says: "not examined: there are none yet",
			Remedy: "migrate first (bluecone migrate up, or migrations.Up), then run the doctor again",
		}, found["tables"])
		require.Contains(t, found, "version")
		for _, missing := range []string{"indexes", "event states", "numbers"} {
			require.NotContains(t, found, missing)
		}
	}
}

// A check that cannot look says what the database answered.
func TestACheckThatCannotLookSaysSo(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		_, err := db.ExecContext(t.Context(), "DROP TABLE bc_consumer_type")
		require.NoError(t, err)
		found := examine(t, db, doctor.Config{})["absent consumers"]
		require.Equal(t, doctor.Warn, found.Level)
		require.Contains(t, found.Says, "could not be examined")
	})
}

func TestPacketsMustHoldThePayload(t *testing.T) {
	t.Parallel()
	found := examine(t, testdb.Open(t, "mysql"), doctor.Config{MaxPayload: 4 << 20})
	require.Equal(t, doctor.OK, found["packet size"].Level)
	found = examine(t, testdb.Open(t, "mysql"), doctor.Config{MaxPayload: 1 << 30})
	require.Equal(t, doctor.Fail, found["packet size"].Level)
}

// Start refuses what is FAIL, logs what is WARN, and takes one for the other where it is told to.
func TestStart(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "sqlite")
	db.SetMaxOpenConns(1) // the setting stays
	_, err := db.ExecContext(t.Context(), "PRAGMA synchronous = 1")
	require.NoError(t, err)
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	require.NoError(t, doctor.Start(t.Context(), db, doctor.Config{}, logger))
	require.Contains(t, log.String(), "check=durability")
	_, err = db.ExecContext(t.Context(), "DELETE FROM bc_schema_version")
	require.NoError(t, err)
	err = doctor.Start(t.Context(), db, doctor.Config{}, logger)
	require.ErrorIs(t, err, doctor.ErrUnfit)
	require.ErrorContains(t, err, "call migrations.Up")
	require.NoError(t, doctor.Start(t.Context(), db, doctor.Config{Accept: []string{"migrations"}}, logger))
}

// The values of a finding are its sentences' own; with them a translation can say the same.
func TestFindingsHaveTheirValuesByName(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "sqlite")
	_, err := db.ExecContext(t.Context(), "INSERT INTO bc_consumer (name, event_types, aliases) "+
		"VALUES ('Wallet', '[]', '[]'), ('{one}', '[]', '[]'), ('wallet', '[]', '[]')")
	require.NoError(t, err)
	_, err = db.ExecContext(t.Context(), "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status) "+
		"VALUES ('{one}', '1', 'order.paid', '{consumer}')")
	require.NoError(t, err)
	r, err := doctor.Examine(t.Context(), db, doctor.Config{})
	require.NoError(t, err)
	require.Contains(t, r, doctor.Finding{
		Check: "consumer names", Level: doctor.Fail, Rule: "consumers_alike", Says: `the consumers "Wallet" and "wallet" differ only by case`,
		Remedy: "give one another ConsumerConfig.Key while nothing waits for it, and retire the old one",
		Args:   map[string]string{"one": `"Wallet"`, "other": `"wallet"`},
	})
	require.Contains(t, r, doctor.Finding{
		Check: "delivery states", Level: doctor.Warn, Rule: "delivery_status",
		Says: `deliveries of {one} have the status ["{consumer}"], which nobody works on`,
		Remedy: "look at the rows and correct their status by SQL (docs/schema.md lists the states): " +
			"no operator function changes a row in an unknown one",
		Args: map[string]string{"consumer": "{one}", "status": `["{consumer}"]`},
	})
}

func TestDoctorNamesMistakes(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "sqlite")
	_, err := doctor.Examine(t.Context(), db, doctor.Config{Workers: -1, Accept: []string{"durabilty"}})
	require.ErrorContains(t, err, "Workers -1")
	require.ErrorContains(t, err, `there is no check "durabilty"`)
	_, err = doctor.Examine(t.Context(), nil, doctor.Config{})
	require.ErrorContains(t, err, "db is nil")
	require.NoError(t, db.Close())
	_, err = doctor.Examine(t.Context(), db, doctor.Config{ClockOffset: time.Hour})
	require.ErrorContains(t, err, "does not answer")
}

// What a row of anybody's says does not steer the terminal of whoever examines it.
func TestAPrintedReportSteersNoTerminal(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	require.NoError(t, doctor.Report{
		{Check: "absent consumers", Level: doctor.Warn, Says: "no instance has \x1b[2J\x1b]0;x\x07\u202e\u009b2J", Remedy: "\r\x00"},
	}.Print(&b))
	require.NotRegexp(t, `[\x00-\x09\x0b-\x1f\x7f\x{80}-\x{9f}\x{202e}]`, b.String())
}
