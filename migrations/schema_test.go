package migrations_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/testdb"
)

// column is what the code expects of a column, in words common to all databases:
// id, big, int, time, text, json, char(n); a ? after it allows NULL.
type column struct{ name, kind string }

// outboxEvent and consumeLog are the two tables of the original design, and what is added.
var (
	outboxEvent = []column{
		{"id", "id"},
		{"tenant_id", "big?"},
		{"store_id", "big?"},
		{"aggregate_type", "char(64)"},
		{"aggregate_id", "char(128)"},
		{"event_type", "char(128)"},
		{"event_id", "char(64)"},
		{"event_payload", "json"},
		{"event_metadata", "json?"},
		{"schema_version", "int"},
		{"status", "char(32)"},
		{"retry_count", "int"},
		{"max_retry_count", "int"},
		{"next_retry_at", "time?"},
		{"locked_by", "char(64)?"},
		{"lock_version", "big"},
		{"last_error", "text?"},
		{"created_at", "time"},
		{"updated_at", "time"},
		{"sent_at", "time?"},
		{"open_aggregate", "mysql char(193)?"},
		{"trace_id", "char(64)?"},
		{"in_hand", "mysql char(215)?"},
		{"event_key", "char(255)?"},
	}
	consumeLog = []column{
		{"id", "id"},
		{"tenant_id", "big?"},
		{"consumer_name", "char(128)"},
		{"event_id", "char(64)"},
		{"event_type", "char(128)"},
		{"status", "char(32)"},
		{"idempotency_key", "char(255)?"},
		{"consume_result", "json?"},
		{"error_message", "text?"},
		{"outbox_id", "big?"},
		{"aggregate_type", "char(64)?"},
		{"aggregate_id", "char(128)?"},
		{"attempts", "int"},
		{"next_retry_at", "time?"},
		{"locked_by", "char(64)?"},
		{"lock_version", "big"},
		{"consumed_at", "time"},
		{"created_at", "time"},
		{"updated_at", "time"},
		{"started", "int"},
		{"first_run_at", "time?"},
		{"open_aggregate", "mysql char(223)?"},
	}
	keys = map[string][]string{
		"bc_outbox_event":      {"u event_id", "aggregate_type,aggregate_id,id", "status,next_retry_at,id", "trace_id", "event_key"},
		"bc_event_consume_log": {"u event_id,consumer_name", "consumer_name,status,next_retry_at,id", "idempotency_key"},
	}
)

// wanted spells the kinds of a table as the database describes them.
func wanted(dialect string, columns []column) []string {
	kinds := map[string]map[string]string{
		"mysql":    {"id": "bigint unsigned", "big": "bigint", "int": "int", "time": "datetime(6)", "text": "text", "json": "longtext"},
		"postgres": {"id": "bigint", "big": "bigint", "int": "integer", "time": "timestamp with time zone", "text": "text", "json": "json"},
		"sqlite":   {"id": "INTEGER", "big": "INTEGER", "int": "INTEGER", "time": "TEXT", "text": "TEXT", "json": "TEXT"},
	}[dialect]
	var out []string
	for _, c := range columns {
		if only, found := strings.CutPrefix(c.kind, "mysql "); found { // the others have partial indexes
			if c.kind = only; dialect != "mysql" {
				continue
			}
		}
		kind, nullable := strings.CutSuffix(c.kind, "?")
		spelled, ok := kinds[kind]
		switch {
		case ok:
		case dialect == "mysql":
			spelled = "var" + kind + " utf8mb4_bin"
		case dialect == "postgres":
			spelled = strings.Replace(kind, "char", "character varying", 1)
		default:
			spelled = "TEXT"
		}
		if nullable {
			spelled += " NULL"
		}
		out = append(out, c.name+" "+spelled)
	}
	return out
}

var (
	// MySQL 8 shows no width of integers, MariaDB does; both may call other ids unsigned.
	width    = regexp.MustCompile(`int\(\d+\)`)
	describe = map[string]string{
		"mysql": `SELECT CONCAT(column_name, ' ', column_type, CASE WHEN data_type = 'varchar' THEN CONCAT(' ', collation_name) ELSE '' END,
				CASE is_nullable WHEN 'YES' THEN ' NULL' ELSE '' END)
			FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = ? ORDER BY ordinal_position`,
		"postgres": `SELECT attname || ' ' || format_type(atttypid, atttypmod) || CASE WHEN attnotnull THEN '' ELSE ' NULL' END
			FROM pg_attribute WHERE attrelid = ?::text::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum`,
		"sqlite": `SELECT name || ' ' || type || CASE WHEN "notnull" = 1 OR pk = 1 THEN '' ELSE ' NULL' END
			FROM pragma_table_info(?) ORDER BY cid`,
	}
	indexes = map[string]string{
		"mysql": `SELECT CONCAT(CASE non_unique WHEN 0 THEN 'u ' ELSE '' END, GROUP_CONCAT(column_name ORDER BY seq_in_index))
			FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = ? AND index_name <> 'PRIMARY'
			GROUP BY index_name, non_unique`,
		"postgres": `SELECT CASE WHEN i.indisunique THEN 'u ' ELSE '' END || (SELECT string_agg(a.attname, ',' ORDER BY k.n)
				FROM unnest(i.indkey) WITH ORDINALITY k(num, n) JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.num)
			FROM pg_index i WHERE i.indrelid = ?::text::regclass AND NOT i.indisprimary`,
		"sqlite": `SELECT CASE l."unique" WHEN 1 THEN 'u ' ELSE '' END || (SELECT group_concat(name) FROM pragma_index_info(l.name))
			FROM pragma_index_list(?) l`,
	}
)

// ofOrder are the indexes of the order questions: MySQL's are over computed columns, the others' hold only some rows. What
// is computed within an index has no name there.
var ofOrder = map[string]map[string][]string{
	"mysql": {"bc_outbox_event": {"open_aggregate,id", "in_hand,id"}, "bc_event_consume_log": {"open_aggregate,consumer_name,outbox_id"}},
	"postgres": {
		"bc_outbox_event":      {"aggregate_type,aggregate_id,id", ""},
		"bc_event_consume_log": {"outbox_id", "outbox_id"},
	},
	"sqlite": {
		"bc_outbox_event":      {"aggregate_type,aggregate_id,id", "aggregate_type,aggregate_id,id"},
		"bc_event_consume_log": {"aggregate_type,aggregate_id,consumer_name,outbox_id", "aggregate_type,aggregate_id,consumer_name,outbox_id"},
	},
}

func column1(t *testing.T, db *bun.DB, query string, args ...any) []string {
	t.Helper()
	var out []string
	require.NoError(t, db.NewRaw(query, args...).Scan(t.Context(), &out), query)
	return out
}

func TestTablesAreWhatTheCodeExpects(t *testing.T) {
	t.Parallel()
	for _, name := range testdb.Dialects() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, dialect := testdb.Open(t, name), testdb.Dialect(name)
			for table, columns := range map[string][]column{"bc_outbox_event": outboxEvent, "bc_event_consume_log": consumeLog} {
				got := column1(t, db, describe[dialect], table)
				for i := range got {
					got[i] = width.ReplaceAllString(got[i], "int")
					if !strings.HasPrefix(got[i], "id ") {
						got[i] = strings.Replace(got[i], " unsigned", "", 1)
					}
				}
				require.Equal(t, wanted(dialect, columns), got, table)
				found := column1(t, db, indexes[dialect], table)
				slices.Sort(found)
				expected := append(slices.Clone(keys[table]), ofOrder[dialect][table]...)
				slices.Sort(expected)
				require.Equal(t, expected, found, "indexes of %s", table)
			}
		})
	}
}

// An archive takes every row of its table, so it has every column of it.
func TestArchivesHaveTheColumnsOfTheirTables(t *testing.T) {
	t.Parallel()
	for _, name := range testdb.Dialects() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, dialect := testdb.Open(t, name), testdb.Dialect(name)
			for _, table := range []string{"bc_outbox_event", "bc_event_consume_log"} {
				live := slices.DeleteFunc(column1(t, db, describe[dialect], table), func(c string) bool {
					return strings.HasPrefix(c, "open_aggregate ") || strings.HasPrefix(c, "in_hand ")
				}) // they are computed
				archive := column1(t, db, describe[dialect], table+"_archive")
				require.Subset(t, archive, live)
				require.Len(t, archive, len(live)+1, "and archived_at")
			}
		})
	}
}

func TestEveryMySQLTableIsInnoDBWithBinaryKeys(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"mysql", "mysql9"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			allBinary(t, testdb.Open(t, name))
		})
	}
}

func allBinary(t *testing.T, db *bun.DB) {
	t.Helper()
	require.Empty(t, column1(t, db, "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() "+
		"AND (engine <> 'InnoDB' OR table_collation <> 'utf8mb4_bin')"))
	require.Empty(t, column1(t, db, "SELECT CONCAT(table_name, '.', column_name) FROM information_schema.columns "+
		"WHERE table_schema = DATABASE() AND collation_name IS NOT NULL AND collation_name <> 'utf8mb4_bin'"))
	require.Empty(t, column1(t, db, "SELECT CONCAT(table_name, '.', column_name) FROM information_schema.columns "+
		"WHERE table_schema = DATABASE() AND data_type IN ('datetime', 'timestamp') AND column_type <> 'datetime(6)'"))
}

// Keys that differ only in case or accents are different keys everywhere. (A space at the end is
// the one thing that utf8mb4_bin does not see, which is why Save refuses it.)
func TestKeysAreComparedByTheirBytes(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		for i, id := range []string{"é-1", "e-1", "E-1"} {
			_, err := db.ExecContext(t.Context(), fmt.Sprintf("INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, "+
				"event_payload) VALUES ('A', '%d', 'a.b', ?, '{}')", i), id)
			require.NoError(t, err, "%q", id)
		}
		require.Equal(t, []string{"1"}, column1(t, db, "SELECT aggregate_id FROM bc_outbox_event WHERE event_id = 'e-1' AND aggregate_id = '1'"))
	})
}
