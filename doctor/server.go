package doctor

import (
	"context"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// serverChecks look at the server, its settings, and the connections to it.
func serverChecks() []check {
	return []check{
		{name: "version", fine: "new enough", look: version},
		{name: "strict mode", dialects: "mysql", fine: "what does not fit is refused", look: strictMode},
		{name: "quoting", dialects: "mysql postgres", fine: "texts stay texts", look: quoting},
		{name: "read only", fine: "the database takes writes", look: readOnly},
		{name: "durability", fine: "what is committed stays", look: durability},
		{name: "busy timeout", dialects: "sqlite", fine: "a writer waits for another one", look: busyTimeout},
		{name: "packet size", dialects: "mysql", fine: "payloads fit", look: packetSize},
		{name: "pool", fine: "enough connections", look: pool},
		{name: "pooler", dialects: "postgres", fine: "a connection stays with its server process", look: pooler},
		{name: "idle transactions", dialects: "mysql postgres", fine: "a silent client loses its locks", look: idleTransactions},
		{name: "time zone", dialects: "mysql", fine: "sessions speak UTC", look: timeZone},
		{name: "TLS", dialects: "mysql postgres", fine: "encrypted, or it does not leave the machine", look: encryption},
		{name: "clock", fine: "the clocks agree", look: clock},
	}
}

var numbers = regexp.MustCompile(`\d+`)

// atLeast compares a version such as 10.11.19-MariaDB with wanted numbers.
func atLeast(version string, wanted ...int) bool {
	found := numbers.FindAllString(version, len(wanted))
	for i, w := range wanted {
		if i >= len(found) {
			return true
		}
		if n, err := strconv.Atoi(found[i]); err != nil || n != w {
			return err == nil && n > w
		}
	}
	return true
}

func version(ctx context.Context, x *exam) ([]Finding, error) {
	query := map[string]string{"mysql": "SELECT VERSION()", "postgres": "SHOW server_version", "sqlite": "SELECT sqlite_version()"}[x.d.Name]
	row, err := x.one(ctx, query, 1)
	if err != nil {
		return nil, err
	}
	v := strings.TrimPrefix(row[0], "5.5.5-") // how old releases of MariaDB begin
	least := lacking(x.d.Name, v)
	if least == "" {
		return []Finding{{Level: OK, Says: v}}, nil
	}
	return fail("version_old", "version {version} lacks what the tables and the claims need (computed defaults, SKIP LOCKED, upserts)",
		"upgrade to {least} or later", values{"version": v, "least": least}), nil
}

// lacking is the least version of a product that a database must have, or empty if it is at least that.
func lacking(dialect, version string) string {
	switch {
	case strings.Contains(strings.ToLower(version), "mariadb"):
		if !atLeast(version, 10, 6) {
			return "MariaDB 10.6"
		}
	case dialect == "mysql" && !atLeast(version, 8, 0, 13): // with 8.0.13 came defaults that are expressions
		return "MySQL 8.0.13"
	case dialect == "postgres" && !atLeast(version, 13):
		return "PostgreSQL 13"
	case dialect == "sqlite" && !atLeast(version, 3, 35):
		return "SQLite 3.35"
	}
	return ""
}

// quoting is about what the engine itself refuses to work with.
func quoting(ctx context.Context, x *exam) ([]Finding, error) {
	err := x.d.CheckQuoting(ctx, x.db)
	if !errors.Is(err, dialect.ErrQuoting) {
		return nil, err
	}
	if x.d.Name == "mysql" {
		return fail("backslash_escapes", "sql_mode has NO_BACKSLASH_ESCAPES: each backslash of a text would be stored twice",
			"take NO_BACKSLASH_ESCAPES out of sql_mode", nil), nil
	}
	return fail("conforming_strings", "standard_conforming_strings is off: a text with a backslash could run as SQL",
		"ALTER DATABASE or ALTER ROLE … SET standard_conforming_strings = on, then reconnect", nil), nil
}

func strictMode(ctx context.Context, x *exam) ([]Finding, error) {
	row, err := x.one(ctx, "SELECT @@SESSION.sql_mode", 1)
	if err != nil {
		return nil, err
	}
	var found []Finding
	if !strings.Contains(row[0], "STRICT_TRANS_TABLES") && !strings.Contains(row[0], "STRICT_ALL_TABLES") {
		found = fail("sql_mode_lax", "sql_mode is not strict: values that do not fit are cut silently",
			"add STRICT_TRANS_TABLES to sql_mode, on the server or in the DSN", nil)
	}
	if strings.Contains(row[0], "NO_BACKSLASH_ESCAPES") {
		found = append(found, fail("no_backslash_escapes", "sql_mode has NO_BACKSLASH_ESCAPES, with which bun's escaping is wrong",
			"remove it from sql_mode", nil)...)
	}
	return found, nil
}

func readOnly(ctx context.Context, x *exam) ([]Finding, error) {
	query := map[string]string{
		"mysql": "SELECT @@GLOBAL.read_only", "sqlite": "PRAGMA query_only",
		"postgres": "SELECT CASE WHEN current_setting('transaction_read_only') = 'on' OR pg_is_in_recovery() THEN 1 ELSE 0 END",
	}[x.d.Name]
	row, err := x.one(ctx, query, 1)
	if err != nil || row[0] == "0" || row[0] == "OFF" {
		return nil, err
	}
	return fail("read_only", "the database is read-only", "connect to the primary", nil), nil
}

func durability(ctx context.Context, x *exam) ([]Finding, error) {
	switch x.d.Name {
	case "mysql":
		return mysqlDurability(ctx, x)
	case "postgres":
		return postgresDurability(ctx, x)
	}
	row, err := x.one(ctx, "PRAGMA synchronous", 1)
	if err != nil {
		return nil, err
	}
	if n, err := strconv.Atoi(row[0]); err == nil && n < 2 {
		return warn("synchronous_low", "synchronous is {value}: the last commits before a power failure may be lost",
			"open the file with _pragma=synchronous(FULL)", values{"value": row[0]}), nil
	}
	return nil, nil
}

// busyTimeout asks whether a writer of a SQLite file waits for another one. SQLite itself does not, unless it is told to.
func busyTimeout(ctx context.Context, x *exam) ([]Finding, error) {
	row, err := x.one(ctx, "PRAGMA busy_timeout", 1)
	if err != nil || row[0] != "0" {
		return nil, err
	}
	return warn("busy_timeout", "busy_timeout is 0: a transaction fails with SQLITE_BUSY as soon as another one writes",
		"open the file with _pragma=busy_timeout(10000), and with _txlock=immediate", nil), nil
}

func mysqlDurability(ctx context.Context, x *exam) ([]Finding, error) {
	row, err := x.one(ctx, "SELECT @@GLOBAL.innodb_flush_log_at_trx_commit, @@GLOBAL.log_bin, @@GLOBAL.sync_binlog", 3)
	if err != nil {
		return nil, err
	}
	var found []Finding
	switch row[0] {
	case "0":
		found = fail("flush_log_0", "innodb_flush_log_at_trx_commit is 0: a crash of the server loses committed events", "set it to 1", nil)
	case "2":
		found = warn("flush_log_2", "innodb_flush_log_at_trx_commit is 2: a crash of the operating system loses committed events", "set it to 1",
			nil)
	}
	if row[1] == "1" && row[2] != "1" {
		found = append(found, warn("sync_binlog", "sync_binlog is {value}: after a crash, replicas may lack committed events", "set it to 1",
			values{"value": row[2]})...)
	}
	return found, nil
}

func postgresDurability(ctx context.Context, x *exam) ([]Finding, error) {
	row, err := x.one(ctx, "SELECT current_setting('fsync'), current_setting('synchronous_commit'), current_setting('full_page_writes')", 3)
	if err != nil {
		return nil, err
	}
	var found []Finding
	if row[0] != "on" {
		found = fail("fsync_off", "fsync is off: a crash of the operating system destroys the database", "set fsync = on", nil)
	}
	if row[1] == "off" {
		found = append(found, warn("synchronous_commit_off", "synchronous_commit is off: a crash of the server loses committed events",
			"set it to on, for the bus's role at least", nil)...)
	}
	if row[2] != "on" {
		found = append(found, warn("full_page_writes_off", "full_page_writes is off: a crash of the operating system may damage pages",
			"set it to on", nil)...)
	}
	return found, nil
}

func packetSize(ctx context.Context, x *exam) ([]Finding, error) {
	row, err := x.one(ctx, "SELECT @@SESSION.max_allowed_packet", 1)
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(row[0])
	if err != nil || n >= 4*x.cfg.MaxPayload {
		return nil, err
	}
	return fail("packet_small", "max_allowed_packet is {bytes} bytes, with payloads of up to {payload}",
		"set max_allowed_packet to at least {least}, or lower outbox.Config.MaxPayload",
		values{"bytes": strconv.Itoa(n), "payload": strconv.Itoa(x.cfg.MaxPayload), "least": strconv.Itoa(4 * x.cfg.MaxPayload)}), nil
}

// pool compares the connections with those who need them. Two are for the publisher and its user.
func pool(_ context.Context, x *exam) ([]Finding, error) {
	open := x.db.Stats().MaxOpenConnections
	switch {
	case open == 0 && x.d.Name != "sqlite":
		return warn("pool_unlimited", "the pool has no limit: under load it takes every connection that the server has", "call SetMaxOpenConns",
			nil), nil
	case open > 0 && open < 3:
		return warn("pool_tiny", "the pool has {open} connections: publisher, handlers and requests wait for each other",
			"call SetMaxOpenConns with at least 3", values{"open": strconv.Itoa(open)}), nil
	case open > 0 && x.d.Name != "sqlite" && open < x.cfg.Workers+2:
		return warn("pool_small", "the pool has {open} connections for {workers} workers, the publisher and requests",
			"call SetMaxOpenConns with at least {least}, or lower ConsumerConfig.Concurrency",
			values{"open": strconv.Itoa(open), "workers": strconv.Itoa(x.cfg.Workers), "least": strconv.Itoa(x.cfg.Workers + 2)}), nil
	}
	return nil, nil
}

// pooler notices a pooler that gives each transaction another server process.
func pooler(ctx context.Context, x *exam) ([]Finding, error) {
	conn, err := x.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	pids := make(map[int]bool)
	for range 8 {
		var pid int
		if err := conn.QueryRowContext(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
			return nil, err
		}
		pids[pid] = true
	}
	if len(pids) > 1 {
		return warn("pooler", "one connection talks to several server processes: a pooler in transaction mode",
			"connect with default_query_exec_mode=simple_protocol (exec for pgxtx), and give migrations a connection that passes by "+
				"the pooler; this warning stays", nil), nil
	}
	return nil, nil
}

// idleTransactions asks how long the server lets a silent client hold its locks.
func idleTransactions(ctx context.Context, x *exam) ([]Finding, error) {
	const long = 5 * time.Minute
	if x.d.Name == "postgres" {
		row, err := x.one(ctx, "SELECT setting FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'", 1)
		if err != nil || row[0] != "0" {
			return nil, err
		}
		return warn("idle_endless", "idle_in_transaction_session_timeout is 0: a frozen process holds its row locks for ever",
			"set it to a few minutes for the bus's role", nil), nil
	}
	timeouts, err := x.texts(ctx, "SHOW SESSION VARIABLES WHERE Variable_name IN ('wait_timeout', 'idle_transaction_timeout', "+
		"'idle_write_transaction_timeout')", 2)
	if err != nil {
		return nil, err
	}
	least := time.Duration(0)
	for _, t := range timeouts {
		if n, err := strconv.Atoi(t[1]); err == nil && n > 0 && (least == 0 || time.Duration(n)*time.Second < least) {
			least = time.Duration(n) * time.Second
		}
	}
	if least > 0 && least <= long {
		return nil, nil
	}
	return warn("idle_long", "a frozen process holds its row locks for {held}",
		"set idle_write_transaction_timeout (MariaDB) or wait_timeout to a few minutes, in the DSN say", values{"held": least.String()}), nil
}

func timeZone(ctx context.Context, x *exam) ([]Finding, error) {
	row, err := x.one(ctx, "SELECT TIMESTAMPDIFF(MINUTE, UTC_TIMESTAMP(), NOW())", 1)
	if err != nil || row[0] == "0" {
		return nil, err
	}
	return warn("time_zone", "the session's time zone is {minutes} min off UTC: NOW() in SQL written by hand is wrong by that",
		"use UTC_TIMESTAMP(6), or leave out the columns of times", values{"minutes": row[0]}), nil
}

// now is the database's time.
func (x *exam) now(ctx context.Context) (time.Time, error) {
	var micros int64
	err := x.db.QueryRowContext(ctx, "SELECT "+x.d.Micros(x.d.Now)).Scan(&micros)
	return time.UnixMicro(micros), err
}

func clock(ctx context.Context, x *exam) ([]Finding, error) {
	before := time.Now()
	now, err := x.now(ctx)
	if err != nil {
		return nil, err
	}
	trip := time.Since(before)
	offset := now.Sub(before.Add(trip / 2))
	if offset.Abs() <= x.cfg.ClockOffset+trip {
		return nil, nil
	}
	return warn("clock", "the database's clock is {apart} apart from this machine's",
		"run NTP on both: the bus goes by the database's clock, but logs and traces do not",
		values{"apart": offset.Round(time.Millisecond).String()}), nil
}
