package doctor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/migrations"
)

// schemaChecks compare the tables with what the code needs of them.
func schemaChecks() []check {
	return []check{
		{name: "migrations", fine: "all applied", look: pending},
		{name: "engine", dialects: "mysql", fine: "InnoDB", look: engine},
		{name: "collation", dialects: "mysql", fine: "keys compare byte by byte", look: collation},
		{name: "key length", dialects: "mysql postgres", fine: "keys fit", look: keyLength},
		{name: "indexes", fine: "all there", look: indexes},
	}
}

const (
	upRemedy  = "call migrations.Up, or apply the files of migrations/ by hand"
	ddlRemedy = "compare the table with the files of migrations/ and alter it"
)

func pending(ctx context.Context, x *exam) ([]Finding, error) {
	all, err := migrations.Status(ctx, x.db)
	if err != nil {
		return nil, err
	}
	var missing []string
	for _, m := range all {
		if m.AppliedAt.IsZero() {
			missing = append(missing, fmt.Sprintf("%04d_%s", m.Version, m.Name))
		}
	}
	if len(missing) == 0 {
		return nil, nil
	}
	return fail("migrations_missing", "not applied: {missing}", upRemedy, values{"missing": strings.Join(missing, ", ")}), nil
}

func engine(ctx context.Context, x *exam) ([]Finding, error) {
	rows, err := x.texts(ctx, "SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME "+
		"LIKE 'bc!_%' ESCAPE '!' AND ENGINE <> 'InnoDB'", 2)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, r := range rows {
		found = append(found, fail("engine", "{table} is in {engine}, which has no transactions", "ALTER TABLE {table} ENGINE = InnoDB",
			values{"table": r[0], "engine": r[1]})...)
	}
	return found, nil
}

// collation finds key columns in which two names that differ would be one.
func collation(ctx context.Context, x *exam) ([]Finding, error) {
	rows, err := x.texts(ctx, "SELECT TABLE_NAME, COLUMN_NAME, COLLATION_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = "+
		"DATABASE() AND TABLE_NAME IN ('bc_outbox_event', 'bc_event_consume_log', 'bc_consumer') "+
		"AND COLUMN_NAME IN ('event_id', 'event_type', 'aggregate_type', 'aggregate_id', 'status', 'consumer_name', 'name', 'locked_by') AND "+
		"COLLATION_NAME <> 'utf8mb4_bin'", 3)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, r := range rows {
		found = append(found,
			fail("collation", "{table}.{column} has the collation {collation}: names that differ only by case or accents would be one", ddlRemedy,
				values{"table": r[0], "column": r[1], "collation": r[2]})...)
	}
	return found, nil
}

func keyLength(ctx context.Context, x *exam) ([]Finding, error) {
	schema := map[string]string{"mysql": "DATABASE()", "postgres": "current_schema()"}[x.d.Name]
	rows, err := x.texts(ctx,
		"SELECT table_name, column_name, character_maximum_length FROM information_schema.columns WHERE table_schema = "+schema+
			" AND table_name IN ('bc_outbox_event', 'bc_event_consume_log') AND column_name IN ('event_id', 'consumer_name', 'aggregate_id')", 3)
	if err != nil {
		return nil, err
	}
	least := map[string]int{"event_id": 64, "consumer_name": 128, "aggregate_id": 128}
	var found []Finding
	for _, r := range rows {
		if n, err := strconv.Atoi(r[2]); err == nil && n < least[r[1]] {
			found = append(found, fail("key_short", "{table}.{column} holds {have} characters instead of {least}", ddlRemedy,
				values{"table": r[0], "column": r[1], "have": r[2], "least": strconv.Itoa(least[r[1]])})...)
		}
	}
	return found, nil
}

// needed are the indexes without which the engine scans tables, or loses its uniqueness.
func needed(dialectName string) map[string][]string {
	ofOrder := []string{"idx_waiting", "idx_dead"}
	if dialectName == "mysql" {
		ofOrder = []string{"idx_open_aggregate"}
	}
	return map[string][]string{
		"bc_outbox_event":      {"uk_event_id", "idx_status_next_retry", "idx_aggregate", "idx_in_hand", "idx_trace_id", "idx_event_key"},
		"bc_event_consume_log": append([]string{"uk_event_consumer", "idx_consumer_due"}, ofOrder...),
	}
}

func indexes(ctx context.Context, x *exam) ([]Finding, error) {
	query := map[string]string{
		"mysql":    "SELECT DISTINCT INDEX_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN (?)",
		"postgres": "SELECT indexname FROM pg_indexes WHERE schemaname = current_schema() AND tablename IN (?)",
		"sqlite":   "SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name IN (?)",
	}[x.d.Name]
	var found []Finding
	for _, table := range []string{"bc_outbox_event", "bc_event_consume_log"} {
		rows, err := x.texts(ctx, query, 1, bun.List([]string{table}))
		if err != nil {
			return nil, err
		}
		for _, index := range needed(x.d.Name)[table] {
			name := index
			if x.d.Name != "mysql" {
				name = table + "_" + index
			}
			if !slices.ContainsFunc(rows, func(r []string) bool { return r[0] == name }) {
				found = append(found, fail("index_missing", "the index {index} of {table} is missing", ddlRemedy,
					values{"index": name, "table": table})...)
			}
		}
	}
	return found, nil
}
