package attempts_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/mysqldialect"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/dbserver"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

// pool opens the migrated database of an address with settings of its own.
func pool(t *testing.T, dsn string, changed func(c *mysql.Config), params url.Values) *bun.DB {
	t.Helper()
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	var db *bun.DB
	if u.Scheme == "mysql" {
		c := dbserver.MySQLConfig(u)
		changed(c)
		p, err := sql.Open("mysql", c.FormatDSN())
		require.NoError(t, err)
		db = bun.NewDB(p, mysqldialect.New())
	} else {
		q := u.Query()
		for name := range params {
			q.Set(name, params.Get(name))
		}
		u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20")
		p, err := sql.Open("pgx", u.String())
		require.NoError(t, err)
		db = bun.NewDB(p, pgdialect.New())
	}
	db.SetMaxOpenConns(12)
	db.SetMaxIdleConns(12)
	t.Cleanup(func() { _ = db.Close() })
	require.NoError(t, migrations.Up(t.Context(), testdb.OpenDSN(t, dsn)))
	return db
}

// foreignZone is a pool whose times are those of another zone.
func foreignZone(t *testing.T, dsn string) *bun.DB {
	t.Helper()
	tokyo, err := time.LoadLocation("Asia/Tokyo")
	require.NoError(t, err)
	return pool(t, dsn, func(c *mysql.Config) {
		c.Loc = tokyo
		c.Params = map[string]string{"time_zone": "'+09:00'"}
	}, url.Values{"TimeZone": {"Asia/Tokyo"}})
}

// mysqlSettings are what users have in the address of their database, and servers in their configuration.
func mysqlSettings(isolation string) map[string]func(c *mysql.Config) {
	param := func(name, value string) func(c *mysql.Config) {
		return func(c *mysql.Config) { c.Params = map[string]string{name: value} }
	}
	return map[string]func(c *mysql.Config){
		"no parseTime":        func(c *mysql.Config) { c.ParseTime = false },
		"found rows":          func(c *mysql.Config) { c.ClientFoundRows = true },
		"several statements":  func(c *mysql.Config) { c.MultiStatements = true },
		"interpolated":        func(c *mysql.Config) { c.InterpolateParams = true },
		"no sql_mode":         param("sql_mode", "''"),
		"ANSI":                param("sql_mode", "'ANSI'"),
		"ANSI and strict":     param("sql_mode", "'ANSI,TRADITIONAL,ONLY_FULL_GROUP_BY'"),
		"serializable":        param(isolation, "'SERIALIZABLE'"),
		"impatient":           param("innodb_lock_wait_timeout", "1"),
		"other collation":     func(c *mysql.Config) { c.Collation = "utf8mb4_general_ci" },
		"big packets refused": func(c *mysql.Config) { c.MaxAllowedPacket = 1 << 20 },
		"short group_concat":  param("group_concat_max_len", "4"),
		"no auto increment":   param("sql_mode", "'NO_AUTO_VALUE_ON_ZERO,PIPES_AS_CONCAT,HIGH_NOT_PRECEDENCE,PAD_CHAR_TO_FULL_LENGTH'"),
	}
}

func postgresSettings() map[string]url.Values {
	return map[string]url.Values{
		"serializable":    {"default_transaction_isolation": {"serializable"}},
		"repeatable read": {"default_transaction_isolation": {"repeatable read"}},
		"deferrable":      {"default_transaction_deferrable": {"on"}},
		"dates":           {"DateStyle": {"SQL, DMY"}, "IntervalStyle": {"sql_standard"}, "TimeZone": {"America/St_Johns"}},
		"bytes":           {"bytea_output": {"escape"}, "extra_float_digits": {"-15"}},
		"simple protocol": {"default_query_exec_mode": {"simple_protocol"}},
		"exec":            {"default_query_exec_mode": {"exec"}},
		"describe":        {"default_query_exec_mode": {"describe_exec"}},
		"impatient":       {"lock_timeout": {"100"}, "idle_in_transaction_session_timeout": {"60000"}},
		"quotes":          {"backslash_quote": {"off"}, "escape_string_warning": {"off"}, "quote_all_identifiers": {"on"}},
		"nulls":           {"transform_null_equals": {"on"}, "array_nulls": {"off"}},
		"no planner":      {"enable_seqscan": {"off"}, "plan_cache_mode": {"force_generic_plan"}, "jit_above_cost": {"0"}},
		"not synchronous": {"synchronous_commit": {"off"}, "client_min_messages": {"debug5"}},
	}
}

// Promises 1 to 4 on a database whose sessions are set up in another way. Odd text must arrive as it was saved.
func TestSettingsOfTheSessionChangeNothing(t *testing.T) {
	t.Parallel()
	on(t, servers, func(t *testing.T, db *bun.DB) {
		server := testdb.Server(t, db)
		same := func(*mysql.Config) {}
		if testdb.Dialect(server) == "mysql" {
			isolation := map[string]string{"mysql": "tx_isolation", "mysql9": "transaction_isolation"}[server]
			for name, changed := range mysqlSettings(isolation) {
				t.Run(name, func(t *testing.T) { t.Parallel(); liveAnyway(t, pool(t, testdb.DSN(t, server), changed, nil)) })
			}
			return
		}
		for name, params := range postgresSettings() {
			t.Run(name, func(t *testing.T) { t.Parallel(); liveAnyway(t, pool(t, testdb.DSN(t, server), same, params)) })
		}
	})
}

// Promise 1 on sessions in which text is not what it seems: a publisher refuses them, and changes nothing.
func TestSettingsThatSpoilTextAreRefused(t *testing.T) {
	t.Parallel()
	type setting struct {
		name, value, server, says string
	}
	for _, s := range []setting{
		{"sql_mode", "'NO_BACKSLASH_ESCAPES'", "mysql", "NO_BACKSLASH_ESCAPES"},
		{"sql_mode", "'ORACLE,NO_BACKSLASH_ESCAPES'", "mysql", "NO_BACKSLASH_ESCAPES"},
		{"sql_mode", "'NO_BACKSLASH_ESCAPES'", "mysql9", "NO_BACKSLASH_ESCAPES"},
		{"standard_conforming_strings", "off", "postgres", "standard_conforming_strings"},
	} {
		if !slices.Contains(testdb.Dialects(), s.server) {
			continue
		}
		t.Run(s.server+" "+s.name+" "+s.value, func(t *testing.T) {
			t.Parallel()
			db := pool(t, testdb.DSN(t, s.server), func(c *mysql.Config) {
				c.Params = map[string]string{s.name: s.value}
			}, url.Values{s.name: {s.value}})
			w := newWorld(t, db)
			w.counting("A", bus.ConsumerConfig{})
			_, err := w.publisher().RunOnce(t.Context())
			require.ErrorContains(t, err, s.says)
			require.ErrorContains(t, w.publisher().Run(t.Context()), s.says)
			require.Zero(t, w.count("SELECT COUNT(*) FROM bc_consumer"))
		})
	}
}

// Promises 1 to 4 on files of SQLite that are opened in other ways.
func TestSettingsOfTheFileChangeNothing(t *testing.T) {
	t.Parallel()
	settings := map[string]string{
		"deferred transactions": "_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)",
		"rollback journal":      "_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(DELETE)",
		"exclusive":             "_txlock=exclusive&_pragma=busy_timeout(10000)",
		"impatient":             "_txlock=immediate&_pragma=busy_timeout(1)&_pragma=journal_mode(WAL)",
		"odd": "_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=case_sensitive_like(1)&_pragma=recursive_triggers(1)" +
			"&_pragma=reverse_unordered_selects(1)",
		"one connection":   "_txlock=immediate&_pragma=busy_timeout(10000)",
		"times as numbers": "_txlock=immediate&_pragma=busy_timeout(10000)&_time_format=sqlite",
	}
	if len(testdb.Dialects()) < 4 && testdb.Dialects()[0] != "sqlite" {
		t.Skip("other databases were asked for")
	}
	for name, s := range settings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "test.db")+"?"+s)
			require.NoError(t, err)
			db := bun.NewDB(p, sqlitedialect.New())
			t.Cleanup(func() { _ = db.Close() })
			db.SetMaxOpenConns(6)
			if name == "one connection" {
				db.SetMaxOpenConns(1)
			}
			require.NoError(t, migrations.Up(t.Context(), db))
			liveAnyway(t, db)
		})
	}
}

const oddText = `it's \ a "quote" \' '' \\ ? ?0 %s $1 €😀 ` + "`"

// liveAnyway saves, delivers, fails, retries, pauses, repeats and removes.
func liveAnyway(t *testing.T, db *bun.DB) {
	t.Helper()
	w := newWorld(t, db)
	failed := make(map[string]bool)
	got := make(map[string]keyed)
	bus.On(w.bus.Consumer("A", bus.ConsumerConfig{Concurrency: 1}), func(ctx context.Context, tx bun.Tx, m bus.Message[keyed]) error {
		if m.Payload.Seq == 2 && !failed[m.AggregateID] {
			failed[m.AggregateID] = true
			return fmt.Errorf("once: %s", oddText)
		}
		got[m.AggregateID] = m.Payload
		m.RecordKey(oddText)
		m.RecordResult(oddText)
		return write(ctx, tx, m, m.Payload.Seq)
	})
	w.counting("B", bus.ConsumerConfig{MaxAttempts: 1})
	for i := range 3 {
		for seq := range 4 {
			require.NoError(t, w.insist(keyed{ID: oddText + fmt.Sprint(i), Seq: seq, Key: fmt.Sprint(i, seq, oddText)}))
			require.NoError(t, w.insist(keyed{ID: oddText + fmt.Sprint(i), Seq: seq, Key: fmt.Sprint(i, seq, oddText)}))
		}
		require.NoError(t, w.insist(outbox.With(paid{ID: id(i)}, outbox.Meta("odd", oddText))))
	}
	op := outbox.Operation{Actor: oddText, Reason: strings.Repeat(oddText, 3)}
	w.settle()
	require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 15}, w.statuses())
	require.Equal(t, 15, w.effects())
	for i := range 3 {
		require.Equal(t, []string{"0", "1", "2", "3"}, w.column("SELECT seq FROM effect WHERE aggregate LIKE ? ORDER BY id", "%`"+fmt.Sprint(i)))
		require.Equal(t, oddText+fmt.Sprint(i), got[oddText+fmt.Sprint(i)].ID)
	}
	require.Equal(t, 12, w.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE idempotency_key = ?", oddText))
	require.NoError(t, w.ob.Pause(t.Context(), op, "B", time.Hour))
	require.NoError(t, w.ob.Resume(t.Context(), op, "B"))
	require.Equal(t, 2, w.count("SELECT COUNT(*) FROM bc_audit_log WHERE actor = ?", oddText))
	events, err := w.ob.Events(t.Context(), outbox.Filter{AggregateType: "ORDER", AggregateID: oddText + "1"})
	require.NoError(t, err)
	require.Len(t, events, 4)
	require.WithinDuration(t, time.Now(), events[0].CreatedAt, 5*time.Minute)
}

// insist saves, again where the database asks for that.
func (w *world) insist(events ...bus.Event) (err error) {
	for range 50 {
		if err = w.trySave(events...); err == nil || !strings.Contains(err.Error(), "serialize") && !strings.Contains(err.Error(), "locked") {
			return err
		}
	}
	return err
}
